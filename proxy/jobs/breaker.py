"""A store that is gone must not be waited for: a circuit breaker around any store.

    closed     calls pass, each with a time limit
    open       after one failure: calls are refused at once, with the reason of that failure
    half open  when the pause is over one call passes as a probe; its success closes the breaker, its failure
               doubles the pause

Owns what is refused and when, and tells every change once: not each refused call. Errors that are answers
(`Conflict`, `LeaseLost`) are successes of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from proxy.core.clock import Clock, SystemClock
from proxy.jobs.changes import Accepted, BatchMove, Census, Committed, JobChange, JobQuery, Page, PoolSummary
from proxy.jobs.model import Answer, Batch, Booking, Group, Job, JobTier, Lease
from proxy.jobs.store import Conflict, JobStore, LeaseLost, StoreUnavailable

_T = TypeVar("_T")

CALLER_SECONDS = 1.0
"""How long a call may take that a caller waits for."""

WORKER_SECONDS = 30.0
"""How long a call of a worker may take: one may move 50,000 jobs."""


@dataclass(frozen=True, slots=True)
class Pause:
    """How long the breaker stays open: at first, and at most after failed probes. Seconds."""

    first: float = 1.0
    longest: float = 30.0


class Breaker:
    """The three states. `on_change` is called with (is it open, why) whenever it opens or closes.

    `refusals` counts calls that were refused at once.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        pause: Pause | None = None,
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._limits = pause or Pause()
        self._on_change = on_change
        self._pause_seconds = self._limits.first
        self._probe_at = 0.0
        self._is_probing = False
        self.is_open = False
        self.reason = ""
        self.refusals = 0

    async def call(self, ask: Callable[[], Awaitable[_T]], limit_seconds: float | None) -> _T:
        """Ask the store, unless it is known to be gone. Raises `StoreUnavailable` and what is an answer."""
        is_probe = self._admit()
        try:
            async with asyncio.timeout(limit_seconds):
                result = await ask()
        except (Conflict, LeaseLost):
            self._succeeded()
            raise
        except StoreUnavailable as error:
            self._failed(str(error), is_probe)
            raise
        except TimeoutError:
            self._failed(f"the job store has not answered within {limit_seconds:g} s", is_probe)
            raise StoreUnavailable(self.reason) from None
        except BaseException:
            # Cancelled, or a fault of the caller: it says nothing about the store.
            self._is_probing = self._is_probing and not is_probe
            raise
        self._succeeded()
        return result

    def _admit(self) -> bool:
        if not self.is_open:
            return False
        if self._is_probing or self._clock.monotonic() < self._probe_at:
            self.refusals += 1
            raise StoreUnavailable(f"{self.reason} (not asked again before it has recovered)")
        self._is_probing = True
        return True

    def _failed(self, reason: str, is_probe: bool) -> None:
        was_open = self.is_open
        self.is_open, self.reason = True, reason
        if is_probe:
            self._is_probing = False
            self._pause_seconds = min(self._pause_seconds * 2, self._limits.longest)
        if is_probe or not was_open:
            self._probe_at = self._clock.monotonic() + self._pause_seconds
        if not was_open and self._on_change is not None:
            self._on_change(True, reason)

    def _succeeded(self) -> None:
        if not self.is_open:
            return
        self.is_open, self._is_probing = False, False
        self._pause_seconds = self._limits.first
        if self._on_change is not None:
            self._on_change(False, self.reason)


