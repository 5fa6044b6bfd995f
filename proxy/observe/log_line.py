"""What the access log says about an exchange. Absent values are null, durations milliseconds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from proxy.core.decision import StepReport
from proxy.core.exchange import Exchange

_MAX_TEXT_CHARS = 512
_MAX_REASON_CHARS = 64
_ENCODER = msgspec.json.Encoder()


class LogRecord(msgspec.Struct, kw_only=True, gc=False):
    """One line of the access log; the fields in the order in which they are written."""

    time: str
    request_id: str
    method: str | None
    path: str | None
    route: str | None
    policy: str | None
    urgency: str | None
    urgency_reason: str | None
    lane: str | None
    lane_reason: str | None
    strategy: str | None = None
    pool_size: int | None = None
    job: str | None = None
    tier: str | None = None
    cost_usd: float | None = None
    batch: str | None = None
    batch_line: int | None = None
    steps: tuple[str, ...]
    model: str | None
    stream: bool
    status: int | None
    error: str | None
    upstream: str | None
    upstream_status: int | None
    retries: int
    taken_back: tuple[str, ...]
    finish_reason: str | None
    tokens_in: int | None
    tokens_in_before: int | None
    tokens_cached: int | None
    tokens_out: int | None
    ttft_ms: float | None
    tpot_ms: float | None
    first_byte_ms: float | None
    total_ms: float
    overhead_ms: float
    queue_ms: float
    connect_ms: float
    request_bytes: int
    response_bytes: int
    traceparent: str | None


def log_record(exchange: Exchange, wall_seconds: float) -> LogRecord:
    """Return the record of an exchange that ended at `wall_seconds` (Unix epoch)."""
    usage = exchange.usage
    urgency, lane = exchange.urgency, exchange.lane
    ttft_seconds, tpot_seconds = exchange.ttft_seconds, exchange.tpot_seconds
    first_byte_seconds = exchange.first_byte_seconds
    record = LogRecord(
        time=_time(wall_seconds),
        request_id=exchange.request_id,
        method=exchange.method or None,
        path=exchange.path[:_MAX_TEXT_CHARS] or None,
        route=exchange.route or None,
        policy=exchange.policy_version or None,
        urgency=urgency.value._value_ if urgency is not None else None,
        urgency_reason=urgency.reason if urgency is not None else None,
        lane=lane.value._value_ if lane is not None else None,
        lane_reason=lane.reason if lane is not None else None,
        steps=_steps(exchange.steps),
        model=exchange.model[:_MAX_TEXT_CHARS] or None,
        stream=exchange.is_stream,
        status=exchange.status or None,
        error=exchange.error or None,
        upstream=exchange.upstream or None,
        upstream_status=exchange.upstream_status or None,
        retries=exchange.retries,
        taken_back=exchange.taken_back,
        finish_reason=exchange.finish_reason[:_MAX_REASON_CHARS] or None,
        tokens_in=usage.input_tokens if usage is not None else exchange.tokens_after,
        tokens_in_before=exchange.tokens_before,
        tokens_cached=usage.cached_tokens if usage is not None else None,
        tokens_out=usage.output_tokens if usage is not None else None,
        # Whole microseconds: dividing is several times cheaper than rounding.
        ttft_ms=None if ttft_seconds is None else int(ttft_seconds * 1e6) / 1e3,
        tpot_ms=None if tpot_seconds is None else int(tpot_seconds * 1e6) / 1e3,
        first_byte_ms=None if first_byte_seconds is None else int(first_byte_seconds * 1e6) / 1e3,
        total_ms=int(exchange.total_seconds * 1e6) / 1e3,
        overhead_ms=int(exchange.overhead_seconds * 1e6) / 1e3,
        queue_ms=int(exchange.queue_seconds * 1e6) / 1e3,
        connect_ms=int(exchange.connect_seconds * 1e6) / 1e3,
        request_bytes=exchange.request_bytes,
        response_bytes=exchange.response_bytes,
        traceparent=exchange.traceparent[:_MAX_TEXT_CHARS] or None,
    )
    pooled, deferred, batch_line = exchange.pooled, exchange.deferred, exchange.batch_line
    if pooled is not None:
        record.strategy = pooled.strategy._value_
        record.pool_size = pooled.size
    if deferred is not None:
        record.job = deferred.job_id
        record.tier = deferred.tier or None
        record.cost_usd = deferred.cost_usd
    if batch_line is not None:
        record.batch, record.batch_line = batch_line
    return record


def log_line(exchange: Exchange, wall_seconds: float) -> bytes:
    """Return the record of an exchange as one JSON line."""
    record = log_record(exchange, wall_seconds)
    try:
        return _ENCODER.encode(record) + b"\n"
    except UnicodeEncodeError:
        # A caller's text may hold lone surrogates, which no UTF-8 can.
        return json.dumps(msgspec.structs.asdict(record)).encode("ascii") + b"\n"


def exchange_words(exchange: Exchange, wall_seconds: float) -> dict[str, Any]:
    """Return the record of an exchange by field, for the text format."""
    return msgspec.structs.asdict(log_record(exchange, wall_seconds))


@lru_cache(maxsize=1024)
def _steps(steps: tuple[StepReport, ...]) -> tuple[str, ...]:
    return tuple(map(_step, steps))


def _step(step: StepReport) -> str:
    words = [step.name, step.status.value, *(f"{key}={value}" for key, value in step.detail)]
    return ";".join(words) + (f" ({step.reason})" if step.reason else "")


def _time(wall_seconds: float) -> str:
    """Return an RFC 3339 time with milliseconds."""
    whole = int(wall_seconds)
    return f"{_second(whole)}.{int((wall_seconds - whole) * 1000):03d}+00:00"


@lru_cache(maxsize=8)
def _second(epoch_seconds: int) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
