"""The in-memory twin of the stores: the same contract, nothing durable. For tests, never for serving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from proxy.core.clock import Clock, SystemClock
from proxy.jobs.attaching import attach_order
from proxy.jobs.changes import Census, JobQuery, Page, PoolSummary
from proxy.jobs.local.store import LocalStore
from proxy.jobs.local.tables import Desk
from proxy.jobs.model import Answer, Batch, Booking, Group, Job, JobState, JobTier, Lease
from proxy.jobs.paging import cursor_after, is_beyond
from proxy.jobs.store import MAX_COMPLETIONS

_T = TypeVar("_T")


class MemoryTables:
    """Tables in dictionaries; questions are answered by looking at everything."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._bodies: dict[str, bytes] = {}
        self._answers: dict[str, Answer] = {}
        self._batches: dict[str, Batch] = {}
        self._members: dict[str, tuple[str, ...]] = {}
        self._roles: dict[str, Lease] = {}
        self._bookings: dict[str, dict[str, Booking]] = {}
        self._completions: dict[tuple[str, str, JobTier], list[float]] = {}
        self._salt = b""
        self._beats: dict[str, float] = {}

    def job(self, job_id: str) -> Job | None:
        """See `Tables`."""
        return self._jobs.get(job_id)

    def put_job(self, job: Job) -> None:
        """See `Tables`."""
        self._jobs[job.id] = job

    def drop_job(self, job_id: str) -> None:
        """See `Tables`."""
        del self._jobs[job_id]
        for table in (self._bodies, self._answers, self._bookings):
            table.pop(job_id, None)

    def attached(self, attach_key: str) -> Job | None:
        """See `Tables`."""
        found = (
            (order, job.created, job.id)
            for job in self._jobs.values()
            if job.attach_key == attach_key and (order := attach_order(job)) is not None
        )
        first = min(found, default=None)
        return None if first is None else self._jobs[first[2]]

    def body(self, job_id: str) -> bytes | None:
        """See `Tables`."""
        return self._bodies.get(job_id)

    def put_body(self, job_id: str, body: bytes) -> None:
        """See `Tables`."""
        self._bodies[job_id] = body

    def answer(self, job_id: str) -> Answer | None:
        """See `Tables`."""
        return self._answers.get(job_id)

    def put_answer(self, job_id: str, answer: Answer | None) -> None:
        """See `Tables`."""
        if answer is None:
            self._answers.pop(job_id, None)
        else:
            self._answers[job_id] = answer

    def due_jobs(self, now: float, tiers: frozenset[JobTier] | None, limit: int) -> list[Job]:
        """See `Tables`."""
        due = (
            job
            for job in self._jobs.values()
            if job.is_live
            and job.due <= now
            and not _is_held(job.lease, now)
            and (tiers is None or job.tier in tiers)
        )
        return sorted(due, key=lambda job: (job.due, job.id))[:limit]

    def due_notices(self, now: float, busy: frozenset[str], limit: int) -> list[Job]:
        """See `Tables`."""
        due = (
            (job.notice_due, job.id)
            for job in self._jobs.values()
            if job.notice_due is not None
            and job.notice_due <= now
            and job.webhook not in busy
            and not _is_held(job.lease, now)
        )
        return [self._jobs[job_id] for _, job_id in sorted(due)[:limit]]

    def _pooled(self) -> Iterable[Job]:
        return (
            job for job in self._jobs.values() if job.state is JobState.ACCEPTED and job.tier is JobTier.BATCH
        )

    def pool(self, group: Group, now: float, limit: int) -> list[Job]:
        """See `Tables`."""
        ready = (
            job
            for job in self._pooled()
            if job.group == group and job.ready <= now and not _is_held(job.lease, now)
        )
        return sorted(ready, key=lambda job: (job.ready, job.id))[:limit]

    def pools(self) -> tuple[PoolSummary, ...]:
        """See `Tables`."""
        by_group: dict[Group, list[Job]] = {}
        for job in self._pooled():
            by_group.setdefault(job.group, []).append(job)
        return tuple(
            PoolSummary(
                group,
                len(jobs),
                sum(job.body_bytes for job in jobs),
                sum(job.input_tokens for job in jobs),
                min(job.ready for job in jobs),
            )
            for group, jobs in sorted(by_group.items())
        )

    def list_jobs(self, query: JobQuery) -> Page:
        """See `Tables`."""
        found = [
            job
            for job in self._jobs.values()
            if (query.states is None or job.state in query.states)
            and query.upstream in (None, job.upstream)
            and query.owner in (None, job.owner)
            and (query.created_before is None or job.created < query.created_before)
            and is_beyond(job, query.cursor)
        ]
        found.sort(key=lambda job: (job.created, job.id), reverse=True)
        page = tuple(found[: query.limit])
        return Page(page, cursor_after(page[-1]) if len(found) > query.limit else None)

    def ended_among(self, job_ids: Sequence[str]) -> list[str]:
        """See `Tables`."""
        return [job_id for job_id in job_ids if (job := self._jobs.get(job_id)) is None or not job.is_live]

    def batch(self, batch_id: str) -> Batch | None:
        """See `Tables`."""
        return self._batches.get(batch_id)

    def put_batch(self, batch: Batch) -> None:
        """See `Tables`."""
        self._batches[batch.id] = batch

    def put_members(self, batch_id: str, first: int, job_ids: Iterable[str]) -> None:
        """See `Tables`."""
        self._members[batch_id] = (*self.members(batch_id)[:first], *job_ids)

    def members(self, batch_id: str) -> tuple[str, ...]:
        """See `Tables`."""
        return self._members.get(batch_id, ())

    def open_members(self, batch_id: str) -> tuple[str, ...]:
        """See `Tables`."""
        return tuple(
            job_id
            for job_id in self.members(batch_id)
            if (job := self._jobs.get(job_id)) is not None and job.batch_id == batch_id
        )

    def due_batches(self, now: float, limit: int) -> list[Batch]:
        """See `Tables`."""
        due = (
            batch for batch in self._batches.values() if batch.due <= now and not _is_held(batch.lease, now)
        )
        return sorted(due, key=lambda batch: (batch.due, batch.id))[:limit]

    def role(self, role: str) -> Lease | None:
        """See `Tables`."""
        return self._roles.get(role)

    def put_role(self, lease: Lease) -> None:
        """See `Tables`."""
        self._roles[lease.subject] = lease

    def add_booking(self, booking: Booking) -> bool:
        """See `Tables`."""
        booked = self._bookings.setdefault(booking.job_id, {})
        if booking.key in booked:
            return False
        booked[booking.key] = booking
        return True

    def bookings(self, job_id: str) -> tuple[Booking, ...]:
        """See `Tables`."""
        return tuple(booking for _, booking in sorted(self._bookings.get(job_id, {}).items()))

    def census(self) -> Census:
        """See `Tables`."""
        oldest: dict[JobState, float] = {}
        for job in self._jobs.values():
            oldest[job.state] = min(job.created, oldest.get(job.state, job.created))
        return Census(
            Counter(job.state for job in self._jobs.values()),
            oldest,
            Counter(batch.state for batch in self._batches.values()),
        )

    def add_completion(self, upstream: str, model: str, tier: JobTier, seconds: float, now: float) -> None:
        """See `Tables`."""
        kept = self._completions.setdefault((upstream, model, tier), [])
        kept.insert(0, seconds)
        del kept[MAX_COMPLETIONS:]

    def completions(self, upstream: str, model: str, tier: JobTier) -> tuple[float, ...]:
        """See `Tables`."""
        return tuple(self._completions.get((upstream, model, tier), ()))

    def purge(self, now: float, limit: int) -> list[str]:
        """See `Tables`."""
        old_jobs = [job.id for job in self._jobs.values() if job.purge_at <= now][:limit]
        for job_id in old_jobs:
            self.drop_job(job_id)
        old_batches = [batch.id for batch in self._batches.values() if batch.purge_at <= now]
        del old_batches[max(0, limit - len(old_jobs)) :]
        for batch_id in old_batches:
            del self._batches[batch_id]
            self._members.pop(batch_id, None)
        return old_jobs + old_batches

    def beats(self, worker: str, now: float | None) -> dict[str, float]:
        """See `Tables`."""
        self._beats.pop(worker, None)
        others = dict(self._beats)
        if now is not None:
            self._beats[worker] = now
        return others

    def salt(self, fresh: bytes) -> bytes:
        """See `Tables`."""
        self._salt = self._salt or fresh
        return self._salt


def _is_held(lease: Lease | None, now: float) -> bool:
    return lease is not None and lease.until > now


class MemoryStore(LocalStore):
    """A `JobStore` that forgets everything with its process. `retention_seconds` counts from a job's end."""

    def __init__(self, clock: Clock | None = None, retention_seconds: float = 86_400.0) -> None:
        super().__init__(clock or SystemClock())
        self._tables = MemoryTables()
        self._retention_seconds = retention_seconds

    async def open(self) -> None:
        """See `JobStore`."""

    async def close(self) -> None:
        """See `JobStore`."""

    async def warnings(self) -> tuple[str, ...]:
        """See `JobStore`."""
        return ("the memory store keeps nothing: every job is lost when the process ends",)

    async def _work(self, piece: Callable[[Desk], _T]) -> _T:
        desk = Desk(self._tables, self._clock.wall(), self._retention_seconds)
        result = piece(desk)
        self._tell(desk)
        return result