class GuardedStore:
    """A `JobStore` behind a breaker. See `JobStore` for every method."""

    def __init__(
        self,
        store: JobStore,
        breaker: Breaker | None = None,
        *,
        caller_seconds: float = CALLER_SECONDS,
        worker_seconds: float = WORKER_SECONDS,
    ) -> None:
        self._store = store
        self.breaker = breaker or Breaker()
        self._caller_seconds = caller_seconds
        self._worker_seconds = worker_seconds

    async def _for_caller(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        return await self.breaker.call(ask, self._caller_seconds)

    async def _for_worker(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        return await self.breaker.call(ask, self._worker_seconds)

    async def open(self) -> None:
        """See `JobStore`. Not guarded: whoever starts wants to know."""
        await self._store.open()

    async def close(self) -> None:
        """See `JobStore`."""
        await self._store.close()

    async def warnings(self) -> tuple[str, ...]:
        """See `JobStore`."""
        return await self._for_worker(self._store.warnings)

    async def salt(self) -> bytes:
        """See `JobStore`."""
        return await self._for_caller(self._store.salt)

    async def accept(self, job: Job, body: bytes, *, attach: bool = True) -> Accepted:
        """See `JobStore`."""
        return await self._for_caller(lambda: self._store.accept(job, body, attach=attach))

    async def get(self, job_id: str, owner: str | None = None) -> Job | None:
        """See `JobStore`."""
        return await self._for_caller(lambda: self._store.get(job_id, owner))

    async def jobs(self, job_ids: Sequence[str]) -> tuple[Job, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.jobs(job_ids))

    async def bodies(self, job_ids: Sequence[str]) -> dict[str, bytes]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.bodies(job_ids))

    async def answer(self, job_id: str) -> Answer | None:
        """See `JobStore`."""
        return await self._for_caller(lambda: self._store.answer(job_id))

    async def list_jobs(self, query: JobQuery) -> Page:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.list_jobs(query))

    async def wait(self, job_id: str, timeout_seconds: float) -> Job | None:
        """See `JobStore`. Has its own limit."""
        return await self.breaker.call(lambda: self._store.wait(job_id, timeout_seconds), None)

    async def leave(self, job_id: str) -> None:
        """See `JobStore`."""
        await self._for_caller(lambda: self._store.leave(job_id))

    async def cancel(self, job_id: str, *, if_unwanted: bool = False) -> Job:
        """See `JobStore`."""
        return await self._for_caller(lambda: self._store.cancel(job_id, if_unwanted=if_unwanted))

    async def deliver(self, job_id: str) -> Job:
        """See `JobStore`."""
        return await self._for_caller(lambda: self._store.deliver(job_id))

    async def reset(self, job_id: str, *, tier: JobTier, due: float, deadline: float) -> Job:
        """See `JobStore`."""
        return await self._for_caller(
            lambda: self._store.reset(job_id, tier=tier, due=due, deadline=deadline)
        )

    async def delete(self, job_id: str) -> bool:
        """See `JobStore`."""
        return await self._for_caller(lambda: self._store.delete(job_id))

    async def claim_jobs(
        self, worker: str, lease_seconds: float, limit: int, tiers: frozenset[JobTier] | None = None
    ) -> tuple[Job, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.claim_jobs(worker, lease_seconds, limit, tiers))

    async def claim_job(self, job_id: str, worker: str, lease_seconds: float) -> Job | None:
        """See `JobStore`."""
        return await self._for_caller(lambda: self._store.claim_job(job_id, worker, lease_seconds))

    async def claim_batches(self, worker: str, lease_seconds: float, limit: int) -> tuple[Batch, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.claim_batches(worker, lease_seconds, limit))

    async def claim_role(self, role: str, worker: str, lease_seconds: float) -> Lease | None:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.claim_role(role, worker, lease_seconds))

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.renew(lease, lease_seconds))

    async def release(self, lease: Lease, due: float | None = None) -> None:
        """See `JobStore`."""
        await self._for_worker(lambda: self._store.release(lease, due))

    async def beats(self, worker: str, *, is_leaving: bool = False) -> Mapping[str, float]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.beats(worker, is_leaving=is_leaving))

    async def wait_for_work(self, timeout_seconds: float) -> bool:
        """See `JobStore`. Never refused: it only waits."""
        return await self._store.wait_for_work(timeout_seconds)

    async def commit_job(self, lease: Lease, change: JobChange) -> Job:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.commit_job(lease, change))

    async def claim_notices(
        self, worker: str, lease_seconds: float, limit: int, busy: frozenset[str] = frozenset()
    ) -> tuple[Job, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.claim_notices(worker, lease_seconds, limit, busy))

    async def noted(self, lease: Lease, due: float | None, note: str, *, is_try: bool) -> None:
        """See `JobStore`."""
        await self._for_worker(lambda: self._store.noted(lease, due, note, is_try=is_try))

    async def pools(self) -> tuple[PoolSummary, ...]:
        """See `JobStore`."""
        return await self._for_worker(self._store.pools)

    async def candidates(self, group: Group, limit: int) -> tuple[Job, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.candidates(group, limit))

    async def pack(
        self, batch: Batch, job_ids: Sequence[str], worker: str, lease_seconds: float
    ) -> Batch | None:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.pack(batch, job_ids, worker, lease_seconds))

    async def split(self, lease: Lease, parts: Sequence[tuple[Batch, Sequence[str]]]) -> tuple[Batch, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.split(lease, parts))

    async def batch(self, batch_id: str) -> Batch | None:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.batch(batch_id))

    async def batch_job_ids(self, batch_id: str, *, only_open: bool = False) -> tuple[str, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.batch_job_ids(batch_id, only_open=only_open))

    async def commit_batch(
        self, lease: Lease, move: BatchMove | None = None, changes: Sequence[JobChange] = ()
    ) -> Committed:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.commit_batch(lease, move, changes))

    async def book(self, booking: Booking) -> bool:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.book(booking))

    async def bookings(self, job_id: str) -> tuple[Booking, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.bookings(job_id))

    async def census(self) -> Census:
        """See `JobStore`."""
        return await self._for_worker(self._store.census)

    async def observe_completion(self, upstream: str, model: str, tier: JobTier, seconds: float) -> None:
        """See `JobStore`."""
        await self._for_worker(lambda: self._store.observe_completion(upstream, model, tier, seconds))

    async def completions(self, upstream: str, model: str, tier: JobTier) -> tuple[float, ...]:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.completions(upstream, model, tier))

    async def purge(self, limit: int = 1000) -> int:
        """See `JobStore`."""
        return await self._for_worker(lambda: self._store.purge(limit))
