"""A model server in simulated time, with interactive callers and lines that a limit lets in."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from proxy.batch_server.capacity import LineEnd
from proxy.batch_server.limit import Encounter, Limit, Met

STEP_SECONDS = 0.02
MOST_CUTS = 3


@dataclass(slots=True, eq=False)
class Work:
    """A request in flight: what is left of it, when it began, and what the limit knows it by.

    `cuts`: how often a line was cut off before.
    """

    left: float
    began: float
    encounter: Encounter | None = None
    cuts: int = 0

    @property
    def is_protected(self) -> bool:
        """Whether a line is not cut off any more."""
        return self.cuts >= MOST_CUTS


@dataclass(slots=True)
class Outcome:
    """What a run came to. `latencies` are the interactive ones, `done_at` the ends of lines.

    `met` is what the limit says of the interactive ones.
    """

    latencies: list[float] = field(default_factory=list)
    met: list[Met] = field(default_factory=list)
    done_at: list[float] = field(default_factory=list)
    most_in_flight: int = 0

    def p95(self, after: float = 0.0) -> float:
        """Return the 95th percentile of the latencies from a share of them on."""
        kept = sorted(self.latencies[int(len(self.latencies) * after) :])
        return kept[int(0.95 * (len(kept) - 1))]


@dataclass(slots=True)
class SharedServer:
    """`slots` requests run at full speed; more share it. Lines are endless; both kinds of work vary."""

    limit: Limit | None
    slots: float = 1.0
    line_seconds: float = 0.5
    interactive_seconds: float = 0.4
    gap_seconds: float = 1.0
    is_regular: bool = False
    interactive_until: float = 1e9
    seed: int = 1

    def run(self, run_seconds: float) -> Outcome:
        """Run for a while."""
        # Traffic is the same whatever lines there are.
        rng, line_rng = random.Random(self.seed), random.Random(self.seed + 1)
        told = Outcome()
        interactive: list[Work] = []
        lines: list[Work] = []
        cut: list[Work] = []
        now = 1000.0
        end = now + run_seconds
        next_request = now + self.gap_seconds
        ask_at = now
        while now < end:
            if now >= next_request and now < 1000.0 + self.interactive_until:
                seconds = self.interactive_seconds * rng.uniform(0.7, 1.3)
                encounter = None
                if self.limit is not None:
                    free = [each for each in lines if not each.is_protected]
                    protected = len(lines) - len(free)
                    encounter = self.limit.interactive_started(now, len(lines), protected)
                    given_way = free[len(free) - encounter.cut :]
                    lines = [each for each in lines if each not in given_way]
                    cut += given_way
                interactive.append(Work(seconds, now, encounter))
                gap = self.gap_seconds if self.is_regular else rng.expovariate(1 / self.gap_seconds)
                next_request = now + gap
            if self.limit is not None and now >= ask_at:
                ask_at = self._let_in(now, lines, cut, line_rng, told)
            speed = min(1.0, self.slots / max(1, len(lines) + len(interactive)))
            for work in (*interactive, *lines):
                work.left -= STEP_SECONDS * speed
            now += STEP_SECONDS
            answered = [each for each in interactive if each.left <= 0]
            interactive = [each for each in interactive if each.left > 0]
            finished = [each for each in lines if each.left <= 0]
            lines = [each for each in lines if each.left > 0]
            told.latencies += [now - each.began for each in answered]
            told.done_at += [now] * len(finished)
            if self.limit is not None:
                for each in answered:
                    assert each.encounter is not None
                    told.met.append(self.limit.interactive_ended(now, each.encounter, "m", now - each.began))
                for each in finished:
                    self.limit.line_ended(now, now - each.began, LineEnd.ANSWERED)
            ask_at = now if answered or finished else ask_at
        return told

    def _let_in(
        self, now: float, lines: list[Work], cut: list[Work], rng: random.Random, told: Outcome
    ) -> float:
        """Start what may; protected ones beside the others, as the gate does."""
        assert self.limit is not None
        waits = []
        for are_protected in (True, False):
            while True:
                again = next((each for each in cut if (each.cuts + 1 >= MOST_CUTS) is are_protected), None)
                if are_protected and again is None:
                    break
                wait = self.limit.may_start(now, len(lines), are_protected)
                if wait is not None:
                    waits.append(now + wait)
                    break
                if again is not None:
                    cut.remove(again)
                cuts = 0 if again is None else again.cuts + 1
                lines.append(Work(self.line_seconds * rng.uniform(0.7, 1.3), now, cuts=cuts))
                self.limit.line_started(now, len(lines))
                told.most_in_flight = max(told.most_in_flight, len(lines))
        return min(waits)
