"""The direct call beside a tier that is late: the first answer wins, the other is cut off and booked.

Owns the race. What the tier's own work is (a flex call, a background response, a batch that others work on)
is given by who calls; so is what has to be done about it when it loses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from proxy.jobs.booking import book_unknown
from proxy.jobs.changes import JobChange
from proxy.jobs.model import BookingKind, Job, JobError, JobState, JobTier, Lease
from proxy.jobs.transitions import JobEvent
from proxy.jobs.verdicts import Verdict
from proxy.jobs.worker.attempts import Attempt, attempt, booked_failure, stop
from proxy.jobs.worker.endings import RUNNING, decide, expire, lose
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import Trouble

_WAIT_SECONDS = 30.0

Work = asyncio.Task[Attempt | None]
LoseOwn = Callable[[Attempt | None], Awaitable[None]]


async def rescue_from_batch(kit: Kit, lease: Lease, job: Job) -> None:
    """Make the direct call for a job whose batch has not delivered; the batch may still be faster."""
    own: Work = asyncio.get_running_loop().create_task(
        _until_ended(kit, job), name=f"batch's answer to {job.id}"
    )
    try:
        await race(kit, lease, job, own, _leave_to_settlement)
    finally:
        await stop(own)


async def _until_ended(kit: Kit, job: Job) -> None:
    """Return when the job has ended by other hands."""
    while True:
        seen = await kit.insist(lambda: kit.store.wait(job.id, _WAIT_SECONDS))
        if seen is None or not seen.is_live:
            return


async def _leave_to_settlement(_: Attempt | None) -> None:
    """A batch's own execution is booked when its files are read."""


async def race(kit: Kit, lease: Lease, job: Job, own: Work, lose_own: LoseOwn) -> None:
    """Begin a direct call beside `own`, which gives `None` where the job has ended by other hands."""
    job = await _begin(kit, lease, job)
    direct: Work = asyncio.get_running_loop().create_task(_insist(kit, job), name=f"rescue of {job.id}")
    try:
        winner = await _first_decided((own, direct), job.deadline - kit.now())
        if winner is direct:
            await lose_own(await stop(own))
            tried = direct.result()
            assert tried is not None
            await decide(kit, lease, job, tried, is_rescue=True)
            return
        await lose(kit, job, await stop(direct), "rescue")
        if winner is None:
            await lose_own(await stop(own))
            await expire(kit, lease, job)
            return
        won = own.result()
        if won is not None:
            await decide(kit, lease, job, won)
    finally:
        await stop(direct)


async def _begin(kit: Kit, lease: Lease, job: Job) -> Job:
    if job.error is not None and job.error.code == RUNNING:
        kit.watch.trouble(Trouble.LOST_CALL, job.upstream)
        await kit.book(job, book_unknown(job, f"rescue:lost:{lease.token}"))
    note = JobError(RUNNING, "a direct call is under way")
    job = await kit.commit(lease, JobChange(JobEvent.BEGIN_RESCUE, (job.id,), error=note))
    kit.watch.rescue_begun(job)
    return job


async def _insist(kit: Kit, job: Job) -> Attempt:
    """Call directly until there is a last word."""
    tries = 0
    while True:
        tries += 1
        source = "rescue" if tries == 1 else f"rescue:{tries}"
        tried = await attempt(kit, job, JobTier.DIRECT, source)
        if tried.is_decided or (tried.judged.verdict is Verdict.CREDENTIALS and job.is_borrowing):
            return tried
        kit.watch.trouble(Trouble.PROVIDER, job.upstream)
        failure = booked_failure(kit, job, tried)
        if failure is not None:
            await kit.book(job, failure)
        await kit.sleep(max(kit.backoff(tries), tried.retry_after_seconds or 0.0))


async def _first_decided(tasks: Iterable[Work], timeout_seconds: float) -> Work | None:
    """Return the first task that ends with the provider's last word or with `None`; `None`: time is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + max(0.0, timeout_seconds)
    order = list(tasks)
    pending = set(order)
    while pending and loop.time() < until:
        done, pending = await asyncio.wait(
            pending, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED
        )
        for task in sorted(done, key=order.index):
            tried = task.result()
            if tried is None or tried.is_decided or task is order[-1]:
                return task
    return None


async def give_back(kit: Kit, lease: Lease) -> None:
    """Let go of a job whose work was cut off because the worker stops: the next one goes on at once."""
    job = await kit.store.get(lease.subject)
    if job is None:
        return
    if not job.is_live:
        await _book_lost(kit, job)
        return
    now = kit.now()
    if job.error is not None and job.error.code == RUNNING:
        await kit.store.book(book_unknown(job, f"rescue:lost:{lease.token}", BookingKind.LOSER))
        note = JobError("rescue_stopped", "the worker was stopped during the call")
        await kit.store.commit_job(lease, JobChange(JobEvent.BEGIN_RESCUE, (job.id,), error=note, due=now))
    elif job.state is JobState.SUBMITTED and job.tier in (JobTier.DIRECT, JobTier.FLEX):
        lost = book_unknown(job, f"call:{job.attempts}")
        note = JobError("worker_stopped", "the worker was stopped during the call")
        change = JobChange(JobEvent.RETRY, (job.id,), booking=lost, error=note, due=now)
        await kit.store.commit_job(lease, change)
    else:
        await kit.store.release(lease, now)


async def book_cut_off(kit: Kit, lease: Lease) -> None:
    """Book calls that were cut off because the job had ended by other hands."""
    job = await kit.insist(lambda: kit.store.get(lease.subject))
    if job is not None and not job.is_live:
        await _book_lost(kit, job)


async def _book_lost(kit: Kit, job: Job) -> None:
    """Book the calls of a job that has ended; those with a booking already keep it."""
    if job.tier in (JobTier.DIRECT, JobTier.FLEX) and job.attempts:
        await kit.book(job, book_unknown(job, f"call:{job.attempts}", BookingKind.LOSER))
    if job.rescue_begun is not None:
        await kit.book(job, book_unknown(job, "rescue", BookingKind.LOSER))
