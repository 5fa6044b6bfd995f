"""Turn an ended exchange into its metrics and its access-log line. Called exactly once per exchange."""

from __future__ import annotations

import logging
import re
from typing import Protocol

from proxy.core.clock import Clock
from proxy.core.decision import ClosedBy, LaneDecision, Pooled, StepReport, Strategy
from proxy.core.exchange import Exchange
from proxy.core.usage import Usage
from proxy.observe import catalogue as m
from proxy.observe.access_log import AccessLog
from proxy.observe.log_line import exchange_words, log_line
from proxy.observe.metrics import OTHER, Metrics, observe_into

_log = logging.getLogger("weir")
_CAP_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete"})
_FIGURE = re.compile(r"\d[\d.]*(?:e[+-]?\d+)?")
_MAX_SERIES = 4_096


class _Series:
    """The cells that every exchange of one route, model, lane and status class adds to."""

    __slots__ = ("_metrics", "_route", "decisions", "overhead", "requests", "tokens", "total", "usage")

    def __init__(self, metrics: Metrics, route: str, model: str, lane: str, status: str) -> None:
        self._metrics = metrics
        self._route = route
        self.requests = metrics.counter(m.REQUESTS, (route, lane, status))
        self.total = metrics.histogram(m.TOTAL, (route, model))
        self.overhead = metrics.histogram(m.OVERHEAD, (route,))
        kinds = ("input", "output")
        self.tokens = [metrics.counter(m.TOKENS, (route, model, kind)) for kind in kinds]
        self.usage = [metrics.histogram(m.TOKEN_USAGE, (route, model, kind)) for kind in kinds]
        self.decisions: dict[tuple[object, ...], list[list[float]]] = {}

    def decision_cells(self, lane: LaneDecision | None, steps: tuple[StepReport, ...]) -> list[list[float]]:
        """Return the counters of a lane decision and of step outcomes, each to be raised by one."""
        key = (lane, *[(step.name, step.status) for step in steps])
        cells = self.decisions.get(key)
        if cells is None:
            if len(self.decisions) >= _MAX_SERIES:
                self.decisions.clear()
            cells = [self._metrics.counter(m.STEPS, (step.name, step.status.value)) for step in steps]
            if lane is not None and self._route:
                # Figures in reasons come from callers: their deadline, their patience.
                reason = _FIGURE.sub("#", lane.reason)
                cells.append(self._metrics.counter(m.LANES, (lane.value.value, reason)))
            self.decisions[key] = cells
        return cells


class TrafficWatch(Protocol):
    """Whoever has to know which requests of callers are on their way to which upstream."""

    def begun(self, exchange: Exchange) -> None:
        """Take note of a request that is about to be sent; `exchange.upstream` says where to."""
        ...

    def ended(self, exchange: Exchange) -> None:
        """Take note that an exchange is over, whether or not `begun` was called for it. Must not raise."""
        ...


