"""Say in response headers what was decided and how long what took. Values are RFC 9651 structured fields."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote

from proxy.core.decision import Deferred, Lane, LaneDecision, Pooled, StepReport, StepStatus, UrgencyDecision
from proxy.core.exchange import Exchange
from proxy.http.head import ResponseHead
from proxy.policy.model import HeaderLevel

EXPOSED = (
    b"x-weir-request-id, x-weir-route, x-weir-policy, x-weir-urgency, x-weir-lane, x-weir-steps, "
    b"x-weir-tokens, x-weir-ttft-ms, x-weir-tpot-ms, Server-Timing"
)


def report_headers(exchange: Exchange, level: HeaderLevel, now: float, head: ResponseHead | None) -> bytes:
    """Return Weir's header lines for an answer whose head is sent at `now` (monotonic seconds)."""
    if level is HeaderLevel.OFF:
        exchange.measure_overhead(now)
        return b""
    lines = ""
    if level is HeaderLevel.FULL:
        deferred = exchange.deferred
        lines = _decision_lines(
            exchange.route,
            exchange.policy_version,
            exchange.urgency,
            exchange.lane if deferred is None else None,
            exchange.pooled,
            exchange.steps,
        )
        if deferred is not None and exchange.lane is not None:
            lines += _deferred_line(exchange.lane, deferred)
        if exchange.tokens_after is not None:
            before = f", in_before={exchange.tokens_before}" if exchange.tokens_before is not None else ""
            lines += f"x-weir-tokens: in={exchange.tokens_after}{before}\r\n"
    timing = _timing_lines(exchange, now)
    text = f"x-weir-request-id: {exchange.request_id}\r\n{lines}{timing}".encode("ascii")
    if head is not None and head.fields.get(b"access-control-allow-origin"):
        text += b"Access-Control-Expose-Headers: " + EXPOSED + b"\r\n"
    return text


@lru_cache(maxsize=1024)
def _decision_lines(
    route: str,
    policy_version: str,
    urgency: UrgencyDecision | None,
    lane: LaneDecision | None,
    pooled: Pooled | None,
    steps: tuple[StepReport, ...],
) -> str:
    """Return what recurs from request to request: who decided what, and why."""
    lines = f"x-weir-route: {quote(route, _SAFE, errors='replace')}\r\n" if route else ""
    if policy_version:
        lines += f"x-weir-policy: {policy_version}\r\n"
    if urgency is not None:
        lines += f"x-weir-urgency: {urgency.value.value}; reason={_string(urgency.reason)}\r\n"
    if lane is not None:
        how = " strategy=none;" if lane.value is Lane.COALESCE else ""
        if pooled is not None:
            how = f" strategy={pooled.strategy.value}; size={pooled.size};"
        lines += f"x-weir-lane: {lane.value.value};{how} reason={_string(lane.reason)}\r\n"
    if steps:
        lines += f"x-weir-steps: {', '.join(map(_step, steps))}\r\n"
    return lines


def _deferred_line(lane: LaneDecision, deferred: Deferred) -> str:
    tier = f" tier={_token(deferred.tier)};" if deferred.tier else ""
    job, reason = _string(deferred.job_id), _string(lane.reason)
    attached = " attached;" if deferred.is_attached else ""
    return f"x-weir-lane: {lane.value.value};{tier} job={job};{attached} reason={reason}\r\n"


def _token(text: str) -> str:
    """Return an RFC 9651 token, a string where it is none: a tier may be a provider's own word."""
    return text if _KEY.fullmatch(text) else _string(text)


def _timing_lines(exchange: Exchange, now: float) -> str:
    names = "queue;dur=%.3f, connect;dur=%.3f"
    figures = [exchange.queue_seconds * 1000, exchange.connect_seconds * 1000]
    extra = ""
    if exchange.decided_at:
        names = "steps;dur=%.3f, " + names
        figures.insert(0, exchange.steps_seconds * 1000)
    first_byte_seconds, ttft_seconds = exchange.first_byte_seconds, exchange.ttft_seconds
    if first_byte_seconds is not None:
        names += ", first_byte;dur=%.3f"
        figures.append(first_byte_seconds * 1000)
    if ttft_seconds is not None:
        names += ", ttft;dur=%.3f"
        figures.append(ttft_seconds * 1000)
        extra = f"x-weir-ttft-ms: {ttft_seconds * 1000:.3f}\r\n"
    names += ", overhead;dur=%.3f"
    figures.append(exchange.measure_overhead(now) * 1000)
    if exchange.ended_at:
        tpot_seconds = exchange.tpot_seconds
        if tpot_seconds is not None:
            names += ", tpot;dur=%.3f"
            figures.append(tpot_seconds * 1000)
            extra += f"x-weir-tpot-ms: {tpot_seconds * 1000:.3f}\r\n"
        names += ", total;dur=%.3f"
        figures.append(exchange.total_seconds * 1000)
    # One conversion of all figures takes half the time of one each.
    return f"Server-Timing: {names % tuple(figures)}\r\n{extra}"


def timing_comment(exchange: Exchange) -> bytes:
    """Return the last SSE comment of a stream whose route asks for one."""
    words = []
    for name, seconds in (
        ("ttft_ms", exchange.ttft_seconds),
        ("tpot_ms", exchange.tpot_seconds),
        ("total_ms", exchange.total_seconds),
    ):
        if seconds is not None:
            words.append(f"{name}={seconds * 1000:.3f}")
    if exchange.usage is not None and exchange.usage.output_tokens is not None:
        words.append(f"tokens={exchange.usage.output_tokens}")
    return f": weir {' '.join(words)}\n\n".encode("ascii")


_SAFE = "-_.~:/ "
_LARGEST_INTEGER = 999_999_999_999_999
"""Of structured fields (RFC 9651 section 3.3.1)."""
_LONGEST_NUMBER_CHARS = 32
_UNQUOTED = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in '%"\\')


def _integer(value: int) -> str:
    """Return an RFC 9651 integer; what is beyond them, which a caller may write, as a string cut short."""
    if -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER:
        return str(value)
    return f'"{str(value)[:_LONGEST_NUMBER_CHARS]}"'


_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
_NO_KEY = re.compile(r"[^a-z0-9_.*-]")


def _string(text: str) -> str:
    """Return an RFC 9651 string. What is not printable ASCII is percent-encoded."""
    if not text.isascii() or not text.isprintable():
        text = quote(text, _UNQUOTED, errors="replace")
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _key(text: str) -> str:
    """Return an RFC 9651 key: in lower case, and other characters than it may have become underscores."""
    if _KEY.fullmatch(text):
        return text
    key = _NO_KEY.sub("_", text.lower())
    return key if key[:1].isalpha() else f"x{key}"


def _step(report: StepReport) -> str:
    """Return one step as a token with parameters: `cap_output;set=300`."""
    words = [report.name]
    if report.status is not StepStatus.APPLIED:
        words.append(report.status.value)
    for key, value in report.detail:
        words.append(f"{_key(key)}={_integer(value) if isinstance(value, int) else _string(value)}")
    if report.reason:
        words.append(f"reason={_string(report.reason)}")
    return ";".join(words)
