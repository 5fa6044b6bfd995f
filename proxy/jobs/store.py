"""The port to wherever jobs are kept, and what may go wrong there.

    StoreError
    ├── StoreUnavailable   the store did not do it or did not say so; trying again is safe
    ├── Conflict           the thing is not in a state (or not there at all) for what was asked; told with it
    └── LeaseLost          somebody else has taken the work over; nothing was written

Every method is one atomic step, durable when it returns. Each may be repeated after `StoreUnavailable`: what
happened already is not done twice, at worst a `Conflict` tells where the thing stands by now. A store
decides nothing: which moves are legal says `transitions`, what to do next says a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

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
from proxy.jobs.model import Answer, Batch, BatchState, Booking, Group, Job, JobState, JobTier, Lease

MAX_COMPLETIONS = 256
"""How many observed completion times are kept per upstream, model and tier."""

BEAT_KEPT_SECONDS = 86_400.0
"""How long what a worker's clock said is kept at most after the worker is gone."""


class StoreError(Exception):
    """The root of what a store raises."""


class StoreUnavailable(StoreError):
    """The store cannot be used now; the message says why, for operators."""


class Conflict(StoreError):
    """Somebody was faster, or the thing is gone.

    `state` is where the job or batch stands instead, `None` where there is none.
    """

    def __init__(self, message: str, state: JobState | BatchState | None = None) -> None:
        super().__init__(message)
        self.state = state


class LeaseLost(StoreError):
    """The work belongs to somebody else by now."""


