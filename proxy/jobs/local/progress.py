"""What an event does to a job and to a batch, as values. Pure.

Owns the consequences of a move (docs/jobs.md lists them); which moves are legal says `transitions`.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.jobs.changes import BatchMove, JobChange
from proxy.jobs.model import NEVER, Batch, Job, Lease
from proxy.jobs.notices import is_wished
from proxy.jobs.transitions import ENDING, LEAVING, BatchEvent, JobEvent, batch_target, job_target


def changed(job: Job, change: JobChange, now: float, retention_seconds: float) -> Job:
    """Return the job after a change; its lease is left alone unless it has ended.

    Raises `IllegalTransition`.
    """
    event = change.event
    is_leaving = event in LEAVING
    job = replace(
        job,
        state=job_target(event, job.state),
        tier=job.tier if change.tier is None else change.tier,
        tiers=job.tiers if change.tiers is None else change.tiers,
        due=job.due if change.due is None else change.due,
        ready=job.ready if change.ready is None else change.ready,
        attempts=job.attempts + (event is JobEvent.SUBMIT),
        rescue_begun=now if event is JobEvent.BEGIN_RESCUE else job.rescue_begun,
        batch_id=None if is_leaving else job.batch_id,
        provider_id=_provider_id(job, change),
        error=job.error if change.error is None else change.error,
        updated=now,
    )
    return _ended(job, change, now, retention_seconds) if event in ENDING else job


def _provider_id(job: Job, change: JobChange) -> str | None:
    if change.provider_id is not None:
        return change.provider_id
    return None if change.event in (JobEvent.RETURN, JobEvent.RETRY) else job.provider_id


def _ended(job: Job, change: JobChange, now: float, retention_seconds: float) -> Job:
    return replace(
        job,
        credential=None,
        due=NEVER,
        ended=now,
        ended_as=job.state,
        error=change.error,
        answer_source=None if change.answer is None else change.answer.source,
        purge_at=now + retention_seconds,
        lease=released(job.lease),
        notice_due=now if is_wished(job) else None,
    )


def moved(batch: Batch, move: BatchMove, now: float, retention_seconds: float) -> Batch:
    """Return the batch after a move. Raises `IllegalTransition`."""
    given = {
        name: value
        for name in (
            "due",
            "input_file_id",
            "output_file_id",
            "error_file_id",
            "provider_id",
            "ending",
            "submitted",
            "provider_expires",
            "input_bytes",
            "attempts",
            "note",
        )
        if (value := getattr(move, name)) is not None
    }
    target = batch_target(move.event, batch.state)
    batch = replace(batch, state=target, updated=now, **given)
    if move.event is BatchEvent.CLEAN:
        batch = replace(batch, credential=None, due=NEVER, purge_at=now + retention_seconds)
    if move.due is not None or move.event is BatchEvent.CLEAN:
        batch = replace(batch, lease=released(batch.lease))
    return batch


def released(lease: Lease | None) -> Lease | None:
    """Return a lease that is over; its token stays, so that the next claim has a greater one."""
    return None if lease is None else replace(lease, until=0.0)
