"""When a notice is told again, and until when. Pure; times are seconds since the epoch.

Owns the delays: the first try is at once, the last about 23 hours later.
"""

from __future__ import annotations

DELAYS_SECONDS = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 18_000.0)
"""How long to wait after the first, second, … failed try."""

DAY_SECONDS = 86_400.0
"""So long after its ending a thing is no news any more: what was not told by then is given up."""

LONGEST_RETRY_AFTER_SECONDS = 3_600.0
_JITTER = 0.2


def told_until(ended: float, purge_at: float) -> float:
    """Return until when an ending is told: for a day, and not longer than it is kept."""
    return min(ended + DAY_SECONDS, purge_at)


def delay_seconds(tries: int, draw: float, retry_after_seconds: float = 0.0) -> float:
    """Return how long to wait after `tries` failed tries, `draw` from 0 to 1 spread over a fifth.

    A receiver that says how long to leave it alone is heard, up to an hour.
    """
    delay = DELAYS_SECONDS[min(max(tries, 1), len(DELAYS_SECONDS)) - 1]
    asked = min(retry_after_seconds, LONGEST_RETRY_AFTER_SECONDS)
    return max(delay * (1 - _JITTER * draw), asked)


def next_try(now: float, wait_seconds: float, until: float) -> float | None:
    """Return when to try again, `None`: not in time any more."""
    due = now + wait_seconds
    return due if due < until else None
