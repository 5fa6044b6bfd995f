"""Leases over tables, and what the holder of a single job's lease does with it.

A claim raises the subject's token; a write under an older token, or after the lease was given back, is
refused. A lease that has run out stands until somebody else claims: fencing protects, not clocks.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.jobs.changes import JobChange
from proxy.jobs.local.progress import changed, released
from proxy.jobs.local.tables import Desk
from proxy.jobs.model import Batch, Job, JobTier, Lease, LeaseKind
from proxy.jobs.store import Conflict, LeaseLost
from proxy.jobs.transitions import ENDING, JobEvent, job_sources


def is_held(lease: Lease | None, now: float) -> bool:
    """Somebody works on it."""
    return lease is not None and lease.until > now


def claimed(kind: LeaseKind, subject: str, last: Lease | None, worker: str, until: float) -> Lease:
    """Return the lease of a new claim."""
    return Lease(kind, subject, worker, 1 if last is None else last.token + 1, until)


def check(lease: Lease, last: Lease | None) -> None:
    """Raise `LeaseLost` unless a lease is the last one of its subject and was not given back."""
    if last is None or last.token != lease.token or last.worker != lease.worker or not last.until:
        raise LeaseLost(f"the {lease.kind.value} {lease.subject} belongs to somebody else by now")


def claim_jobs(
    desk: Desk, worker: str, lease_seconds: float, limit: int, tiers: frozenset[JobTier] | None
) -> tuple[Job, ...]:
    """Lease due jobs."""
    due = desk.tables.due_jobs(desk.now, tiers, limit)
    return tuple(_claim_job(desk, job, worker, lease_seconds) for job in due)


def claim_job(desk: Desk, job_id: str, worker: str, lease_seconds: float) -> Job | None:
    """Lease one live job."""
    job = desk.tables.job(job_id)
    if job is None or not job.is_live or is_held(job.lease, desk.now):
        return None
    return _claim_job(desk, job, worker, lease_seconds)


def _claim_job(desk: Desk, job: Job, worker: str, lease_seconds: float) -> Job:
    lease = claimed(LeaseKind.JOB, job.id, job.lease, worker, desk.now + lease_seconds)
    job = replace(job, lease=lease)
    desk.tables.put_job(job)
    return job


def claim_batches(desk: Desk, worker: str, lease_seconds: float, limit: int) -> tuple[Batch, ...]:
    """Lease due batches."""
    leased = []
    for batch in desk.tables.due_batches(desk.now, limit):
        lease = claimed(LeaseKind.BATCH, batch.id, batch.lease, worker, desk.now + lease_seconds)
        batch = replace(batch, lease=lease)
        desk.tables.put_batch(batch)
        leased.append(batch)
    return tuple(leased)


def claim_role(desk: Desk, role: str, worker: str, lease_seconds: float) -> Lease | None:
    """Lease a role, or prolong one's own lease of it."""
    last = desk.tables.role(role)
    until = desk.now + lease_seconds
    if last is not None and last.worker == worker and last.until:
        lease = replace(last, until=until)
    elif is_held(last, desk.now):
        return None
    else:
        lease = claimed(LeaseKind.ROLE, role, last, worker, until)
    desk.tables.put_role(lease)
    return lease


def renew(desk: Desk, lease: Lease, lease_seconds: float) -> Lease:
    """Prolong a lease."""
    longer = replace(lease, until=desk.now + lease_seconds)
    tables = desk.tables
    match lease.kind:
        case LeaseKind.JOB:
            job = tables.job(lease.subject)
            check(lease, None if job is None else job.lease)
            assert job is not None
            tables.put_job(replace(job, lease=longer))
        case LeaseKind.BATCH:
            batch = tables.batch(lease.subject)
            check(lease, None if batch is None else batch.lease)
            assert batch is not None
            tables.put_batch(replace(batch, lease=longer))
        case LeaseKind.ROLE:
            check(lease, tables.role(lease.subject))
            tables.put_role(longer)
    return longer


def release(desk: Desk, lease: Lease, due: float | None) -> None:
    """Give a lease back, if it is not lost."""
    try:
        renew(desk, lease, 0.0)
    except LeaseLost:
        return
    over = replace(lease, until=0.0)
    tables = desk.tables
    match lease.kind:
        case LeaseKind.JOB:
            job = tables.job(lease.subject)
            assert job is not None
            tables.put_job(replace(job, lease=over, due=job.due if due is None else due))
        case LeaseKind.BATCH:
            batch = tables.batch(lease.subject)
            assert batch is not None
            tables.put_batch(replace(batch, lease=over, due=batch.due if due is None else due))
        case LeaseKind.ROLE:
            tables.put_role(over)
    desk.has_work = True


def commit_job(desk: Desk, lease: Lease, change: JobChange) -> Job:
    """Move the job of a lease."""
    tables = desk.tables
    job = tables.job(lease.subject)
    if job is None:
        raise Conflict("the job is deleted")
    if happened(job, change):
        return job
    if job.state not in job_sources(change.event):
        raise Conflict(f"a job that is {job.state.value} cannot {change.event.value}", job.state)
    check(lease, job.lease)
    job = apply(desk, job, change)
    if change.due is not None and job.is_live:
        job = replace(job, lease=released(job.lease))
        tables.put_job(job)
    return job


def happened(job: Job, change: JobChange) -> bool:
    """The change was made before: its very answer is stored."""
    return change.answer is not None and bool(job.answer_source) and job.answer_source == change.answer.source


def apply(desk: Desk, job: Job, change: JobChange) -> Job:
    """Write a change that is legal and permitted, with its answer and booking."""
    job = changed(job, change, desk.now, desk.retention_seconds)
    desk.tables.put_job(job)
    if change.event in ENDING:
        desk.tables.put_answer(job.id, change.answer)
        desk.ended.append(job.id)
        desk.has_work = desk.has_work or job.notice_due is not None
    if change.event in (JobEvent.RETURN, JobEvent.RETRY):
        desk.has_work = True
    if change.booking is not None:
        desk.tables.add_booking(change.booking)
    return job


def claim_notices(
    desk: Desk, worker: str, lease_seconds: float, limit: int, busy: frozenset[str]
) -> tuple[Job, ...]:
    """Lease ended jobs whose notice is due."""
    due = desk.tables.due_notices(desk.now, busy, limit)
    return tuple(_claim_job(desk, job, worker, lease_seconds) for job in due)


def noted(desk: Desk, lease: Lease, due: float | None, note: str, is_try: bool) -> None:
    """Note what became of a notice, if its lease is not lost."""
    job = desk.tables.job(lease.subject)
    if job is None or job.is_live:
        return
    try:
        check(lease, job.lease)
    except LeaseLost:
        return
    tries = job.notice_tries + is_try
    job = replace(job, notice_due=due, notice_tries=tries, notice_note=note, lease=released(job.lease))
    desk.tables.put_job(job)
