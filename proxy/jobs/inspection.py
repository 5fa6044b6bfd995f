"""What operators see of jobs and do to them. No bodies, no credentials, no digests of them.

Owns the facts that `weir jobs` and the admin API show, and the same few acts for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from proxy.jobs.changes import JobQuery
from proxy.jobs.model import LIVE_JOB_STATES, Booking, Job, JobState, JobTier
from proxy.jobs.notices import is_wished
from proxy.jobs.sealing import SealError
from proxy.jobs.store import Conflict, JobStore, StoreUnavailable

DEFAULT_LIMIT = 50
MOST_LISTED = 1000
_AGAIN_SECONDS = 86_400.0
_LEAST_RESCUE_SECONDS = 60.0


class NoSuchJob(Exception):
    """There is no job of that id."""


class Inspector:
    """Looks at a store. `cancel` ends a job as thoroughly as the caller can (`JobStore.cancel` at least)."""

    def __init__(
        self, store: JobStore, now: Callable[[], float], cancel: Callable[[str], Awaitable[Job]] | None = None
    ) -> None:
        self._store = store
        self._now = now
        self._cancel = cancel or store.cancel

    async def listed(
        self,
        states: frozenset[JobState] | None = None,
        upstream: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """Return a page of jobs, newest first, and how many there are by state. Raises `ValueError`."""
        page = await self._store.list_jobs(
            JobQuery(states=states, upstream=upstream, limit=limit, cursor=cursor)
        )
        census = await self._store.census()
        return {
            "jobs": [self._facts(job) for job in page.jobs],
            "next": page.cursor,
            "by_state": {state.value: count for state, count in census.jobs.items()},
            "batches": {state.value: count for state, count in census.batches.items()},
        }

    async def shown(self, job_id: str) -> dict[str, Any]:
        """Return one job with what was paid for it and, while it is in one, its batch. Raises `NoSuchJob`."""
        job = await self._known(job_id)
        bookings = await self._store.bookings(job_id)
        batch = None if job.batch_id is None else await self._store.batch(job.batch_id)
        return self._facts(job) | {
            "bookings": [_booking(booking) for booking in bookings],
            "answer": None if job.is_live else await self._answer(job_id),
            "notice": _notice(job),
            "batch": None
            if batch is None
            else {
                "id": batch.id,
                "state": batch.state.value,
                "provider_id": batch.provider_id,
                "jobs": batch.job_count,
                "submitted_at": _time(batch.submitted),
                "note": batch.note,
            },
        }

    async def _answer(self, job_id: str) -> dict[str, Any] | None:
        try:
            answer = await self._store.answer(job_id)
        except SealError as problem:
            return {"unreadable": str(problem)}
        if answer is None:
            return None
        return {"status": answer.status, "bytes": len(answer.body), "tier": answer.tier}

    async def cancelled(self, job_id: str) -> dict[str, Any]:
        """End a live job; one that has ended is returned as it is. Raises `NoSuchJob`."""
        job = await self._known(job_id)
        if job.state in LIVE_JOB_STATES:
            try:
                await self._cancel(job_id)
            except Conflict:
                # It ended in this moment.
                pass
        return self._facts(await self._known(job_id))

    async def retried(self, job_id: str) -> dict[str, Any]:
        """Try a failed, expired or cancelled job again. Raises `NoSuchJob`, and `Conflict` for another."""
        job = await self._known(job_id)
        now = self._now()
        seconds = max(_LEAST_RESCUE_SECONDS, min(_AGAIN_SECONDS, job.deadline - job.created))
        # Its cheapest tiers are used up: the pool is where it can wait, and the rescue comes before the end.
        tier = JobTier.BATCH if job.tier is JobTier.BATCH else JobTier.DIRECT
        due = now + seconds - _LEAST_RESCUE_SECONDS if tier is JobTier.BATCH else now
        return self._facts(
            await self._store.reset(job_id, tier=tier, due=max(now, due), deadline=now + seconds)
        )

    async def deleted(self, job_id: str) -> bool:
        """Erase every trace of a job, ended first if it is live; `False` if there is none."""
        job = await self._store.get(job_id)
        if job is not None and job.is_live:
            try:
                await self._cancel(job_id)
            except StoreUnavailable:
                raise
            except Conflict:
                pass
        return await self._store.delete(job_id)

    async def _known(self, job_id: str) -> Job:
        job = await self._store.get(job_id)
        if job is None:
            raise NoSuchJob(job_id)
        return job

    def _facts(self, job: Job) -> dict[str, Any]:
        now = self._now()
        ended = job.ended
        return {
            "id": job.id,
            "state": job.state.value,
            "ended_as": None if job.ended_as is None else job.ended_as.value,
            "route": job.route,
            "upstream": job.upstream,
            "endpoint": job.endpoint,
            "model": _printable(job.model),
            "tier": job.tier.value,
            "delivery": job.delivery.value,
            "attempts": job.attempts,
            "is_rescuing": job.is_live and job.rescue_begun is not None,
            "age_seconds": round((ended or now) - job.created, 3),
            "margin_seconds": round(job.deadline - (ended or now), 3),
            "created_at": _time(job.created),
            "deadline_at": _time(job.deadline),
            "ended_at": _time(ended),
            "batch_id": job.batch_id,
            "provider_id": job.provider_id,
            "worker": None if job.lease is None else job.lease.worker,
            "error": None
            if job.error is None
            else {"code": _printable(job.error.code), "message": _printable(job.error.message)},
        }


def _booking(booking: Booking) -> dict[str, Any]:
    # Without usage there is no price either; what costs nothing has one.
    is_known = booking.standard_usd is not None or bool(booking.input_tokens or booking.output_tokens)
    return {
        "key": booking.key,
        "kind": booking.kind.value,
        "tier": _printable(booking.tier),
        "input_tokens": booking.input_tokens if is_known else None,
        "cached_tokens": booking.cached_tokens if is_known else None,
        "output_tokens": booking.output_tokens if is_known else None,
        "usd": _dollars(booking.usd),
        "standard_usd": _dollars(booking.standard_usd),
    }


def _notice(job: Job) -> dict[str, Any] | None:
    """Return how far the telling of a job's end is, `None` where nobody is to be told."""
    if not is_wished(job):
        return None
    due = job.notice_due
    return {
        "webhook": job.webhook,
        "state": "not_yet" if job.is_live else "over" if due is None else "due",
        "due_at": _time(due),
        "tries": job.notice_tries,
        "note": job.notice_note or None,
    }


def _dollars(usd: float | None) -> float | None:
    # Prices per million tokens have few digits: the rest is how floats add up.
    return None if usd is None else round(usd, 12)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
