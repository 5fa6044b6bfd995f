"""How many lines may be in flight at one upstream at once. Pure: times are given, in seconds of one clock.

Two limits, the lower counts. Both begin at one line, grow by one a line latency at most, and only while they
are what holds lines back:

    capacity    what the upstream takes: halved by 429, 503 and silence, not grown where that gets no more
                done (`throughput`)
    courtesy    what interactive traffic bears: halved while lines slow it down (`courtesy`)

Below one, a line is followed by a pause, so that the limit is the share of time with a line in flight; never
less than `FLOOR`. Without interactive traffic only the capacity counts, reached from one line on and never
less: the pauses after refusals do for the upstream what a share of time does for others.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum

from proxy.batch_server.courtesy import Courtesy, Effect
from proxy.batch_server.throughput import Throughput

FLOOR = 0.02
"""The least share of time with a line in flight: work always goes on."""

_UNKNOWN_SHARE = 0.1
"""The share of time with a line while it is not known what lines do to the interactive traffic there is. It
grows as long as none meets a line."""

_MANY_MIXED = 0.03
_FEW_MIXED = 0.015
"""A share of slowed answers that a 95th percentile does not show, and one that leaves room to try more."""

_PACE_TOKENS = 32
"""Paces are compared as the time that so many tokens take: what nobody feels of one is felt of an answer."""

_CEILING_ANSWERS = 200
_CEILING_SECONDS = 600.0
_GROWTH_BELOW_ONE = 1.25
_SMOOTHING = 0.2
_CLOCK_SECONDS = 0.001
_LEAST_WAIT_SECONDS = 0.02
_MOST_WAIT_SECONDS = 5.0
_HELD_SECONDS = 0.25
_MOST_PAUSE_SECONDS = 900.0
"""Work goes on, however long a line took: one that timed out did nothing for the other side either."""

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


class Limit:
    """The limit for one upstream, whoever runs lines there."""

    def __init__(self, max_in_flight: int, floor: float = FLOOR) -> None:
        self._most = float(max(1, max_in_flight))
        self._floor = floor
        self._capacity = 1.0
        self._courtesy = 1.0
        # The courtesy while there is no interactive traffic: it leaves what was learnt about it alone.
        self._idle_courtesy = 1.0
        # While it is not known what lines do to interactive traffic; begun anew each time it is not.
        self._unknown_courtesy = _UNKNOWN_SHARE
        self._seen = Courtesy()
        self._throughput = Throughput()
        self._now = 0.0
        self._latency_seconds: float | None = None
        self._busy_seconds = 0.0
        self._ended_at: float | None = None
        self._paused_until = 0.0
        self._refusals = 0
        self._was_full = False
        self._raised_at = 0.0
        self._halved_at = float("-inf")
        self._yielded_at = float("-inf")
        self._changed_at = float("-inf")
        self._concurrency = 0
        self._concurrency_at = 0.0
        # Where lines did harm is not tried again soon: every try slows some answers down.
        self._ceiling = self._most
        self._ceiling_at = 0.0
        self._ceiling_met = 0

    @property
    def value(self) -> float:
        """Return the limit: lines in flight; below 1 the share of time with a line in flight."""
        return min(self._present_capacity(), self._present_courtesy())

    @property
    def effect(self) -> Effect:
        """Return what lines do to the interactive traffic at this upstream."""
        return self._seen.effect

    def may_start(self, now: float, in_flight: int, interactive_in_flight: int) -> float | None:
        """Tell whether a line may start: `None` now, else ask again after so many seconds.

        Asking again as soon as a line or an interactive request ends gets lines started sooner.
        """
        self._now = now
        self._seen.noticed(now, interactive_in_flight)
        if now < self._paused_until:
            return max(_LEAST_WAIT_SECONDS, self._paused_until - now)
        limit = self.value
        if in_flight >= max(1, int(limit)):
            self._was_full = True
            self._is_kept_full(now, in_flight)
            return min(_MOST_WAIT_SECONDS, max(_LEAST_WAIT_SECONDS, self._line_seconds()))
        since = 0.0 if self._ended_at is None else now - self._ended_at
        pause = 0.0 if in_flight or limit >= 1.0 else self._pause_seconds(limit) - since
        if pause > 0:
            self._was_full = True
            return max(_LEAST_WAIT_SECONDS, pause)
        if self._seen.had_better_wait(now, self._line_seconds()):
            left = self._pause_seconds(self._floor) - since
            if left > 0 or in_flight:
                self._concurrency = 0
                return max(_LEAST_WAIT_SECONDS, min(_HELD_SECONDS, left) if left > 0 else _HELD_SECONDS)
        return None

    def line_started(self, now: float, in_flight: int) -> None:
        """Note a start; `in_flight` counts it."""
        self._now = now
        self._is_kept_full(now, max(in_flight, self._concurrency))

    def line_ended(
        self,
        now: float,
        seconds: float,
        end: LineEnd,
        output_tokens: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Note the end of a line, which took `seconds`."""
        self._now = now
        self._ended_at = now
        self._busy_seconds = seconds
        match end:
            case LineEnd.ANSWERED:
                self._refusals = 0
                self._learn(now, seconds, output_tokens)
                self._raise(now)
            case LineEnd.BUSY | LineEnd.NO_ANSWER:
                self._back_off(now, retry_after_seconds)
            case LineEnd.OTHER:
                pass

    def interactive_started(self, now: float) -> None:
        """Note that an interactive request went to the upstream."""
        self._now = now
        self._seen.started(now)
        self._idle_courtesy = 1.0

    def interactive_ended(
        self, now: float, key: Hashable, seconds: float, was_mixed: bool, token_seconds: float | None = None
    ) -> None:
        """Note an interactive answer of the upstream; each has been told to have started.

        key         of what is alike: model, and whether it was a stream
        seconds     to its first byte for streams, else the whole latency
        was_mixed   a line was in flight at the upstream meanwhile
        token_seconds   from one token to the next, where that is known: lines may slow that down alone
        """
        self._now = now
        # An answer that began before the last change tells nothing about what is now.
        is_settled = now - seconds >= self._changed_at
        self._seen.ended(now, key, seconds, was_mixed, is_settled)
        if token_seconds is not None:
            pace_seconds = token_seconds * _PACE_TOKENS
            self._seen.compare(now, (key, "pace"), pace_seconds, was_mixed, is_settled)
        self._ceiling_met += was_mixed
        if self._seen.effect is not Effect.UNKNOWN:
            self._unknown_courtesy = _UNKNOWN_SHARE
        is_harming = self._seen.effect is Effect.HARMFUL and self._seen.mixed_share > _MANY_MIXED
        if was_mixed and is_harming and now - self._yielded_at >= self._line_seconds():
            self._yielded_at = now
            self._yield(now)

    def paused_until(self, time: float) -> None:
        """Start nothing before `time`, such as what a `Retry-After` says."""
        self._paused_until = max(self._paused_until, time)

    # ---- inside

    def _present_capacity(self) -> float:
        return max(1.0, self._capacity) if self._seen.is_idle(self._now) else self._capacity

    def _present_courtesy(self) -> float:
        if self._seen.is_idle(self._now):
            return max(self._courtesy, self._idle_courtesy)
        if self._seen.effect is Effect.UNKNOWN:
            return min(self._courtesy, max(self._floor, self._unknown_courtesy))
        return self._courtesy

    def _line_seconds(self) -> float:
        return 1.0 if self._latency_seconds is None else self._latency_seconds

    def _pause_seconds(self, share: float) -> float:
        """Return how long after a line's end the next may start, so that lines take `share` of the time."""
        return min(_MOST_PAUSE_SECONDS, self._busy_seconds * (1.0 / share - 1.0))

    def _is_kept_full(self, now: float, in_flight: int) -> None:
        """Note that there are as many lines as may be: one that ends is soon followed by another."""
        if in_flight != self._concurrency:
            self._concurrency, self._concurrency_at = in_flight, now

    def _yield(self, now: float) -> None:
        at_once = min(self._capacity, self._courtesy)
        if at_once > 1.0:
            self._courtesy = at_once / 2
            self._ceiling, self._ceiling_at, self._ceiling_met = at_once - 1.0, now, 0
            self._forget_mixed(now)
        else:
            # How many answers meet a line goes with the share of time that lines take.
            kept = min(0.5, _MANY_MIXED / self._seen.mixed_share)
            self._courtesy = max(self._floor, at_once * kept)

    def _forget_mixed(self, now: float) -> None:
        self._seen.forget_mixed()
        self._changed_at = now + self._line_seconds()

    def _learn(self, now: float, seconds: float, output_tokens: int | None) -> None:
        known = self._latency_seconds
        self._latency_seconds = seconds if known is None else known + _SMOOTHING * (seconds - known)
        # A line that began among fewer or more lines says nothing about as many as there are now.
        if self._concurrency and now - seconds >= self._concurrency_at - _CLOCK_SECONDS:
            self._throughput.add(self._concurrency, seconds, output_tokens)

    def _raise(self, now: float) -> None:
        value = self.value
        is_known = self._throughput.knows(int(value)) or value < 1.0
        if not self._was_full or not is_known or now - self._raised_at < self._line_seconds():
            return
        self._was_full = False
        self._raised_at = now
        # What does not hold lines back is not grown: nothing is known about it.
        if self._throughput.is_futile(int(value)):
            # What waits inside the upstream stands in the way of interactive requests.
            self._capacity = max(1.0, float(int(value) - 1))
        elif self._capacity <= value:
            self._capacity = self._grown(max(self._capacity, min(1.0, value)))
        if self._seen.is_idle(now):
            if max(self._courtesy, self._idle_courtesy) <= value:
                self._idle_courtesy = self._grown(max(self._courtesy, self._idle_courtesy))
        elif self._seen.effect is Effect.UNKNOWN:
            if self._seen.mixed_share < _FEW_MIXED:
                self._unknown_courtesy = min(1.0, self._unknown_courtesy * _GROWTH_BELOW_ONE)
        elif self._courtesy <= value and self._bears_more(now):
            before = self._courtesy
            self._courtesy = max(before, min(self._grown(before), max(1.0, self._ceiling)))
            if self._courtesy > max(1.0, before):
                self._forget_mixed(now)

    def _bears_more(self, now: float) -> bool:
        if self._ceiling_met >= _CEILING_ANSWERS and now - self._ceiling_at >= _CEILING_SECONDS:
            self._ceiling = self._most
        if self._seen.effect is Effect.HARMLESS:
            return self._courtesy < 1.0 or self._seen.bears_more
        is_little = self._courtesy < 1.0 and self._seen.mixed_share < _FEW_MIXED
        return self._seen.effect is Effect.HARMFUL and is_little

    def _grown(self, value: float) -> float:
        more = value + 1.0 if value >= 1.0 else min(1.0, value * _GROWTH_BELOW_ONE)
        return min(self._most, more)

    def _back_off(self, now: float, retry_after_seconds: float | None) -> None:
        wait = min(_MOST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0 ** min(self._refusals, 10))
        self._refusals += 1
        if retry_after_seconds is not None:
            wait = min(_MOST_RETRY_AFTER_SECONDS, max(0.0, retry_after_seconds))
        self.paused_until(now + wait)
        if now - self._halved_at >= self._line_seconds():
            self._halved_at = now
            self._capacity = max(self._floor, min(self._capacity, self.value) / 2)
