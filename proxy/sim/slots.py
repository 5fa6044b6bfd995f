"""Concurrency slots: how many requests are in work at once, and who waits.

It owns the queue, first come first served. A caller that leaves while it waits frees its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.sim.errors import failure
from proxy.sim.scenario import SlotRules


class Slots:
    """The slots of one provider, with the figures that `/sim/stats` shows."""

    def __init__(self, rules: SlotRules) -> None:
        self._max_queued = rules.max_queued
        self._free = asyncio.Semaphore(rules.concurrent) if rules.concurrent else None
        self.in_work = 0
        self.queued = 0
        self.most_in_work = 0
        self.most_queued = 0

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold a slot, waiting for it if need be. Raises ApiError (503) where the queue is full."""
        if self._free is not None:
            await self._wait_for(self._free)
        self.in_work += 1
        self.most_in_work = max(self.most_in_work, self.in_work)
        try:
            yield
        finally:
            self.in_work -= 1
            if self._free is not None:
                self._free.release()

    async def _wait_for(self, free: asyncio.Semaphore) -> None:
        if not free.locked():
            await free.acquire()
            return
        if self._max_queued is not None and self.queued >= self._max_queued:
            raise failure(503, "queue_full")
        self.queued += 1
        self.most_queued = max(self.most_queued, self.queued)
        try:
            await free.acquire()
        finally:
            self.queued -= 1
