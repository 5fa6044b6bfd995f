"""What callers and operators do with jobs, over tables: accept, cancel, deliver, reset, delete."""

from __future__ import annotations

from dataclasses import replace

from proxy.jobs.attaching import attached, is_wanted, left
from proxy.jobs.changes import Accepted, JobChange
from proxy.jobs.local.progress import changed
from proxy.jobs.local.tables import Desk
from proxy.jobs.model import NEVER, Job, JobState, JobTier
from proxy.jobs.store import Conflict
from proxy.jobs.transitions import JobEvent, job_sources


def accept(desk: Desk, job: Job, body: bytes, attach: bool) -> Accepted:
    """Keep a job, or find the one with its attach key."""
    tables = desk.tables
    same = tables.job(job.id)
    if same is not None:
        return Accepted(same, is_new=True)
    if attach:
        holder = tables.attached(job.attach_key)
        if holder is not None:
            holder = attached(holder, job, desk.now, desk.retention_seconds)
            tables.put_job(holder)
            desk.has_work = True
            return Accepted(holder, is_new=False)
    purge_at = max(job.deadline, desk.now) + desk.retention_seconds
    job = replace(job, updated=desk.now, purge_at=purge_at, body_bytes=len(body))
    tables.put_job(job)
    tables.put_body(job.id, body)
    desk.has_work = True
    return Accepted(job, is_new=True)


def leave(desk: Desk, job_id: str) -> None:
    """Note that a caller waits no longer."""
    job = desk.tables.job(job_id)
    if job is not None:
        desk.tables.put_job(left(job))


def cancel(desk: Desk, job_id: str, if_unwanted: bool) -> Job:
    """End a live job and return it as it was."""
    job = _known(desk, job_id)
    if if_unwanted and is_wanted(job):
        raise Conflict("somebody waits for the job", job.state)
    if job.state not in job_sources(JobEvent.CANCEL):
        raise Conflict(f"the job is {job.state.value} already", job.state)
    change = JobChange(JobEvent.CANCEL, (job_id,))
    cancelled = changed(job, change, desk.now, desk.retention_seconds)
    desk.tables.put_job(cancelled)
    desk.ended.append(job_id)
    desk.has_work = cancelled.notice_due is not None
    return job


def deliver(desk: Desk, job_id: str) -> Job:
    """Note that the caller has the ending."""
    job = _known(desk, job_id)
    if job.state is JobState.DELIVERED:
        return job
    if job.state not in job_sources(JobEvent.DELIVER):
        raise Conflict(f"the job is {job.state.value}: there is nothing to deliver yet", job.state)
    job = changed(job, JobChange(JobEvent.DELIVER, (job_id,)), desk.now, desk.retention_seconds)
    desk.tables.put_job(job)
    return job


def reset(desk: Desk, job_id: str, tier: JobTier, due: float, deadline: float) -> Job:
    """Try a job again that ended without success."""
    job = _known(desk, job_id)
    if job.state not in job_sources(JobEvent.RESET):
        raise Conflict(f"a job that is {job.state.value} cannot be tried again", job.state)
    if job.is_borrowing:
        raise Conflict("the caller's credential was erased when the job ended", job.state)
    if desk.tables.body(job_id) is None:
        raise Conflict("the body of the job is erased", job.state)
    change = JobChange(JobEvent.RESET, (job_id,), due=due, ready=desk.now, tier=tier)
    job = replace(
        changed(job, change, desk.now, desk.retention_seconds),
        deadline=deadline,
        ended=None,
        ended_as=None,
        error=None,
        answer_source=None,
        provider_id=None,
        rescue_begun=None,
        wanted=NEVER,
        purge_at=max(deadline, desk.now) + desk.retention_seconds,
        notice_due=None,
        notice_tries=0,
        notice_note="",
    )
    desk.tables.put_answer(job_id, None)
    desk.tables.put_job(job)
    desk.has_work = True
    return job


def delete(desk: Desk, job_id: str) -> bool:
    """Erase a job."""
    if desk.tables.job(job_id) is None:
        return False
    desk.tables.drop_job(job_id)
    desk.ended.append(job_id)
    return True


def _known(desk: Desk, job_id: str) -> Job:
    job = desk.tables.job(job_id)
    if job is None:
        raise Conflict("there is no such job")
    return job
