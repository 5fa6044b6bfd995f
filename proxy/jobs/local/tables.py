"""The port to tables: records by key and the few questions that an index answers. Synchronous.

Owns no rule: `callers`, `leases` and `batches` check first and write afterwards, so that tables without
transactions (memory) are never left half written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proxy.jobs.changes import Census, JobQuery, Page, PoolSummary
from proxy.jobs.model import Answer, Batch, Booking, Group, Job, JobTier, Lease


class Tables(Protocol):
    """Jobs with bodies, answers and bookings; batches with their members; roles; completion times."""

    def job(self, job_id: str) -> Job | None:
        """Return a job."""
        ...

    def put_job(self, job: Job) -> None:
        """Insert a job or replace it."""
        ...

    def drop_job(self, job_id: str) -> None:
        """Delete a job with body, answer and bookings."""
        ...

    def attached(self, attach_key: str) -> Job | None:
        """Return the first by `attach_order` of the jobs with an attach key, the oldest of several."""
        ...

    def body(self, job_id: str) -> bytes | None:
        """Return a body."""
        ...

    def put_body(self, job_id: str, body: bytes) -> None:
        """Keep a body."""
        ...

    def answer(self, job_id: str) -> Answer | None:
        """Return an answer."""
        ...

    def put_answer(self, job_id: str, answer: Answer | None) -> None:
        """Keep an answer; `None` deletes it."""
        ...

    def due_jobs(self, now: float, tiers: frozenset[JobTier] | None, limit: int) -> list[Job]:
        """Return live jobs that are due and not leased, longest due first."""
        ...

    def due_notices(self, now: float, busy: frozenset[str], limit: int) -> list[Job]:
        """Return jobs whose notice is due and that are not leased, longest due first."""
        ...

    def pool(self, group: Group, now: float, limit: int) -> list[Job]:
        """Return a group's jobs that are accepted, for batch, ready and not leased, longest ready first."""
        ...

    def pools(self) -> tuple[PoolSummary, ...]:
        """Return the pools."""
        ...

    def list_jobs(self, query: JobQuery) -> Page:
        """Return a page."""
        ...

    def ended_among(self, job_ids: Sequence[str]) -> list[str]:
        """Return those of the ids whose job has ended or is gone."""
        ...

    def batch(self, batch_id: str) -> Batch | None:
        """Return a batch."""
        ...

    def put_batch(self, batch: Batch) -> None:
        """Insert a batch or replace it."""
        ...

    def put_members(self, batch_id: str, first: int, job_ids: Iterable[str]) -> None:
        """Note which jobs a batch has, in order, from position `first`."""
        ...

    def members(self, batch_id: str) -> tuple[str, ...]:
        """Return the jobs that a batch was made of, in order."""
        ...

    def open_members(self, batch_id: str) -> tuple[str, ...]:
        """Return the jobs that name the batch as theirs, in order."""
        ...

    def due_batches(self, now: float, limit: int) -> list[Batch]:
        """Return batches that are due and not leased, longest due first."""
        ...

    def role(self, role: str) -> Lease | None:
        """Return the last lease of a role."""
        ...

    def put_role(self, lease: Lease) -> None:
        """Keep the lease of a role."""
        ...

    def add_booking(self, booking: Booking) -> bool:
        """Keep a booking; False if there is one of its job and key."""
        ...

    def bookings(self, job_id: str) -> tuple[Booking, ...]:
        """Return a job's bookings by key."""
        ...

    def census(self) -> Census:
        """Count."""
        ...

    def add_completion(self, upstream: str, model: str, tier: JobTier, seconds: float, now: float) -> None:
        """Keep a completion time and forget the oldest beyond the limit."""
        ...

    def completions(self, upstream: str, model: str, tier: JobTier) -> tuple[float, ...]:
        """Return completion times, newest first."""
        ...

    def purge(self, now: float, limit: int) -> list[str]:
        """Delete jobs and batches whose time is over; returns their ids."""
        ...

    def beats(self, worker: str, now: float | None) -> dict[str, float]:
        """Note a worker's time, `None` to forget it; returns the others'. `purge` forgets those a day old."""
        ...

    def salt(self, fresh: bytes) -> bytes:
        """Return the salt, `fresh` if there was none."""
        ...


@dataclass(slots=True)
class Desk:
    """One piece of work over the tables: when it is, how long endings stay, and what came of it.

    ended     ids of jobs that ended or went
    has_work  something may have become due or poolable
    """

    tables: Tables
    now: float
    retention_seconds: float
    ended: list[str] = field(default_factory=list)
    has_work: bool = False
