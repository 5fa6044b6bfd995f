"""When interactive traffic at an upstream is over, and when it is likely to pause for a while. Pure."""

from __future__ import annotations

from collections import deque

_GAPS_KEPT = 100
_LEAST_GAPS = 8
_LEAST_IDLE_SECONDS = 5.0
_MOST_IDLE_SECONDS = 120.0
_UNKNOWN_IDLE_SECONDS = 15.0
_GAPS_UNTIL_IDLE = 2.0


class Silence:
    """The gaps between interactive requests. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=_GAPS_KEPT)
        self._began: deque[float] = deque(maxlen=_GAPS_KEPT)
        self._open = 0
        self._last: float | None = None

    @property
    def is_broken(self) -> bool:
        """Whether an interactive request is in flight."""
        return self._open > 0

    def requests_during(self, now: float, seconds: float) -> float:
        """Return how many requests come within so many seconds, as they came lately; 0 for few known."""
        if len(self._began) < _LEAST_GAPS or now <= self._began[0]:
            return 0.0
        return len(self._began) * seconds / (now - self._began[0])

    def broken(self, now: float) -> None:
        """Note that an interactive request began."""
        self._began.append(now)
        if self._open == 0 and self._last is not None:
            self._gaps.append(max(0.0, now - self._last))
        self._open += 1
        self._last = now

    def may_have_begun(self, now: float) -> None:
        """Note that an interactive request ended."""
        self._open = max(0, self._open - 1)
        self._last = now

    def is_idle(self, now: float) -> bool:
        """Tell whether there is no interactive traffic: none for twice its longest recent gap.

        That time is between 5 s and two minutes, and 15 s at least while few gaps are known; traffic that
        comes more rarely does not hold back lines.
        """
        if self._open or self._last is None:
            return self._last is None
        least = _LEAST_IDLE_SECONDS if len(self._gaps) >= _LEAST_GAPS else _UNKNOWN_IDLE_SECONDS
        longest = _GAPS_UNTIL_IDLE * max(self._gaps, default=0.0)
        return now - self._last > min(_MOST_IDLE_SECONDS, max(least, longest))

    def will_last(self, now: float, seconds: float) -> bool:
        """Tell whether none of the recent gaps that lasted as long as this one ended soon after.

        So it is with requests that come regularly.
        """
        if self._open or self._last is None or len(self._gaps) < _LEAST_GAPS:
            return False
        elapsed = now - self._last
        longer = [gap for gap in self._gaps if gap > elapsed]
        return bool(longer) and min(longer) > elapsed + seconds
