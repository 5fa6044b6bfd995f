"""Owns how long an answer may take: the deadline of a request and the patience of its caller. Pure.

Both are read from headers that any caller can send, so everything that is not plainly a sensible number is
ignored and the route's own figure stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from proxy.policy.model import Route
from proxy.policy.values import duration_seconds

DEADLINE_HEADER = "x-weir-deadline"

# The official SDKs say how long they wait, in seconds: openai-python and anthropic-python send the first,
# openai-node and anthropic-python the second (`_base_client.py`, `client.ts`).
PATIENCE_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")

_LONGEST_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A number of seconds and who said so; `seconds` is `None` when nobody did.

    `is_ignored`: somebody said so in a way that does not count, and `reason` tells which.
    """

    seconds: float | None
    reason: str
    is_ignored: bool = False


def caller_patience_seconds(route: Route, header: Callable[[str], str | None]) -> float:
    """Return how long the caller holds the connection: its own word, else the route's `caller_patience`."""
    for name in PATIENCE_HEADERS:
        value = header(name)
        if value is not None:
            seconds = _seconds(value)
            if seconds is not None:
                return min(seconds, _LONGEST_SECONDS)
    return route.caller_patience_seconds


def answer_deadline(route: Route, value: str | None, now_epoch_seconds: float) -> Waiting:
    """Return how long the answer may take.

    `value` is the `x-weir-deadline` header: a duration such as `2h`, or an RFC 3339 time with its offset.
    It counts only where the route's `allow_caller` lists it. A time that has passed gives 0 seconds.
    """
    own = Waiting(route.urgency.deadline_seconds, "route deadline")
    if value is None:
        return own
    if DEADLINE_HEADER not in route.allow_caller:
        return Waiting(own.seconds, f"{DEADLINE_HEADER} ignored: the route does not allow it", True)
    seconds = _deadline(value.strip(), now_epoch_seconds)
    if seconds is None:
        reason = f"{DEADLINE_HEADER} ignored: neither a duration nor an RFC 3339 time"
        return Waiting(own.seconds, reason, True)
    return Waiting(min(seconds, _LONGEST_SECONDS), f"header {DEADLINE_HEADER}")


def _deadline(value: str, now_epoch_seconds: float) -> float | None:
    try:
        return duration_seconds(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    try:
        return max(0.0, moment.timestamp() - now_epoch_seconds)
    except OverflowError:
        return None


def _seconds(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None