class Recorder:
    """Where exchanges end. `models` are the model names that may become label values.

    `traffic`, if anybody, hears of every end.
    """

    def __init__(self, metrics: Metrics, access_log: AccessLog, clock: Clock) -> None:
        self.metrics = metrics
        self._access_log = access_log
        self._clock = clock
        self._series: dict[tuple[str, str, str, int], _Series] = {}
        self.models: frozenset[str] = frozenset()
        self.traffic: TrafficWatch | None = None
        self.in_flight = 0

    def begun(self) -> None:
        """Count an exchange as in progress."""
        self.in_flight += 1

    def record(self, exchange: Exchange) -> None:
        """Count and log an exchange that `begun` was called for."""
        self.in_flight -= 1
        try:
            if self.traffic is not None:
                self.traffic.ended(exchange)
            self._count(exchange)
            self._write(exchange)
        except Exception as problem:
            # An exchange has ended well even if it cannot be told.
            _log.error("an exchange could not be recorded", exc_info=problem)

    def refused(self, exchange: Exchange) -> None:
        """Count and log a request that could not even be read, for which `begun` was not called."""
        self.metrics.add(m.REQUESTS, ("", "", f"{exchange.status // 100}xx"))
        self.metrics.add(m.ERRORS, (exchange.error,))
        self._write(exchange)

    def _write(self, exchange: Exchange) -> None:
        if self._access_log.is_json:
            self._access_log.write_line(log_line(exchange, self._clock.wall()))
        elif self._access_log.is_on:
            self._access_log.write(exchange_words(exchange, self._clock.wall()))

    def _count(self, exchange: Exchange) -> None:
        model = exchange.model
        if model and model not in self.models:
            model = OTHER
        lane = exchange.lane
        lane_name = lane.value._value_ if lane is not None else ""
        key = (exchange.route, model, lane_name, exchange.status // 100)
        series = self._series.get(key)
        if series is None:
            series = self._new_series(key)
        series.requests[0] += 1
        observe_into(series.total, m.TOTAL.bounds, exchange.total_seconds)
        observe_into(series.overhead, m.OVERHEAD.bounds, exchange.overhead_seconds)
        for cell in series.decision_cells(lane, exchange.steps):
            cell[0] += 1
        pooled = exchange.pooled
        # Everyone who shares a call is told its whole usage, and one of them is billed.
        is_billed = pooled is None or pooled.is_leader or pooled.strategy is not Strategy.SHARE
        if exchange.usage is not None and is_billed:
            self._count_usage(exchange, exchange.usage, series, model)
        if exchange.tokens_before is not None:
            self._count_savings(exchange)
        if exchange.is_stream:
            self._count_stream(exchange, (exchange.route, model))
        if pooled is not None:
            self._count_pooled(exchange, pooled)
        if exchange.error or exchange.queue_seconds or exchange.retries:
            self._count_trouble(exchange)

    def _count_pooled(self, exchange: Exchange, pooled: Pooled) -> None:
        metrics, strategy = self.metrics, pooled.strategy.value
        metrics.add(m.POOLED, (exchange.route, strategy, pooled.closed_by.value))
        metrics.observe(m.POOL_WAIT, (strategy,), exchange.queue_seconds)
        # Whoever waited for a warm cache made a call of its own, too.
        if pooled.is_leader or pooled.strategy is Strategy.WARM:
            metrics.observe(m.MICRO_BATCH, (strategy,), pooled.size)
        else:
            metrics.add(m.CALLS_SAVED, (exchange.route, strategy))
        if pooled.strategy is Strategy.WARM and exchange.usage is not None:
            self._count_warmth(exchange.route, pooled, exchange.usage)

    def _count_warmth(self, route: str, pooled: Pooled, usage: Usage) -> None:
        """Count what requests with a long prefix found in the provider's cache."""
        if pooled.is_leader:
            prefix = "cold"
        else:
            prefix = "warm" if pooled.closed_by in (ClosedBy.IDLE, ClosedBy.RETURNED) else "expired"
        for kind, tokens in (("input", usage.input_tokens), ("cached", usage.cached_tokens)):
            self.metrics.add(m.WARM_TOKENS, (route, prefix, kind), tokens or 0)

    def _new_series(self, key: tuple[str, str, str, int]) -> _Series:
        if len(self._series) >= _MAX_SERIES:
            self._series.clear()
        route, model, lane, status_class = key
        status = f"{status_class}xx" if status_class else "none"
        series = self._series[key] = _Series(self.metrics, route, model, lane, status)
        return series

    def _count_trouble(self, exchange: Exchange) -> None:
        metrics = self.metrics
        if exchange.error:
            metrics.add(m.ERRORS, (exchange.error,))
        if exchange.queue_seconds:
            metrics.observe(m.QUEUE, (exchange.route,), exchange.queue_seconds)
        if exchange.retries:
            metrics.add(m.RETRIES, (exchange.upstream,), exchange.retries)
        for param in exchange.taken_back:
            metrics.add(m.REWRITES_REFUSED, (exchange.upstream, param))

    def _count_stream(self, exchange: Exchange, labels: tuple[str, str]) -> None:
        ttft_seconds, tpot_seconds = exchange.ttft_seconds, exchange.tpot_seconds
        if ttft_seconds is not None:
            self.metrics.observe(m.TTFT, labels, ttft_seconds)
        if tpot_seconds is not None and not exchange.error:
            self.metrics.observe(m.TPOT, labels, tpot_seconds)

    def _count_savings(self, exchange: Exchange) -> None:
        for step in exchange.steps:
            for key, value in step.detail:
                if key == "saved" and isinstance(value, int):
                    self.metrics.add(m.TOKENS_SAVED, (exchange.route, step.name), value)

    def _count_usage(self, exchange: Exchange, usage: Usage, series: _Series, model: str) -> None:
        for index, tokens in enumerate((usage.input_tokens, usage.output_tokens)):
            if tokens:
                series.tokens[index][0] += tokens
                observe_into(series.usage[index], m.TOKEN_USAGE.bounds, tokens)
        route = exchange.route
        if usage.cached_tokens or usage.cache_write_tokens or usage.reasoning_tokens:
            for kind, tokens in (
                ("cached", usage.cached_tokens),
                ("cache_write", usage.cache_write_tokens),
                ("reasoning", usage.reasoning_tokens),
            ):
                if tokens:
                    self.metrics.add(m.TOKENS, (route, model, kind), tokens)
        if exchange.was_empty and exchange.finish_reason in _CAP_REASONS:
            self.metrics.add(m.CAPPED_EMPTY, (route,))
