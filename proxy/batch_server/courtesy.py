"""What lines do to interactive traffic at the same upstream, and when they had better wait. Pure.

Owns the comparison of interactive answers that met a line with those that did not, by kind of request, and
the moments at which a line would meet one. Refuses to know how many lines there are: `limit` does.

    harmful     of the answers that met a line more are slower than the clean ones' 90th percentile by a tenth
                than a tenth of them, and more than chance explains
    harmless    there are enough of both, and they are not
    unknown     neither is known, or no clean answer of the last quarter of an hour is left to compare with

What has been harmful is taken for it until it is known to be harmless: lines that keep away tell nothing new.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from enum import Enum

SLOWER = 1.1
"""Interactive answers may take so many times longer while lines run."""

_UNFELT_SECONDS = 0.002
"""What nobody feels, and timers of a busy machine are off by: of the pace of a stream it may be a tenth."""

_SHARE_ABOVE = 0.1
_CHANCE = 2.0
"""Standard deviations that chance is given: one harmless upstream in forty is taken for a harmful one."""

_LEAST_CLEAN = 5
_LEAST_MIXED = 3
"""Every answer that it takes to find harm out is one that suffered it."""

_PROOF_ANSWERS = 10
_CLEAN_KEPT = 200
_MIXED_KEPT = 50
_RECENT_ANSWERS = 100
_REMEMBERED_SECONDS = 900.0
_KINDS = 64

_GAPS_KEPT = 100
_LEAST_GAPS = 8
_LEAST_IDLE_SECONDS = 5.0
_MOST_IDLE_SECONDS = 120.0
_UNKNOWN_IDLE_SECONDS = 15.0
_GAPS_UNTIL_IDLE = 2.0
_LIKELY = 0.5


class Effect(Enum):
    """What lines do to interactive answers."""

    UNKNOWN = "unknown"
    HARMLESS = "harmless"
    HARMFUL = "harmful"


class _Kind:
    """Times of answers of one kind, as (when it ended, seconds)."""

    __slots__ = ("clean", "mixed")

    def __init__(self) -> None:
        self.clean: deque[tuple[float, float]] = deque(maxlen=_CLEAN_KEPT)
        self.mixed: deque[tuple[float, float]] = deque(maxlen=_MIXED_KEPT)

    def effect(self, now: float) -> Effect:
        for answers in (self.clean, self.mixed):
            while answers and answers[0][0] < now - _REMEMBERED_SECONDS:
                answers.popleft()
        if len(self.clean) < _LEAST_CLEAN or len(self.mixed) < _LEAST_MIXED:
            return Effect.UNKNOWN
        clean = sorted(seconds for _, seconds in self.clean)
        usual = clean[math.ceil(0.9 * len(clean)) - 1]
        slow = max(usual * SLOWER, usual + _UNFELT_SECONDS)
        count = len(self.mixed)
        share = sum(seconds > slow for _, seconds in self.mixed) / count
        chance = _CHANCE * math.sqrt(_SHARE_ABOVE * (1 - _SHARE_ABOVE) / count)
        return Effect.HARMFUL if share > _SHARE_ABOVE + chance else Effect.HARMLESS


class Courtesy:
    """What is known of the interactive traffic at one upstream. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._recent: deque[bool] = deque(maxlen=_RECENT_ANSWERS)
        self._effect = Effect.UNKNOWN
        self._met = 0
        self._is_fresh = False
        self._gaps: deque[float] = deque(maxlen=_GAPS_KEPT)
        self._open = 0
        self._last: float | None = None

    @property
    def effect(self) -> Effect:
        """Return what lines do to interactive answers, as of the last of these."""
        return self._effect

    @property
    def bears_more(self) -> bool:
        """Whether answers enough have met the present number of lines unharmed, since `forget_mixed`."""
        return self._is_fresh and self._effect is Effect.HARMLESS and self._met >= _PROOF_ANSWERS

    @property
    def mixed_share(self) -> float:
        """Return which share of the last hundred interactive answers met a line."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def started(self, now: float) -> None:
        """Note that an interactive request began."""
        if self._open == 0 and self._last is not None:
            self._gaps.append(max(0.0, now - self._last))
        self._open += 1
        self._last = now

    def noticed(self, now: float, in_flight: int) -> None:
        """Note how many interactive requests are in flight, as whoever counts them says."""
        self._open = in_flight
        if in_flight:
            self._last = now

    def ended(
        self, now: float, key: Hashable, seconds: float, was_mixed: bool, is_settled: bool = True
    ) -> None:
        """Note an interactive answer; one that is not `is_settled` met other numbers of lines than now."""
        self._open = max(0, self._open - 1)
        self._last = now
        self._recent.append(was_mixed)
        self._met += was_mixed and is_settled
        self.compare(now, key, seconds, was_mixed, is_settled)

    def compare(self, now: float, key: Hashable, seconds: float, was_mixed: bool, is_settled: bool) -> None:
        """Note a time of an answer, among those of its kind, and judge anew what lines do."""
        if was_mixed and not is_settled:
            return
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
            if len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        (kind.mixed if was_mixed else kind.clean).append((now, seconds))
        self._judge(now)

    def forget_mixed(self) -> None:
        """Begin anew with answers that met lines: there are fewer or more lines now. The judgment stays."""
        self._met = 0
        self._is_fresh = False
        for kind in self._kinds.values():
            kind.mixed.clear()

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

    def had_better_wait(self, now: float, line_seconds: float) -> bool:
        """Tell whether a line of so many seconds may harm: it meets a request, or is likely to."""
        if self._effect is Effect.HARMLESS or self.is_idle(now) or self._last is None:
            return False
        if self._open:
            return True
        elapsed = now - self._last
        longer = [gap for gap in self._gaps if gap > elapsed]
        if len(self._gaps) < _LEAST_GAPS or not longer:
            return False
        return sum(gap <= elapsed + line_seconds for gap in longer) > _LIKELY * len(longer)

    def _judge(self, now: float) -> None:
        effects = {kind.effect(now) for kind in self._kinds.values()}
        for effect in (Effect.HARMFUL, Effect.HARMLESS):
            if effect in effects:
                self._effect = effect
                self._is_fresh = True
                return
        self._is_fresh = False
        has_clean = any(len(kind.clean) >= _LEAST_CLEAN for kind in self._kinds.values())
        if self._effect is Effect.HARMLESS and not has_clean:
            # All answers meet lines: what is usual without them has to be learnt again.
            self._effect = Effect.UNKNOWN
