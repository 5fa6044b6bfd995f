"""How many lines interactive traffic at the same upstream bears. Pure: times are seconds of one clock.

    trusted     so many lines at once are known to do no harm, 0 at first
    probed      so many are being tried out: 2 at first, then ever more, or half-way back after harm
    gives way   lines that are cut off for a request do it no harm, or that is not known yet

Owns what makes a number trusted, and what takes the trust away. Refuses to know how often more than the
trusted number may be met: `budget` does.
"""

from __future__ import annotations

from collections.abc import Hashable

from proxy.batch_server.comparison import LEAST_CLEAN, Baseline, Effect, Sample

_FIRST_PROBED = 2
_PROBE_GROWTH = 4

_FIRST_LOOK_ANSWERS = 6
_PROOF_ANSWERS = 48
"""Answers among as many lines as are probed until these are judged, first and, each time after twice as many,
to be trusted. The more do no harm, the less of it is to be reckoned with."""

_MOST_PROOF_ANSWERS = 192
"""Each trust that was a mistake doubles the proof that is wanted, each that is new halves it."""

_LOOK_DEVIATIONS = 2.0

_ADVANCED_ANSWERS = 5
"""So many may be tried at once, for a beginning and after each success: of two hundred answers these, the one
that the budget saves and its share of them leave the 95th percentile where it is."""

_ALARM_ANSWERS = 10
_ALARM_EVERY = 5
_ALARM_DEVIATIONS = 4.0
"""What is trusted is judged again and again: what looks so often sees much by chance."""

_REVIEW_EVERY = 100
_REVIEW_DEVIATIONS = 2.5
"""Now and then it is looked at more closely, for little harm to many or harm to few."""

_ENOUGH_CLEAN = LEAST_CLEAN + 10
_REST_SECONDS = 60.0
_REST_EVERY_SECONDS = 900.0
_NO_WAY_SECONDS = 3600.0

_PACE_TOKENS = 32
"""Paces are compared as the time that so many tokens take: what nobody feels of one is felt of an answer."""


class _Measure:
    """One figure of answers: without lines, after some were cut off, among the trusted number, among more."""

    __slots__ = ("baseline", "cut", "probed", "trusted")

    def __init__(self) -> None:
        self.baseline = Baseline()
        self.cut = Sample()
        self.trusted = Sample()
        self.probed = Sample()


