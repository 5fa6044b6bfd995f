"""All that `/sim/reset` forgets: counters, cache, limits, books, and the work that is still to be done.

It owns how these are put together and what of them a state file keeps.
"""

from __future__ import annotations

from proxy.core.clock import Clock
from proxy.sim.books import open_books
from proxy.sim.cache import PrefixCache
from proxy.sim.deferred.background_work import BackgroundWork
from proxy.sim.deferred.batch_work import BatchWork
from proxy.sim.deferred.flex import FlexCapacity
from proxy.sim.deferred.lines import LineRunner
from proxy.sim.faults import FaultBook
from proxy.sim.journal import Journal
from proxy.sim.limits import RateLimits
from proxy.sim.scenario import Scenario
from proxy.sim.slots import Slots
from proxy.sim.stats import Stats

_ARRIVALS = "arrivals"


class State:
    """What a provider knows beyond a single request."""

    def __init__(self, scenario: Scenario, clock: Clock, journal: Journal) -> None:
        self._journal = journal
        self.arrivals = max((entry.value["count"] for entry in journal.all_of(_ARRIVALS)), default=0)
        self.stats = Stats(journal)
        self.cache = PrefixCache(scenario.cache, clock)
        self.limits = RateLimits(scenario.limits, clock)
        self.slots = Slots(scenario.slots)
        self.flex = FlexCapacity(scenario.flex, scenario.seed)
        self.fault_book = FaultBook(scenario.faults, scenario.seed)
        self.books = open_books(scenario, clock, journal)
        lines = LineRunner(scenario, self.cache, self.stats)
        self._batch_work = BatchWork(scenario, self.books, lines)
        self._background_work = BackgroundWork(scenario, self.books, self.cache, self.stats)

    async def work_on(self) -> None:
        """Do what is due of batches and background responses."""
        await self._batch_work.advance()
        self._background_work.advance()
        self.commit()

    def retire(self) -> None:
        """End the work that is going on: another state takes over."""
        self.books.batches.abandon()

    def commit(self) -> None:
        """Let a state file have all that happened so far."""
        if self._journal.is_on:
            self._journal.put(_ARRIVALS, "", {"count": self.arrivals})
            self.stats.save()
            self._journal.commit()

    def snapshot(self) -> dict[str, object]:
        """Return what `/sim/stats` shows."""
        return {
            **self.stats.snapshot(),
            "in_work": self.slots.in_work,
            "queued": self.slots.queued,
            "most_in_work": self.slots.most_in_work,
            "most_queued": self.slots.most_queued,
            "flex": {"asked": self.flex.asked, "missed": self.flex.missed},
            "batches_created": self.books.batches.created,
            "batches": dict(self.books.batches.statuses()),
        }
