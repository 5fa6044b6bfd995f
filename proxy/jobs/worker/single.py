"""Jobs that one call carries: direct and flex.

    accepted ── SUBMIT ── call ──► succeed | fail | back into the queue

A call that somebody began and did not finish (`submitted` when it is claimed) is booked as unknown and made
anew: no provider can be asked what became of it; after ten of them the job has failed. A flex call that is
late has a direct call at its side.
"""

from __future__ import annotations

import asyncio

from proxy.jobs.booking import UNKNOWN_TIER, book_unknown
from proxy.jobs.changes import JobChange
from proxy.jobs.model import Job, JobError, JobState, JobTier, Lease
from proxy.jobs.transitions import JobEvent
from proxy.jobs.worker.attempts import Attempt, attempt, stop
from proxy.jobs.worker.endings import RUNNING, decide, lose, send_on
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import Trouble
from proxy.jobs.worker.rescue import race

MOST_LOST = 10
"""Whose calls are lost so often, brings its workers down: each call may be paid, and others wait for them."""


async def call(kit: Kit, lease: Lease, job: Job) -> None:
    """Carry a job by one call in its tier."""
    if job.state is JobState.SUBMITTED:
        job = await take_back_lost(kit, lease, job)
        if not job.is_live:
            return
    job = await kit.commit(lease, JobChange(JobEvent.SUBMIT, (job.id,)))
    source = f"call:{job.attempts}"
    if job.tier is JobTier.FLEX:
        await _call_flex(kit, lease, job, source)
        return
    tried = await attempt(kit, job, job.tier, source)
    await conclude(kit, lease, job, tried)


async def conclude(kit: Kit, lease: Lease, job: Job, tried: Attempt) -> None:
    """Do what an attempt that was alone calls for."""
    if tried.is_decided:
        await decide(kit, lease, job, tried)
    else:
        await send_on(kit, lease, job, tried)


async def take_back_lost(kit: Kit, lease: Lease, job: Job) -> Job:
    """Book the call that was lost with its worker, and take the job as new."""
    kit.watch.trouble(Trouble.LOST_CALL, job.upstream)
    if job.error is not None and job.error.code == RUNNING:
        await kit.book(job, book_unknown(job, f"rescue:{lease.token}"))
    earlier = await kit.insist(lambda: kit.store.bookings(job.id))
    is_last = sum(booking.tier == UNKNOWN_TIER for booking in earlier) + 1 >= MOST_LOST
    lost = JobChange(
        JobEvent.FAIL if is_last else JobEvent.RETRY,
        (job.id,),
        booking=book_unknown(job, f"call:{job.attempts}"),
        error=JobError("worker_lost", "a worker ended during the call"),
    )
    return await kit.commit(lease, lost)


async def _call_flex(kit: Kit, lease: Lease, job: Job, source: str) -> None:
    rescue_time = await kit.rescue_time(job, many=kit.settings.calls)
    flex: asyncio.Task[Attempt | None] = asyncio.get_running_loop().create_task(
        attempt(kit, job, JobTier.FLEX, source), name=f"flex call of {job.id}"
    )

    async def lose_flex(tried: Attempt | None) -> None:
        await lose(kit, job, tried, source)

    try:
        await asyncio.wait({flex}, timeout=max(0.0, rescue_time - kit.now()))
        if flex.done():
            tried = flex.result()
            assert tried is not None
            await conclude(kit, lease, job, tried)
        else:
            await race(kit, lease, job, flex, lose_flex)
    finally:
        await stop(flex)