class Courtesy:
    """What is known about lines beside the interactive traffic of one upstream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._trusted = 0
        self._probed = min(_FIRST_PROBED, most)
        self._tried = 0
        self._proof = _PROOF_ANSWERS
        self._next_look = _FIRST_LOOK_ANSWERS
        self._is_comparing = False
        self._late = 0
        self._rests_until = 0.0
        self._next_rest = 0.0
        self._no_way_until = 0.0
        self._waits = _Measure()
        self._paces = _Measure()

    def gives_way(self, now: float) -> bool:
        """Tell whether lines may be cut off for requests: not for an hour after that has done harm."""
        return now >= self._no_way_until

    def trusted(self, now: float) -> int:
        """Return how many lines may be in flight whatever requests come.

        None, for a while, when there is nothing left to compare with: all requests met lines.
        """
        return 0 if now < self._rests_until else self._trusted

    @property
    def aim(self) -> int:
        """Return how many lines are to be tried out where the upstream takes them."""
        return self._probed

    def price(self, lines: int = 0) -> float:
        """Return what harm is to be reckoned with where a request meets so many lines, more than are trusted.

        From 0 to 1; without a number that of as many as are probed.
        """
        if lines > self._tried:
            return 1.0
        # Fewer have done none.
        at_first = 0.5 if self._trusted else 1.0
        answers = self._waits.probed.size
        if answers < _FIRST_LOOK_ANSWERS:
            return at_first
        # More than this share of them is late in few cases.
        return at_first * min(1.0, (self._late + 2) / (answers + 4))

    def probed(self, capacity: int) -> int:
        """Return how many lines are tried out at an upstream that takes `capacity` at once."""
        tried = min(self._probed, capacity)
        if tried != self._tried:
            self._tried = tried
            self._forget_probes()
        return max(tried, self._trusted)

    def widen(self, most: int) -> None:
        """Allow so many lines at most from now on."""
        self._most = most
        self._trusted = min(self._trusted, most)
        self._probed = max(min(self._probed, most), min(self._trusted + 1, most))

    def answered(
        self,
        now: float,
        key: Hashable,
        seconds: float,
        token_seconds: float | None,
        lines: int,
        was_given_way: bool = False,
    ) -> int:
        """Note a good interactive answer; return how many more answers would tell something new at once.

        key             of what is alike: API, model, whether it was a stream
        seconds         until it began
        token_seconds   from one token to the next, where that is known: lines may slow that down alone
        lines           the most that were in flight at any time meanwhile
        was_given_way   lines were cut off when it began
        """
        figures = [(self._waits, seconds)]
        if token_seconds is not None:
            figures.append((self._paces, token_seconds * _PACE_TOKENS))
        is_trusted = lines <= self._trusted
        for measure, figure in figures:
            if was_given_way and is_trusted:
                measure.cut.add(key, figure)
            elif not lines:
                measure.baseline.add(now, key, figure)
            elif is_trusted:
                measure.trusted.add(key, figure)
            elif lines == self._tried:
                measure.probed.add(key, figure)
        if lines == self._tried and not is_trusted:
            self._late = max(measure.baseline.late(measure.probed) for measure in (self._waits, self._paces))
        if was_given_way and is_trusted:
            self._watch_cuts(now)
        elif lines and is_trusted:
            self._watch_trusted()
        if self._trusted:
            self._rest_or_not(now)
        return self._wanted(now) if lines == 0 or not is_trusted else 0

    def _wanted(self, now: float) -> int:
        """Return what it takes to decide, as soon as that is worth while: once for each number tried."""
        if not self._is_comparing:
            self._is_comparing = self._waits.baseline.answers(now) >= LEAST_CLEAN
            return _ADVANCED_ANSWERS if self._is_comparing else 0
        return _ADVANCED_ANSWERS if self._waits.probed.size >= self._next_look and self._decide() else 0

    def _rest_or_not(self, now: float) -> None:
        clean = self._waits.baseline.answers(now)
        if now < self._rests_until:
            if clean >= _ENOUGH_CLEAN:
                self._rests_until = now
        elif clean < LEAST_CLEAN and now >= self._next_rest:
            self._rests_until = now + _REST_SECONDS
            self._next_rest = now + _REST_EVERY_SECONDS

    def _is_alarming(self, waits: Sample, paces: Sample) -> bool:
        """Tell whether something that is done all the time does harm; called after each answer."""
        if waits.added % _ALARM_EVERY:
            return False
        is_review = waits.added % _REVIEW_EVERY == 0
        deviations = _REVIEW_DEVIATIONS if is_review else _ALARM_DEVIATIONS
        return Effect.HARMFUL in (
            measure.baseline.judge(sample, _ALARM_ANSWERS, deviations)
            for measure, sample in ((self._waits, waits), (self._paces, paces))
        )

    def _watch_trusted(self) -> None:
        if self._is_alarming(self._waits.trusted, self._paces.trusted):
            refuted, self._trusted = self._trusted, self._trusted // 2
            self._proof = min(_MOST_PROOF_ANSWERS, self._proof * 2)
            self._doubt(refuted)

    def _watch_cuts(self, now: float) -> None:
        if self._is_alarming(self._waits.cut, self._paces.cut):
            self._no_way_until = now + _NO_WAY_SECONDS
            for measure in (self._waits, self._paces):
                measure.cut.clear()

    def _decide(self) -> bool:
        """Judge what is probed; tell whether more is to be tried now."""
        waits, paces = (
            measure.baseline.judge(measure.probed, _FIRST_LOOK_ANSWERS, _LOOK_DEVIATIONS)
            for measure in (self._waits, self._paces)
        )
        if Effect.HARMFUL in (waits, paces):
            self._doubt(self._tried)
        elif waits is Effect.HARMLESS and self._next_look < self._proof:
            self._next_look *= 2
        elif waits is Effect.HARMLESS:
            self._trusted = max(self._trusted, self._tried)
            self._probed = min(self._most, max(self._probed, self._trusted * _PROBE_GROWTH))
            self._proof = max(_PROOF_ANSWERS, self._proof // 2)
            self._forget_all()
            return True
        return False

    def _doubt(self, refuted: int) -> None:
        """Try fewer lines than those that did harm."""
        self._probed = min(self._most, max(self._trusted + 1, (self._trusted + refuted) // 2))
        self._forget_all()

    def _forget_all(self) -> None:
        for measure in (self._waits, self._paces):
            measure.trusted.clear()
        self._forget_probes()

    def _forget_probes(self) -> None:
        self._next_look = _FIRST_LOOK_ANSWERS
        self._late = 0
        for measure in (self._waits, self._paces):
            measure.probed.clear()
