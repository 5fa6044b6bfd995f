"""Many callers at once, each drawn from one seed, and what was seen of Weir meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.storm.callers import CALLERS, MOST_SECONDS, Asked, Caller, Seen
from tests.support.storm.upstream import FAULTS, KIND, OTHERS
from tests.support.storm.wire import Cut, Wire

KINDS = ("stream", "unary", "unread", "upload")


@dataclass
class Storm:
    """One run. `began(count)` is called as callers begin, so that a test can stir meanwhile."""

    address: tuple[str, int]
    seed: int
    callers: Sequence[Caller] = CALLERS
    kinds: Sequence[str] = KINDS
    faults: Sequence[str] = (*KIND, *FAULTS, *OTHERS)
    parallel: int = 40
    began: Callable[[int], None] = lambda count: None
    seen: Seen = field(default_factory=Seen)
    asked: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    async def run(self, count: int) -> None:
        """Let `count` callers do what they do; at most `parallel` at once."""
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                self.began(number)
                await self._call(number)

        await asyncio.gather(*(work() for _ in range(self.parallel)))

    async def _call(self, number: int) -> None:
        chance = random.Random(self.seed * 1_000_003 + number)
        caller = chance.choice(tuple(self.callers))
        self.counts[caller.__name__] += 1
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
            self.asked.append(trace)
            return Asked(
                kind or chance.choice(tuple(self.kinds)),
                fault or chance.choice(tuple(self.faults)),
                chance.randrange(2**32),
                trace,
            )

        return ask
