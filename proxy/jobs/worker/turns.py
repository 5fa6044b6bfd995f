"""Who may call an upstream now: as many single calls at once as its `max_connections` says, of each tier.

Direct and flex calls are counted apart: a rescue must not wait for the very call that it is to overtake. The
data path's connections are not counted; they are its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.jobs.model import JobTier


class Turns:
    """The turns of one worker."""

    def __init__(self) -> None:
        self._gates: dict[tuple[str, JobTier, int], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def turn(
        self, upstream: str, tier: JobTier, most: int, timeout_seconds: float
    ) -> AsyncIterator[None]:
        """Wait until fewer than `most` others (0: any number) call. Raises `TimeoutError`."""
        if most <= 0:
            yield
            return
        gate = self._gates.setdefault((upstream, tier, most), asyncio.Semaphore(most))
        async with asyncio.timeout(max(0.0, timeout_seconds)):
            await gate.acquire()
        try:
            yield
        finally:
            gate.release()
