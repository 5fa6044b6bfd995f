"""How many lines at once an upstream takes. Pure: times are given, in seconds of one clock.

Begins at one line and grows once a line latency at most, while that gets more done (`throughput`) and only
while it is what holds lines back: doubled until something speaks against more, from then on by one. Halved by
429, 503 and silence, each of which also makes lines pause.
"""

from __future__ import annotations

from enum import Enum

from proxy.batch_server.throughput import Throughput

_SMOOTHING = 0.2
_CLOCK_SECONDS = 0.001
_FIRST_BACKOFF_SECONDS = 0.5
_MOST_BACKOFF_SECONDS = 60.0
_MOST_RETRY_AFTER_SECONDS = 600.0


class LineEnd(Enum):
    """How a line ended, as far as it says something about the upstream."""

    ANSWERED = "answered"
    BUSY = "busy"
    """429 or 503."""
    NO_ANSWER = "no_answer"
    """A timeout, or no connection."""
    OTHER = "other"
    """Cancelled, or a failure that is the line's own."""


class Capacity:
    """What one upstream takes, whoever runs lines there; at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._value = 1
        self._is_doubling = True
        self._throughput = Throughput()
        self._latency_seconds: float | None = None
        self._paused_until = 0.0
        self._refusals = 0
        self._was_full = False
        self._raised_at = 0.0
        self._halved_at = float("-inf")
        self._concurrency = 0
        self._concurrency_at = 0.0

    @property
    def lines(self) -> int:
        """Return how many lines may be in flight at once: one at least."""
        return self._value

    @property
    def line_seconds(self) -> float:
        """Return what a line usually takes; a second while none has ended."""
        return 1.0 if self._latency_seconds is None else self._latency_seconds

    def widen(self, most: int) -> None:
        """Allow so many lines at most from now on."""
        self._most = most
        self._value = min(self._value, most)

    def try_out(self, lines: int) -> None:
        """Take so many for possible, as long as nothing speaks against more than there are."""
        if self._is_doubling:
            self._value = max(self._value, min(lines, self._most))

    def pause_seconds(self, now: float) -> float:
        """Return how long nothing may start."""
        return max(0.0, self._paused_until - now)

    def pause_until(self, time: float) -> None:
        """Start nothing before `time`, such as what a `Retry-After` says."""
        self._paused_until = max(self._paused_until, time)

    def was_full(self, now: float) -> None:
        """Note that a line was held back as there are as many as this allows."""
        self._was_full = True
        self._runs_among(now, self._value)

    def line_started(self, now: float, in_flight: int) -> None:
        """Note a start; `in_flight` counts it."""
        # Where there are as many as may be, one that ends is soon followed by another.
        self._runs_among(now, max(in_flight, self._concurrency))

    def was_held(self) -> None:
        """Note that something else than this holds lines back: there are fewer of them for a while."""
        self._concurrency = 0

    def line_ended(
        self,
        now: float,
        seconds: float,
        end: LineEnd,
        output_tokens: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Note the end of a line, which took `seconds`."""
        match end:
            case LineEnd.ANSWERED:
                self._refusals = 0
                self._learn(now, seconds, output_tokens)
                self._raise(now)
            case LineEnd.BUSY | LineEnd.NO_ANSWER:
                self._back_off(now, retry_after_seconds)
            case LineEnd.OTHER:
                pass

    def _runs_among(self, now: float, in_flight: int) -> None:
        if in_flight != self._concurrency:
            self._concurrency, self._concurrency_at = in_flight, now

    def _learn(self, now: float, seconds: float, output_tokens: int | None) -> None:
        known = self._latency_seconds
        self._latency_seconds = seconds if known is None else known + _SMOOTHING * (seconds - known)
        # A line that began among fewer or more lines says nothing about as many as there are now.
        if self._concurrency and now - seconds >= self._concurrency_at - _CLOCK_SECONDS:
            self._throughput.add(self._concurrency, seconds, output_tokens)

    def _raise(self, now: float) -> None:
        is_known = self._throughput.knows(self._value)
        if not self._was_full or not is_known or now - self._raised_at < self.line_seconds:
            return
        self._was_full = False
        self._raised_at = now
        if self._throughput.is_futile(self._value):
            # What waits inside the upstream stands in the way of interactive requests.
            self._value = max(1, self._value // 2 if self._is_doubling else self._value - 1)
            self._is_doubling = False
        else:
            self._value = min(self._most, self._value * 2 if self._is_doubling else self._value + 1)

    def _back_off(self, now: float, retry_after_seconds: float | None) -> None:
        wait = min(_MOST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0 ** min(self._refusals, 10))
        self._refusals += 1
        if retry_after_seconds is not None:
            wait = min(_MOST_RETRY_AFTER_SECONDS, max(0.0, retry_after_seconds))
        self.pause_until(now + wait)
        if now - self._halved_at >= self.line_seconds:
            self._halved_at = now
            self._is_doubling = False
            self._value = max(1, self._value // 2)
