"""The port over tables in this process: every method is one piece of work at a desk.

Owns waiting and the translation of the port's methods. Where a piece of work runs (here, in a thread, in a
transaction) says the store that derives from it.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from proxy.core.clock import Clock
from proxy.jobs.changes import (
    Accepted,
    BatchMove,
    Census,
    Committed,
    JobChange,
    JobQuery,
    Page,
    PoolSummary,
)
from proxy.jobs.local import batches, callers, leases
from proxy.jobs.local.tables import Desk
from proxy.jobs.model import Answer, Batch, Booking, Group, Job, JobTier, Lease
from proxy.jobs.stepping import changes_in_steps, in_steps, joined
from proxy.jobs.waiting import Waiting

_T = TypeVar("_T")

RECHECK_SECONDS = 30.0
"""How often a waiter looks for itself."""


class LocalStore(ABC):
    """A `JobStore` over `Tables`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting = Waiting()

    @abstractmethod
    async def _work(self, piece: Callable[[Desk], _T]) -> _T:
        """Do a piece of work in one atomic and durable step, then `_tell` what came of it."""

    async def _look(self, piece: Callable[[Desk], _T]) -> _T:
        """Do a piece of work that writes nothing."""
        return await self._work(piece)

    def _watch(self) -> None:  # noqa: B027 - only where other processes write is there anything to watch
        """See to it that waiters learn what other processes did; called when somebody begins to wait."""

    def _tell(self, desk: Desk) -> None:
        self._waiting.ended(desk.ended)
        if desk.has_work:
            self._waiting.has_work()

    async def salt(self) -> bytes:
        """See `JobStore`."""
        return await self._work(lambda desk: desk.tables.salt(secrets.token_bytes(32)))

    # ---- callers

    async def accept(self, job: Job, body: bytes, *, attach: bool = True) -> Accepted:
        """See `JobStore`."""
        return await self._work(lambda desk: callers.accept(desk, job, body, attach))

    async def get(self, job_id: str, owner: str | None = None) -> Job | None:
        """See `JobStore`."""
        job = await self._look(lambda desk: desk.tables.job(job_id))
        return job if job is not None and owner in (None, job.owner) else None

    async def jobs(self, job_ids: Sequence[str]) -> tuple[Job, ...]:
        """See `JobStore`."""

        def find(desk: Desk) -> tuple[Job, ...]:
            return tuple(job for job_id in job_ids if (job := desk.tables.job(job_id)) is not None)

        return await self._look(find)

    async def bodies(self, job_ids: Sequence[str]) -> dict[str, bytes]:
        """See `JobStore`."""

        def find(desk: Desk) -> dict[str, bytes]:
            found = {job_id: desk.tables.body(job_id) for job_id in job_ids}
            return {job_id: body for job_id, body in found.items() if body is not None}

        return await self._look(find)

    async def answer(self, job_id: str) -> Answer | None:
        """See `JobStore`."""
        return await self._look(lambda desk: desk.tables.answer(job_id))

    async def list_jobs(self, query: JobQuery) -> Page:
        """See `JobStore`."""
        return await self._look(lambda desk: desk.tables.list_jobs(query))

    async def wait(self, job_id: str, timeout_seconds: float) -> Job | None:
        """See `JobStore`."""
        self._watch()
        return await self._waiting.until_ended(
            job_id, lambda: self.get(job_id), timeout_seconds, RECHECK_SECONDS
        )

    async def leave(self, job_id: str) -> None:
        """See `JobStore`."""
        await self._work(lambda desk: callers.leave(desk, job_id))

    async def cancel(self, job_id: str, *, if_unwanted: bool = False) -> Job:
        """See `JobStore`."""
        return await self._work(lambda desk: callers.cancel(desk, job_id, if_unwanted))

    async def deliver(self, job_id: str) -> Job:
        """See `JobStore`."""
        return await self._work(lambda desk: callers.deliver(desk, job_id))

    async def reset(self, job_id: str, *, tier: JobTier, due: float, deadline: float) -> Job:
        """See `JobStore`."""
        return await self._work(lambda desk: callers.reset(desk, job_id, tier, due, deadline))

    async def delete(self, job_id: str) -> bool:
        """See `JobStore`."""
        return await self._work(lambda desk: callers.delete(desk, job_id))

    # ---- workers

    async def claim_jobs(
        self, worker: str, lease_seconds: float, limit: int, tiers: frozenset[JobTier] | None = None
    ) -> tuple[Job, ...]:
        """See `JobStore`."""
        return await self._work(lambda desk: leases.claim_jobs(desk, worker, lease_seconds, limit, tiers))

    async def claim_job(self, job_id: str, worker: str, lease_seconds: float) -> Job | None:
        """See `JobStore`."""
        return await self._work(lambda desk: leases.claim_job(desk, job_id, worker, lease_seconds))

    async def claim_batches(self, worker: str, lease_seconds: float, limit: int) -> tuple[Batch, ...]:
        """See `JobStore`."""
        return await self._work(lambda desk: leases.claim_batches(desk, worker, lease_seconds, limit))

    async def claim_role(self, role: str, worker: str, lease_seconds: float) -> Lease | None:
        """See `JobStore`."""
        return await self._work(lambda desk: leases.claim_role(desk, role, worker, lease_seconds))

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        """See `JobStore`."""
        return await self._work(lambda desk: leases.renew(desk, lease, lease_seconds))

    async def release(self, lease: Lease, due: float | None = None) -> None:
        """See `JobStore`."""
        await self._work(lambda desk: leases.release(desk, lease, due))

    async def beats(self, worker: str, *, is_leaving: bool = False) -> Mapping[str, float]:
        """See `JobStore`."""
        return await self._work(
            lambda desk: desk.tables.beats(worker, None if is_leaving else self._clock.wall())
        )

    async def wait_for_work(self, timeout_seconds: float) -> bool:
        """See `JobStore`."""
        self._watch()
        return await self._waiting.work(timeout_seconds)

    async def commit_job(self, lease: Lease, change: JobChange) -> Job:
        """See `JobStore`."""
        return await self._work(lambda desk: leases.commit_job(desk, lease, change))

    async def claim_notices(
        self, worker: str, lease_seconds: float, limit: int, busy: frozenset[str] = frozenset()
    ) -> tuple[Job, ...]:
        """See `JobStore`."""
        return await self._work(lambda desk: leases.claim_notices(desk, worker, lease_seconds, limit, busy))

    async def noted(self, lease: Lease, due: float | None, note: str, *, is_try: bool) -> None:
        """See `JobStore`."""
        await self._work(lambda desk: leases.noted(desk, lease, due, note, is_try))

    async def pools(self) -> tuple[PoolSummary, ...]:
        """See `JobStore`."""
        return await self._look(lambda desk: desk.tables.pools())

    async def candidates(self, group: Group, limit: int) -> tuple[Job, ...]:
        """See `JobStore`."""
        return await self._look(lambda desk: tuple(desk.tables.pool(group, desk.now, limit)))

    async def pack(
        self, batch: Batch, job_ids: Sequence[str], worker: str, lease_seconds: float
    ) -> Batch | None:
        """See `JobStore`."""
        packed = None
        for ids in in_steps(job_ids):
            packed = await self._pack_some(batch, ids, worker, lease_seconds)
        return packed

    async def _pack_some(
        self, batch: Batch, job_ids: Sequence[str], worker: str, lease_seconds: float
    ) -> Batch | None:
        return await self._work(lambda desk: batches.pack(desk, batch, job_ids, worker, lease_seconds))

    async def split(self, lease: Lease, parts: Sequence[tuple[Batch, Sequence[str]]]) -> tuple[Batch, ...]:
        """See `JobStore`."""
        return await self._work(lambda desk: batches.split(desk, lease, parts))

    async def batch(self, batch_id: str) -> Batch | None:
        """See `JobStore`."""
        return await self._look(lambda desk: desk.tables.batch(batch_id))

    async def batch_job_ids(self, batch_id: str, *, only_open: bool = False) -> tuple[str, ...]:
        """See `JobStore`."""
        return await self._look(
            lambda desk: desk.tables.open_members(batch_id) if only_open else desk.tables.members(batch_id)
        )

    async def commit_batch(
        self, lease: Lease, move: BatchMove | None = None, changes: Sequence[JobChange] = ()
    ) -> Committed:
        """See `JobStore`."""
        done = None
        for some, is_last in changes_in_steps(changes):
            part = await self._commit_some(lease, move if is_last else None, some)
            done = joined(done, part)
        assert done is not None
        return done

    async def _commit_some(
        self, lease: Lease, move: BatchMove | None, changes: Sequence[JobChange]
    ) -> Committed:
        return await self._work(lambda desk: batches.commit_batch(desk, lease, move, changes))

    # ---- figures

    async def book(self, booking: Booking) -> bool:
        """See `JobStore`."""

        def add(desk: Desk) -> bool:
            return desk.tables.job(booking.job_id) is not None and desk.tables.add_booking(booking)

        return await self._work(add)

    async def bookings(self, job_id: str) -> tuple[Booking, ...]:
        """See `JobStore`."""
        return await self._look(lambda desk: desk.tables.bookings(job_id))

    async def census(self) -> Census:
        """See `JobStore`."""
        return await self._look(lambda desk: desk.tables.census())

    async def observe_completion(self, upstream: str, model: str, tier: JobTier, seconds: float) -> None:
        """See `JobStore`."""
        await self._work(lambda desk: desk.tables.add_completion(upstream, model, tier, seconds, desk.now))

    async def completions(self, upstream: str, model: str, tier: JobTier) -> tuple[float, ...]:
        """See `JobStore`."""
        return await self._look(lambda desk: desk.tables.completions(upstream, model, tier))

    async def purge(self, limit: int = 1000) -> int:
        """See `JobStore`."""

        def sweep(desk: Desk) -> int:
            gone = desk.tables.purge(desk.now, limit)
            desk.ended += gone
            return len(gone)

        return await self._work(sweep)