class JobStore(Protocol):
    """Jobs, batches, answers, bookings and leases. All may raise `StoreUnavailable`."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        ...

    async def close(self) -> None:
        """Let go of connections, files and threads."""
        ...

    async def warnings(self) -> tuple[str, ...]:
        """Return what is wrong with this store as it is configured, one sentence each.

        What keeps it from being durable, and records in it that need another key than ours.
        """
        ...

    async def salt(self) -> bytes:
        """Return 32 random bytes, made once per store: the key of its fingerprints (`proxy.jobs.sealing`)."""
        ...

    # ---- callers

    async def accept(self, job: Job, body: bytes, *, attach: bool = True) -> Accepted:
        """Keep a job, or join it to one with its `attach_key`.

        Joins a job that is live or ended well, by `attaching.attach_order`; one that failed, expired or was
        cancelled (delivered or not) is joined no more. What the newcomer wants goes into the job that it
        joins, see `attaching.attached`. `attach=False` makes a new job in any case.
        """
        ...

    async def get(self, job_id: str, owner: str | None = None) -> Job | None:
        """Return a job; with an owner only if it is theirs."""
        ...

    async def jobs(self, job_ids: Sequence[str]) -> tuple[Job, ...]:
        """Return those of the jobs that exist, in the order asked."""
        ...

    async def bodies(self, job_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the request bodies of those that have one. Ask for as many as memory takes.

        Raises `SealError` for one that does not open.
        """
        ...

    async def answer(self, job_id: str) -> Answer | None:
        """Return the answer that a job ended with. Raises `SealError` for one that does not open."""
        ...

    async def list_jobs(self, query: JobQuery) -> Page:
        """Return a page of jobs, newest first."""
        ...

    async def wait(self, job_id: str, timeout_seconds: float) -> Job | None:
        """Return the job once it has ended, as it stands when the time is over, `None` if there is none."""
        ...

    async def leave(self, job_id: str) -> None:
        """Note that one of a job's callers waits for it no longer. Repeated, it counts as two who left."""
        ...

    async def cancel(self, job_id: str, *, if_unwanted: bool = False) -> Job:
        """End a live job at once and return it as it was before: with what is to be cancelled elsewhere.

        Raises `Conflict` with the state of one that has ended and, with `if_unwanted`, of one that somebody
        waits for.
        """
        ...

    async def deliver(self, job_id: str) -> Job:
        """Note that the caller has the ending; again is no harm. Raises `Conflict` for one without."""
        ...

    async def reset(self, job_id: str, *, tier: JobTier, due: float, deadline: float) -> Job:
        """Try a failed, expired or cancelled job again.

        Raises `Conflict` for another, and for one whose credential or body is erased.
        """
        ...

    async def delete(self, job_id: str) -> bool:
        """Erase every trace of a job, live or not, except its bookings in a batch's sum; False: unknown."""
        ...

    # ---- workers: leases

    async def claim_jobs(
        self, worker: str, lease_seconds: float, limit: int, tiers: frozenset[JobTier] | None = None
    ) -> tuple[Job, ...]:
        """Lease jobs that are due and that nobody works on, longest due first."""
        ...

    async def claim_job(self, job_id: str, worker: str, lease_seconds: float) -> Job | None:
        """Lease this live job, due or not; `None` if somebody works on it or it has ended."""
        ...

    async def claim_batches(self, worker: str, lease_seconds: float, limit: int) -> tuple[Batch, ...]:
        """Lease batches that are due and that nobody works on, longest due first."""
        ...

    async def claim_role(self, role: str, worker: str, lease_seconds: float) -> Lease | None:
        """Lease a role (`packer`, `janitor`) that one worker at a time plays; again renews it."""
        ...

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        """Prolong a lease. Raises `LeaseLost`."""
        ...

    async def release(self, lease: Lease, due: float | None = None) -> None:
        """Give a lease back; the subject is due at `due`, `None` as before. A lost lease is no error here."""
        ...

    async def wait_for_work(self, timeout_seconds: float) -> bool:
        """Return True as soon as something may have become due or poolable, False when the time is over."""
        ...

    async def beats(self, worker: str, *, is_leaving: bool = False) -> Mapping[str, float]:
        """Note what a worker's clock says, or forget it; return what those of the others said last.

        By name, in seconds since the epoch; a server's own clock is among them where there is one.
        """
        ...

    # ---- workers: single jobs

    async def commit_job(self, lease: Lease, change: JobChange) -> Job:
        """Move the job of the lease and return it.

        Raises `LeaseLost`, and `Conflict` where the event does not go with its state: it has another answer.
        A change whose answer (by `Answer.source`) is stored already has happened before: no error.
        """
        ...

    # ---- workers: notices

    async def claim_notices(
        self, worker: str, lease_seconds: float, limit: int, busy: frozenset[str] = frozenset()
    ) -> tuple[Job, ...]:
        """Lease ended jobs whose notice is due, for another webhook than those, longest due first."""
        ...

    async def noted(self, lease: Lease, due: float | None, note: str, *, is_try: bool) -> None:
        """Note what became of a notice and give the lease back: due again then, `None`: over.

        `is_try` counts a failure. Nothing is written for a job that is live again or gone, nor under a lost
        lease, which is no error here.
        """
        ...

    # ---- workers: batches

    async def pools(self) -> tuple[PoolSummary, ...]:
        """Return what waits to be packed, by group."""
        ...

    async def candidates(self, group: Group, limit: int) -> tuple[Job, ...]:
        """Return jobs of a pool that are ready, longest ready first."""
        ...

    async def pack(
        self, batch: Batch, job_ids: Sequence[str], worker: str, lease_seconds: float
    ) -> Batch | None:
        """Make a batch of those jobs that are still in its group's pool, leased to `worker`.

        Their order stays. The store counts jobs, bytes and tokens. `None` if no job was left. Called again
        with an id that is still `worker`'s and an intent, it adds to that batch; else it raises `LeaseLost`.
        """
        ...

    async def split(self, lease: Lease, parts: Sequence[tuple[Batch, Sequence[str]]]) -> tuple[Batch, ...]:
        """Refuse the batch of the lease and put its jobs into new batches, all in one step.

        Each part takes those of its jobs that are still in the batch; the batches that got none are not made.
        Jobs of no part return to the pool. Raises `LeaseLost` and `Conflict`.
        """
        ...

    async def batch(self, batch_id: str) -> Batch | None:
        """Return a batch."""
        ...

    async def batch_job_ids(self, batch_id: str, *, only_open: bool = False) -> tuple[str, ...]:
        """Return the ids of a batch's jobs in packed order; `only_open`: of those that it still holds."""
        ...

    async def commit_batch(
        self, lease: Lease, move: BatchMove | None = None, changes: Sequence[JobChange] = ()
    ) -> Committed:
        """Move the batch of the lease and jobs that it holds, in one step (`stepping`: in several if many).

        A job that has ended or left is refused and told; the rest stands. Raises, with nothing written,
        `LeaseLost`, and `Conflict` where the event does not go with the batch's state or needs it empty.
        """
        ...

    # ---- figures

    async def book(self, booking: Booking) -> bool:
        """Book an execution that ended nothing; False if it is booked already or its job is gone."""
        ...

    async def bookings(self, job_id: str) -> tuple[Booking, ...]:
        """Return what was booked for a job, by key."""
        ...

    async def census(self) -> Census:
        """Count jobs and batches."""
        ...

    async def observe_completion(self, upstream: str, model: str, tier: JobTier, seconds: float) -> None:
        """Note how long a job took on a tier; the last `MAX_COMPLETIONS` are kept."""
        ...

    async def completions(self, upstream: str, model: str, tier: JobTier) -> tuple[float, ...]:
        """Return the observed completion times in seconds, newest first."""
        ...

    async def purge(self, limit: int = 1000) -> int:
        """Delete jobs and batches whose time is over and return how many: below `limit`, all of them."""
        ...
