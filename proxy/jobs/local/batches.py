"""What the holder of a batch's lease does, over tables: pack, split, move it and the jobs that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from proxy.jobs.changes import BatchMove, Committed, JobChange
from proxy.jobs.local.leases import apply, check, claimed, happened, is_held
from proxy.jobs.local.progress import changed, moved
from proxy.jobs.local.tables import Desk
from proxy.jobs.model import Batch, BatchState, Job, JobState, JobTier, Lease, LeaseKind
from proxy.jobs.store import Conflict, LeaseLost
from proxy.jobs.transitions import EMPTYING, LEAVING, BatchEvent, JobEvent, batch_sources, job_sources


def pack(desk: Desk, batch: Batch, job_ids: Sequence[str], worker: str, lease_seconds: float) -> Batch | None:
    """Make a batch of jobs that are still in its group's pool, or add them to it."""
    same = desk.tables.batch(batch.id)
    if same is not None:
        lease = same.lease
        if same.state is not BatchState.INTENT or lease is None or lease.worker != worker or not lease.until:
            raise LeaseLost(f"the batch {batch.id} belongs to somebody else by now")
    found = (desk.tables.job(job_id) for job_id in dict.fromkeys(job_ids))
    jobs = [job for job in found if job is not None and _is_poolable(job, batch, desk.now)]
    if not jobs:
        return same
    if same is None:
        lease = claimed(LeaseKind.BATCH, batch.id, None, worker, desk.now + lease_seconds)
        same = replace(batch, lease=lease, state=BatchState.INTENT, job_count=0)
    return _fill(desk, same, jobs)


def _is_poolable(job: Job, batch: Batch, now: float) -> bool:
    return (
        job.state is JobState.ACCEPTED
        and job.tier is JobTier.BATCH
        and job.group == batch.group
        and not is_held(job.lease, now)
    )


def _fill(desk: Desk, batch: Batch, jobs: Sequence[Job]) -> Batch:
    first = batch.job_count
    batch = replace(
        batch,
        job_count=first + len(jobs),
        input_bytes=(batch.input_bytes if first else 0) + sum(job.body_bytes for job in jobs),
        input_tokens=(batch.input_tokens if first else 0) + sum(job.input_tokens for job in jobs),
        updated=desk.now,
    )
    desk.tables.put_batch(batch)
    desk.tables.put_members(batch.id, first, (job.id for job in jobs))
    for job in jobs:
        packed = changed(job, JobChange(JobEvent.PACK, (job.id,)), desk.now, desk.retention_seconds)
        desk.tables.put_job(replace(packed, batch_id=batch.id))
    desk.has_work = True
    return batch


def split(desk: Desk, lease: Lease, parts: Sequence[tuple[Batch, Sequence[str]]]) -> tuple[Batch, ...]:
    """Refuse a batch and put its jobs into new ones."""
    tables = desk.tables
    batch = _held(desk, lease, BatchEvent.REFUSE)
    still = dict.fromkeys(tables.open_members(batch.id))
    back = JobChange(JobEvent.RETURN, ())
    made = []
    for part, job_ids in parts:
        jobs = []
        for job_id in job_ids:
            job = tables.job(job_id) if still.pop(job_id, 0) is None else None
            if job is not None:
                jobs.append(changed(job, back, desk.now, desk.retention_seconds))
        if jobs:
            made.append(
                _fill(
                    desk,
                    replace(part, parent_id=batch.id, lease=None, state=BatchState.INTENT, job_count=0),
                    jobs,
                )
            )
    for job_id in still:
        job = tables.job(job_id)
        if job is not None:
            apply(desk, job, back)
    tables.put_batch(
        moved(batch, BatchMove(BatchEvent.REFUSE, due=desk.now), desk.now, desk.retention_seconds)
    )
    return tuple(made)


def commit_batch(desk: Desk, lease: Lease, move: BatchMove | None, changes: Sequence[JobChange]) -> Committed:
    """Move a batch and jobs that it holds."""
    batch = _held(desk, lease, None if move is None else move.event)
    applied: list[tuple[Job, JobChange]] = []
    before: list[str] = []
    refused: dict[str, JobState | None] = {}
    for change in changes:
        for job_id in change.job_ids:
            job = desk.tables.job(job_id)
            if job is not None and happened(job, change):
                before.append(job_id)
            elif job is None or job.batch_id != batch.id or job.state not in job_sources(change.event):
                refused[job_id] = None if job is None else job.state
            else:
                applied.append((job, change))
    if move is not None and move.event in EMPTYING:
        leaving = {job.id for job, change in applied if change.event in LEAVING}
        if not leaving.issuperset(desk.tables.open_members(batch.id)):
            raise Conflict(f"a batch that holds jobs cannot {move.event.value}", batch.state)
    for job, change in applied:
        apply(desk, job, change)
    if move is not None:
        batch = moved(batch, move, desk.now, desk.retention_seconds)
        desk.tables.put_batch(batch)
    return Committed(batch, tuple(before) + tuple(job.id for job, _ in applied), refused)


def _held(desk: Desk, lease: Lease, event: BatchEvent | None) -> Batch:
    batch = desk.tables.batch(lease.subject)
    if batch is None:
        raise Conflict("there is no such batch")
    check(lease, batch.lease)
    if event is not None and batch.state not in batch_sources(event):
        raise Conflict(f"a batch that is {batch.state.value} cannot {event.value}", batch.state)
    return batch
