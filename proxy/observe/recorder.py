"""Turn an ended exchange into its access-log record and its metrics. Called exactly once per exchange."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from proxy.core.clock import Clock
from proxy.core.decision import StepReport
from proxy.core.exchange import Exchange
from proxy.observe import catalogue as m
from proxy.observe.access_log import AccessLog
from proxy.observe.metrics import OTHER, Metrics

_CAP_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete"})
_MAX_MODEL_CHARS = 200


class Recorder:
    """Where exchanges end. `models` are the model names that may become label values."""

    def __init__(self, metrics: Metrics, access_log: AccessLog, clock: Clock) -> None:
        self.metrics = metrics
        self._access_log = access_log
        self._clock = clock
        self.models: frozenset[str] = frozenset()
        self.in_flight = 0

    def begun(self) -> None:
        """Count an exchange as in progress."""
        self.in_flight += 1

    def record(self, exchange: Exchange) -> None:
        """Count and log an exchange that `begun` was called for."""
        self.in_flight -= 1
        self._count(exchange)
        if self._access_log.is_on:
            self._access_log.write(self._line(exchange))

    def refused(self, code: str, status: int) -> None:
        """Count and log a request that could not even be read."""
        self.metrics.add(m.REQUESTS, ("", "", f"{status // 100}xx"))
        self.metrics.add(m.ERRORS, (code,))
        if self._access_log.is_on:
            self._access_log.write({"time": self._now(), "status": status, "error": code})

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="milliseconds")

    def _count(self, exchange: Exchange) -> None:
        metrics = self.metrics
        route = exchange.route
        model = exchange.model if exchange.model in self.models else OTHER if exchange.model else ""
        lane = exchange.lane.value.value if exchange.lane is not None else ""
        metrics.add(m.REQUESTS, (route, lane, f"{exchange.status // 100}xx" if exchange.status else "none"))
        metrics.observe(m.TOTAL, (route, model), exchange.total_seconds)
        metrics.observe(m.OVERHEAD, (route,), exchange.overhead_seconds)
        if exchange.lane is not None and route:
            metrics.add(m.LANES, (lane, exchange.lane.reason))
        if exchange.error:
            metrics.add(m.ERRORS, (exchange.error,))
        if exchange.queue_seconds:
            metrics.observe(m.QUEUE, (route,), exchange.queue_seconds)
        if exchange.retries:
            metrics.add(m.RETRIES, (exchange.upstream,), exchange.retries)
        if exchange.is_stream:
            self._count_stream(exchange, (route, model))
        for step in exchange.steps:
            self._count_step(route, step)
        if exchange.usage is not None:
            self._count_usage(exchange, route, model)

    def _count_stream(self, exchange: Exchange, labels: tuple[str, str]) -> None:
        ttft_seconds, tpot_seconds = exchange.ttft_seconds, exchange.tpot_seconds
        if ttft_seconds is not None:
            self.metrics.observe(m.TTFT, labels, ttft_seconds)
        if tpot_seconds is not None and not exchange.error:
            self.metrics.observe(m.TPOT, labels, tpot_seconds)

    def _count_step(self, route: str, step: StepReport) -> None:
        self.metrics.add(m.STEPS, (step.name, step.status.value))
        for key, value in step.detail:
            if key == "saved" and isinstance(value, int):
                self.metrics.add(m.TOKENS_SAVED, (route, step.name), value)

    def _count_usage(self, exchange: Exchange, route: str, model: str) -> None:
        usage = exchange.usage
        if usage is None:
            return
        for kind, tokens in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if tokens:
                self.metrics.add(m.TOKENS, (route, model, kind), tokens)
                if kind in ("input", "output"):
                    self.metrics.observe(m.TOKEN_USAGE, (route, model, kind), tokens)
        if exchange.was_empty and exchange.finish_reason in _CAP_REASONS:
            self.metrics.add(m.CAPPED_EMPTY, (route,))

    def _line(self, exchange: Exchange) -> dict[str, Any]:
        usage = exchange.usage
        urgency, lane = exchange.urgency, exchange.lane
        return {
            "time": self._now(),
            "request_id": exchange.request_id,
            "method": exchange.method,
            "path": exchange.path,
            "route": exchange.route or None,
            "policy": exchange.policy_version,
            "urgency": urgency.value.value if urgency is not None else None,
            "urgency_reason": urgency.reason if urgency is not None else None,
            "lane": lane.value.value if lane is not None else None,
            "lane_reason": lane.reason if lane is not None else None,
            "steps": [_step_words(step) for step in exchange.steps],
            "model": exchange.model[:_MAX_MODEL_CHARS] or None,
            "stream": exchange.is_stream,
            "status": exchange.status or None,
            "error": exchange.error or None,
            "upstream": exchange.upstream or None,
            "upstream_status": exchange.upstream_status or None,
            "retries": exchange.retries,
            "finish_reason": exchange.finish_reason or None,
            "tokens_in": usage.input_tokens if usage is not None else exchange.tokens_after,
            "tokens_in_before": exchange.tokens_before,
            "tokens_cached": usage.cached_tokens if usage is not None else None,
            "tokens_out": usage.output_tokens if usage is not None else None,
            "ttft_ms": _ms(exchange.ttft_seconds),
            "tpot_ms": _ms(exchange.tpot_seconds),
            "first_byte_ms": _ms(exchange.first_byte_seconds),
            "total_ms": _ms(exchange.total_seconds),
            "overhead_ms": _ms(exchange.overhead_seconds),
            "queue_ms": _ms(exchange.queue_seconds),
            "connect_ms": _ms(exchange.connect_seconds),
            "request_bytes": exchange.request_bytes,
            "response_bytes": exchange.response_bytes,
            "traceparent": exchange.traceparent or None,
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _step_words(step: StepReport) -> str:
    words = [step.name, step.status.value, *(f"{key}={value}" for key, value in step.detail)]
    return ";".join(words) + (f" ({step.reason})" if step.reason else "")
