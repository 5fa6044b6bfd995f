"""When a line may start at one upstream. Pure: times are given, in seconds of one clock.

Puts four things together, each of which has a module of its own:

    capacity    how many lines at once the upstream takes
    courtesy    how many of them are known to do interactive requests no harm
    budget      how many of these may meet more lines than that
    silence     when there are no interactive requests

Up to the trusted number lines start at any time; while there is no interactive traffic, up to the capacity.
Beyond that only as far as the budget goes: from that it is learnt what to trust, and work goes on all the
same. Where lines give way, they use every moment without a request and are cut off when one comes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from proxy.batch_server.budget import Budget
from proxy.batch_server.capacity import Capacity, LineEnd
from proxy.batch_server.courtesy import Courtesy
from proxy.batch_server.silence import Silence
from proxy.core.upstream import ServedBatchApi

_LEAST_WAIT_SECONDS = 0.02
_MOST_WAIT_SECONDS = 5.0
_HELD_SECONDS = 0.25


class Met(Enum):
    """Which lines an interactive request met."""

    NONE = "none"
    TRUSTED = "trusted"
    """No more than are known to do no harm."""
    UNPROVEN = "unproven"
    """More than that."""


@dataclass(frozen=True, slots=True)
class Encounter:
    """An interactive request in flight, as the limit wants to be told of its end."""

    account: int | None
    lines: int
    changes: int
    cut: int = 0
    """So many lines are to be cut off for it, at once."""


class Limit:
    """The limit for one upstream, whoever runs lines there. See `ServedBatchApi` for its settings."""

    def __init__(self, served: ServedBatchApi) -> None:
        self._give_way = served.give_way
        self._capacity = Capacity(served.max_in_flight)
        self._courtesy = Courtesy(served.max_in_flight)
        self._budget = Budget(served.may_meet)
        self._silence = Silence()
        self._most = _Most()
        self._is_filling = False

    def lines(self, now: float) -> int:
        """Return how many lines may be in flight whatever requests come; 0: only as the budget allows."""
        capacity = self._capacity.lines
        return capacity if self._silence.is_idle(now) else min(capacity, self._courtesy.trusted(now))

    def change(self, served: ServedBatchApi) -> None:
        """Follow other settings from now on; what is known stays known."""
        self._give_way = served.give_way
        self._capacity.widen(served.max_in_flight)
        self._courtesy.widen(served.max_in_flight)
        self._budget.share = served.may_meet

    # ---- lines

    def may_start(self, now: float, in_flight: int, is_protected: bool = False) -> float | None:
        """Tell whether a line may start: `None` now, else ask again after so many seconds.

        Asking again as soon as a line or an interactive request ends gets lines started sooner. One that
        `is_protected` is not cut off any more, whatever comes.
        """
        if pause := self._capacity.pause_seconds(now):
            return max(_LEAST_WAIT_SECONDS, pause)
        if in_flight >= self._capacity.lines:
            self._capacity.was_full(now)
            return min(_MOST_WAIT_SECONDS, max(_LEAST_WAIT_SECONDS, self._capacity.line_seconds))
        trusted = self._courtesy.trusted(now)
        if in_flight < trusted or self._silence.is_idle(now):
            return None
        if self._gives_way(now) and not is_protected and not self._silence.is_broken:
            return None
        are_met = in_flight > trusted and self._silence.is_broken
        if in_flight < self._courtesy.probed(self._capacity.lines) and self._may_be_met(now, are_met):
            return None
        self._capacity.was_held()
        return _HELD_SECONDS

    def line_started(self, now: float, in_flight: int) -> None:
        """Note a start; `in_flight` counts it."""
        self._capacity.line_started(now, in_flight)
        self._most.now(in_flight)
        if in_flight > (trusted := self._courtesy.trusted(now)):
            self._is_filling |= in_flight == trusted + 1
            self._budget.met(self._courtesy.price(in_flight))

    def line_ended(
        self,
        now: float,
        seconds: float,
        end: LineEnd,
        output_tokens: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Note the end of a line, which took `seconds`."""
        self._is_filling = False
        self._capacity.line_ended(now, seconds, end, output_tokens, retry_after_seconds)

    def _gives_way(self, now: float) -> bool:
        return self._give_way and self._courtesy.gives_way(now)

    def _may_be_met(self, now: float, are_met: bool) -> bool:
        """Tell whether requests may meet more lines than are trusted; `are_met`: some are met already."""
        if self._budget.is_in_debt:
            return False
        if are_met:
            # As many as are tried, once: more that come afterwards would be met by requests that come then.
            return self._is_filling and self._budget.untouched == 0
        return self._is_borne(now) or self._silence.will_last(now, self._capacity.line_seconds)

    def _is_borne(self, now: float) -> bool:
        self._budget.expect(self._silence.requests_during(now, self._capacity.line_seconds))
        return self._budget.bears(self._courtesy.price())

    # ---- interactive requests

    def interactive_started(self, now: float, lines: int, protected: int = 0) -> Encounter:
        """Note an interactive request that finds so many lines in flight, some of them `protected`."""
        self._silence.broken(now)
        trusted, cut = self._courtesy.trusted(now), 0
        if lines > trusted and self._gives_way(now):
            bearable = self._courtesy.probed(self._capacity.lines) if self._is_borne(now) else trusted
            cut = max(0, lines - max(bearable, protected))
        left = lines - cut
        account = self._budget.began(self._courtesy.price(left) if left > trusted else 0.0)
        return Encounter(account, left, self._most.changes, cut)

    def interactive_ended(
        self,
        now: float,
        encounter: Encounter,
        key: Hashable,
        seconds: float | None,
        token_seconds: float | None = None,
    ) -> Met:
        """Note its end; see `Courtesy.answered`. `seconds` is `None` for an answer that tells nothing."""
        self._silence.may_have_begun(now)
        is_untouched = self._budget.ended(encounter.account)
        lines = max(encounter.lines, self._most.since(encounter.changes))
        if seconds is not None:
            given_way = encounter.cut > 0
            wanted = self._courtesy.answered(now, key, seconds, token_seconds, lines, given_way)
            if wanted:
                self._budget.advance(wanted)
                self._capacity.try_out(self._courtesy.aim)
        if not is_untouched:
            return Met.UNPROVEN
        return Met.TRUSTED if lines else Met.NONE


class _Most:
    """The most lines that were in flight since a given start of one."""

    def __init__(self) -> None:
        self.changes = 0
        self._peaks: list[tuple[int, int]] = []

    def now(self, lines: int) -> None:
        """Note that so many are in flight, after a start."""
        while self._peaks and self._peaks[-1][1] <= lines:
            self._peaks.pop()
        self._peaks.append((self.changes, lines))
        self.changes += 1

    def since(self, change: int) -> int:
        """Return the most since then, 0 if no line has started."""
        return next((lines for at, lines in self._peaks if at >= change), 0)
