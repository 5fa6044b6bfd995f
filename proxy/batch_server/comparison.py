"""What lines do to interactive answers, told from those that met lines and those that did not. Pure.

Answers are compared with their own kind. Against two quantiles of the clean ones it is counted how many are
slower by more than a tenth: the median tells a general slowness from little, the 95th percentile shows what
is rare. An effect is harmful where more of the others are slower than of the clean ones, and than chance
explains.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

_SLOWER = 1.1
"""Interactive answers may take so many times longer while lines run."""

_UNFELT_SECONDS = 0.002
"""What nobody feels, and timers of a busy machine are off by: of the pace of a stream it may be a tenth."""

_QUANTILES = (0.5, 0.95)
_LEAST_SHARE = 0.05
"""So many are taken to be slower by themselves, though fewer were among the clean ones that are known."""

LEAST_CLEAN = 20
_CLEAN_KEPT = 200
_MET_KEPT = 200
_REMEMBERED_SECONDS = 900.0
_KINDS = 64


class Effect(Enum):
    """What lines do to interactive answers."""

    UNKNOWN = "unknown"
    HARMLESS = "harmless"
    HARMFUL = "harmful"


class Sample:
    """Answers that met lines, by kind: the latest. `added`: so many were noted, whatever was forgotten."""

    def __init__(self) -> None:
        self.kinds: dict[Hashable, deque[float]] = {}
        self.added = 0

    def add(self, key: Hashable, seconds: float) -> None:
        """Note a time of an answer."""
        known = self.kinds.get(key)
        if known is None:
            known = self.kinds[key] = deque(maxlen=_MET_KEPT)
        known.append(seconds)
        self.added += 1

    @property
    def size(self) -> int:
        """Return how many are kept."""
        return sum(map(len, self.kinds.values()))

    def clear(self) -> None:
        """Forget all."""
        self.kinds.clear()


class Baseline:
    """The clean answers of one upstream: what is usual without lines. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, deque[tuple[float, float]]] = OrderedDict()

    def add(self, now: float, key: Hashable, seconds: float) -> None:
        """Note a time of an answer that met no line."""
        clean = self._kinds.get(key)
        if clean is None:
            clean = self._kinds[key] = deque(maxlen=_CLEAN_KEPT)
            if len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        clean.append((now, seconds))

    def answers(self, now: float) -> int:
        """Return how many answers of the last quarter of an hour the best known kind has."""
        for clean in self._kinds.values():
            while clean and clean[0][0] < now - _REMEMBERED_SECONDS:
                clean.popleft()
        return max(map(len, self._kinds.values()), default=0)

    def knows(self, key: Hashable) -> bool:
        """Tell whether answers of this kind can be compared with anything."""
        clean = self._kinds.get(key)
        return clean is not None and len(clean) >= LEAST_CLEAN

    def late(self, met: Sample) -> int:
        """Return how many of these are slower than nearly all that met no line."""
        return sum(kind.slower for kind in self._compared(met, _QUANTILES[-1]))

    def judge(self, met: Sample, least: int, deviations: float) -> Effect:
        """Judge answers that met lines; `UNKNOWN` for fewer than `least`.

        deviations   so many standard deviations are given to chance
        """
        compared = [self._compared(met, quantile) for quantile in _QUANTILES]
        if sum(kind.count for kind in compared[0]) < least:
            return Effect.UNKNOWN
        for kinds in compared:
            # Each kind by itself, and all together: many kinds may have few answers each.
            if any(kind.is_more(least, deviations) for kind in (*kinds, _together(kinds))):
                return Effect.HARMFUL
        return Effect.HARMLESS

    def _compared(self, met: Sample, quantile: float) -> list[_Compared]:
        found = []
        for key, times in met.kinds.items():
            if self.knows(key):
                threshold, share = _threshold([seconds for _, seconds in self._kinds[key]], quantile)
                slower = sum(seconds > threshold for seconds in times)
                found.append(_Compared(slower, len(times), share * len(times)))
        return found


@dataclass(frozen=True, slots=True)
class _Compared:
    """So many of `count` answers were slower than is usual; so many were to be expected."""

    slower: int
    count: int
    expected: float

    def is_more(self, least: int, deviations: float) -> bool:
        """Tell whether more of them, `least` at any rate, were slower than chance explains."""
        share = self.expected / max(1, self.count)
        by_chance = deviations * math.sqrt(share * (1 - share) * self.count)
        return self.count >= least and self.slower > self.expected + by_chance


def _together(kinds: Sequence[_Compared]) -> _Compared:
    return _Compared(
        sum(kind.slower for kind in kinds),
        sum(kind.count for kind in kinds),
        sum(kind.expected for kind in kinds),
    )


def _threshold(clean: Sequence[float], quantile: float) -> tuple[float, float]:
    """Return what counts as slower than the clean ones' quantile, and which share of all may be so anyway.

    The fewer there are, the less is known of either.
    """
    ordered = sorted(clean)
    usual = ordered[math.ceil(quantile * len(ordered)) - 1]
    threshold = max(usual * _SLOWER, usual + _UNFELT_SECONDS)
    share = sum(seconds > threshold for seconds in ordered) / len(ordered)
    return threshold, min(0.9, max(_LEAST_SHARE, share + (1.0 - quantile) / math.sqrt(len(ordered))))
