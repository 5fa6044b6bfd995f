"""Many callers at once, each drawn from one seed, and what was seen of Weir meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.storm.callers import CALLERS, MOST_SECONDS, Asked, Caller, Seen
from tests.support.storm.upstream import FAULTS, KIND
from tests.support.storm.wire import Cut, Wire

TICK_SECONDS = 0.05
MOST_PAUSE_SECONDS = 0.25
KINDS = ("stream", "unary", "unread", "upload")


@dataclass
class Storm:
    """One run. `began(count)` is called as callers begin, so that a test can stir meanwhile."""

    address: tuple[str, int]
    seed: int
    callers: Sequence[Caller] = CALLERS
    kinds: Sequence[str] = KINDS
    upstream_faults: Sequence[str] = (*KIND, *FAULTS, "refusal", "whole_then_reset")
    parallel: int = 50
    began: Callable[[int], None] = lambda count: None
    seen: Seen = field(default_factory=Seen)
    asked: dict[str, Asked] = field(default_factory=dict)
    longest_pause_seconds: float = 0.0

    @property
    def faults(self) -> list[str]:
        """What was wrong with what callers saw, on a machine that kept running."""
        was_awake = self.longest_pause_seconds < MOST_PAUSE_SECONDS
        return self.seen.faults + (self.seen.late if was_awake else [])

    async def run(self, count: int) -> None:
        """Let `count` callers do what they do; at most `parallel` at once."""
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                self.began(number)
                await self._call(number)

        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            await asyncio.gather(*(work() for _ in range(self.parallel)))
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        """Note how long this process did not run at all."""
        while True:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.longest_pause_seconds = max(self.longest_pause_seconds, time.monotonic() - due)

    async def _call(self, number: int) -> None:
        chance = random.Random(self.seed * 1_000_003 + number)
        caller = chance.choice(tuple(self.callers))
        wire = Wire(*await asyncio.open_connection(*self.address))
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await caller(wire, self.seen, chance, self._ask(chance, number))
        except TimeoutError:
            self.seen.faults.append(f"caller {number} {caller.__name__} was never answered")
        except (Cut, OSError):
            pass
        finally:
            await wire.close()

    def _ask(self, chance: random.Random, number: int) -> Callable[..., Asked]:
        def ask(kind: str | None = None, fault: str | None = None) -> Asked:
            trace = f"00-{number:016x}{len(self.asked):016x}-{number:016x}-01"
            asked = self.asked[trace] = Asked(
                kind or chance.choice(tuple(self.kinds)),
                fault or chance.choice(tuple(self.upstream_faults)),
                chance.randrange(2**32),
                trace,
            )
            return asked

        return ask
