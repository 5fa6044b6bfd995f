"""Jobs that OpenAI carries as a background response within a window: create, poll, cancel.

    accepted ── SUBMIT ── POST ──► submitted with `provider_id` ── poll ──► succeed | fail | the queue

A response cannot be looked for: one whose creation was lost is booked as unknown. Source: OpenAI's guide on
background mode.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from proxy.core.json_values import decode
from proxy.jobs.changes import JobChange
from proxy.jobs.model import Job, JobError, JobState, Lease
from proxy.jobs.sealing import SealError
from proxy.jobs.transitions import JobEvent
from proxy.jobs.verdicts import Judged, Verdict, judge, judge_background
from proxy.jobs.worker.attempts import Attempt, attempt, stop
from proxy.jobs.worker.endings import decide, lose, send_on
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.rescue import race
from proxy.jobs.worker.single import conclude, take_back_lost
from proxy.upstream.providers.client import CallFailed, Reply

_CALL_SECONDS = 60.0


async def background(kit: Kit, lease: Lease, job: Job) -> None:
    """Take a job of a background window one step further."""
    if job.state is JobState.SUBMITTED and job.provider_id is not None:
        await _look(kit, lease, job)
        return
    if job.state is JobState.SUBMITTED:
        job = await take_back_lost(kit, lease, job)
        if not job.is_live:
            return
    job = await kit.commit(lease, JobChange(JobEvent.SUBMIT, (job.id,)))
    tried = await attempt(kit, job, job.tier, f"call:{job.attempts}")
    if tried.judged.verdict is not Verdict.ANSWER or tried.reply is None:
        await conclude(kit, lease, job, tried)
        return
    value = decode(tried.reply.body)
    provider_id = value.get("id") if isinstance(value, dict) else None
    judged = judge_background(tried.reply.body)
    if judged is not None or not isinstance(provider_id, str):
        # Answered at once: a server that knows no windows.
        await decide(kit, lease, job, tried)
        return
    due = min(kit.next_poll(0.0), await _rescue_time(kit, job))
    await kit.commit(lease, JobChange(JobEvent.PROGRESS, (job.id,), provider_id=provider_id, due=due))


async def _rescue_time(kit: Kit, job: Job) -> float:
    return max(kit.now(), await kit.rescue_time(job))


async def _look(kit: Kit, lease: Lease, job: Job) -> None:
    tried = await _poll(kit, job)
    if tried is not None:
        if tried.is_decided:
            await decide(kit, lease, job, tried)
        else:
            await send_on(kit, lease, job, tried)
        return
    rescue = await _rescue_time(kit, job)
    if kit.now() < rescue:
        due = min(kit.next_poll(kit.now() - job.created), rescue)
        await kit.commit(lease, JobChange(JobEvent.PROGRESS, (job.id,), due=due))
        return
    await _rescue(kit, lease, job)


async def _rescue(kit: Kit, lease: Lease, job: Job) -> None:
    own: asyncio.Task[Attempt | None] = asyncio.get_running_loop().create_task(
        _poll_on(kit, job), name=f"background response of {job.id}"
    )

    async def lose_own(tried: Attempt | None) -> None:
        await lose(kit, job, tried or await cancelled(kit, job), _source(job))

    try:
        await race(kit, lease, job, own, lose_own)
    finally:
        await stop(own)


async def _poll_on(kit: Kit, job: Job) -> Attempt:
    while True:
        await kit.sleep(kit.settings.poll_seconds)
        tried = await _poll(kit, job)
        if tried is not None:
            return tried


async def _poll(kit: Kit, job: Job) -> Attempt | None:
    """Look at a response once; `None`: not ended yet, or the provider cannot be asked now."""
    try:
        reply = await _ask(kit, job, "GET", "")
    except (CallFailed, SealError):
        return None
    if reply.status < 300:
        judged = judge_background(reply.body)
        seconds = kit.now() - job.created
        return None if judged is None else Attempt(job.tier, _source(job), judged, reply, seconds=seconds)
    passing = judge(job.tier, reply.status, reply.body).verdict in (Verdict.AGAIN, Verdict.CREDENTIALS)
    if passing:
        return None
    error = JobError("response_gone", "the provider does not know the background response any more")
    return Attempt(job.tier, _source(job), Judged(Verdict.AGAIN, error), None, may_have_run=True)


async def cancelled(kit: Kit, job: Job) -> Attempt | None:
    """Cancel a background response at the provider; what it says about its cost, where it says something."""
    try:
        reply = await _ask(kit, job, "POST", "/cancel")
    except (CallFailed, SealError):
        return None
    value = decode(reply.body)
    if reply.status >= 300 or not isinstance(value, dict) or not value.get("usage"):
        return None
    return Attempt(job.tier, _source(job), Judged(Verdict.ANSWER), reply)


async def _ask(kit: Kit, job: Job, method: str, suffix: str) -> Reply:
    return await kit.providers.client(job.upstream).call(
        method,
        f"{job.endpoint}/{quote(job.provider_id or '', safe='')}{suffix}",
        headers=tuple(field for field in job.headers if field[0].lower() != "content-type"),
        credential=kit.providers.credential(job),
        total_seconds=_CALL_SECONDS,
    )


def _source(job: Job) -> str:
    return f"call:{job.attempts}"
