"""What the simulated provider keeps between requests, in one place.

It owns the four books and how they are opened: empty, or as a state file has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core.clock import Clock
from proxy.sim.deferred.batch_book import BatchBook
from proxy.sim.deferred.files import FileBook
from proxy.sim.deferred.response_book import ResponseBook
from proxy.sim.journal import Journal
from proxy.sim.memory import Memory
from proxy.sim.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Books:
    """Conversations, files, batches and stored responses of one provider. `clock` is the provider's."""

    conversations: Memory
    files: FileBook
    batches: BatchBook
    responses: ResponseBook
    clock: Clock


def open_books(scenario: Scenario, clock: Clock, journal: Journal) -> Books:
    """Return the books as `journal` has them. Conversations are not kept in it."""
    return Books(
        conversations=Memory(),
        files=FileBook(scenario.files, clock, journal),
        batches=BatchBook(scenario.batches, clock, journal),
        responses=ResponseBook(clock, journal),
        clock=clock,
    )
