"""Who waits in this process: for the end of a job, or for work.

Owns the futures, nothing else: a store tells it what has ended, and asks it for whom to look elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from proxy.jobs.model import Job


class Waiting:
    """The waiters of one store in one event loop."""

    def __init__(self) -> None:
        self._for_jobs: dict[str, set[asyncio.Future[None]]] = {}
        self._for_work: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._for_jobs) + len(self._for_work)

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Jobs that somebody waits for."""
        return tuple(self._for_jobs)

    def expect(self, job_id: str) -> asyncio.Future[None]:
        """Return a future that `ended` resolves: taken before one looks at the job, and always forgotten."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_jobs.setdefault(job_id, set()).add(future)
        return future

    def forget(self, job_id: str, future: asyncio.Future[None]) -> None:
        """Take a future of `expect` back."""
        future.cancel()
        waiting = self._for_jobs.get(job_id)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._for_jobs[job_id]

    def ended(self, job_ids: Iterable[str]) -> None:
        """Wake those who wait for one of these jobs."""
        for job_id in job_ids:
            for future in self._for_jobs.get(job_id, ()):
                if not future.done():
                    future.set_result(None)

    def has_work(self) -> None:
        """Wake those who wait for work."""
        for future in self._for_work:
            if not future.done():
                future.set_result(None)

    async def until_ended(
        self,
        job_id: str,
        look: Callable[[], Awaitable[Job | None]],
        timeout_seconds: float,
        recheck_seconds: float,
    ) -> Job | None:
        """Look at a job until it has ended or is gone, or the time is over, and return what was seen last.

        Looks when the job is said to have ended, and every `recheck_seconds`: word may get lost.
        """
        loop = asyncio.get_running_loop()
        over = loop.time() + timeout_seconds
        while True:
            future = self.expect(job_id)
            try:
                job = await look()
                left = over - loop.time()
                if job is None or not job.is_live or left <= 0:
                    return job
                await asyncio.wait((future,), timeout=min(left, recheck_seconds))
            finally:
                self.forget(job_id, future)

    async def work(self, timeout_seconds: float) -> bool:
        """Wait for `has_work`; False when the time is over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_work.add(future)
        try:
            done, _ = await asyncio.wait((future,), timeout=max(0.0, timeout_seconds))
            return bool(done)
        finally:
            self._for_work.discard(future)
