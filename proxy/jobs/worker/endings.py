"""How an attempt ends a job, or sends it on: the changes that single calls commit.

Owns the bookkeeping of winners and losers. A commit that comes too late (the job was cancelled, or its batch
was faster) books the execution as a loser's: it was paid all the same.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.jobs.booking import book_unknown
from proxy.jobs.changes import JobChange
from proxy.jobs.model import BookingKind, Job, JobError, JobTier, Lease
from proxy.jobs.store import Conflict, LeaseLost
from proxy.jobs.tiers import rescue_at
from proxy.jobs.transitions import JobEvent
from proxy.jobs.verdicts import Verdict, requeue
from proxy.jobs.worker.attempts import Attempt, answer_of, booked, booked_failure
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import Trouble

RUNNING = "rescue_running"
"""`Job.error.code` while a rescue is under way: who finds it after a crash knows that a call was lost."""


async def decide(kit: Kit, lease: Lease, job: Job, tried: Attempt, *, is_rescue: bool = False) -> None:
    """End a job with the provider's last word; `is_rescue`: a call beside the tier's own work gave it."""
    is_answer = tried.judged.verdict is Verdict.ANSWER
    event = (JobEvent.RESCUE if is_rescue else JobEvent.SUCCEED) if is_answer else JobEvent.FAIL
    answer = answer_of(job, tried)
    booking = booked(job, tried, BookingKind.ANSWER, kit) if is_answer else booked_failure(kit, job, tried)
    change = JobChange(event, (job.id,), answer=answer, booking=booking, error=tried.judged.error)
    if is_answer:
        await kit.observe(job, tried.tier, tried.seconds)
    try:
        await kit.commit(lease, change)
    except (Conflict, LeaseLost):
        if booking is not None:
            await kit.book(job, replace(booking, kind=BookingKind.LOSER))
        raise


async def lose(kit: Kit, job: Job, tried: Attempt | None, source: str) -> None:
    """Book the other call of a race: with its figures if it was answered, as unknown if it was cut off."""
    if tried is None or (tried.may_have_run and tried.reply is None):
        await kit.book(job, book_unknown(job, source, BookingKind.LOSER))
    elif tried.reply is not None and tried.judged.verdict is Verdict.ANSWER:
        await kit.book(job, booked(job, tried, BookingKind.LOSER, kit))
    else:
        failure = booked_failure(kit, job, tried)
        if failure is not None:
            await kit.book(job, failure)


async def send_on(kit: Kit, lease: Lease, job: Job, tried: Attempt) -> None:
    """Put a job back into the queue after an attempt that was not the last word, or end it: time is up."""
    verdict = tried.judged.verdict
    _trouble(kit, job, tried)
    wait = max(kit.backoff(job.attempts), tried.retry_after_seconds or 0.0)
    may_stay = verdict in (Verdict.AGAIN, Verdict.CREDENTIALS) or (
        verdict is Verdict.MISS and job.attempts < kit.settings.flex_misses
    )
    if verdict is Verdict.CREDENTIALS and job.is_borrowing:
        await decide(kit, lease, job, tried)  # the caller's own key: nobody here can mend it
        return
    p95 = await kit.p95_seconds(job.upstream, job.model)
    if verdict is Verdict.MISS and not may_stay and JobTier.BATCH not in job.tiers:
        may_stay = True  # nothing cheap is left: flex is asked until the rescue
    to = requeue(job, kit.now(), p95, wait, may_stay=may_stay)
    due = _due(kit.now() + to.wait_seconds, job, kit.now() + kit.backoff(1), p95[JobTier.DIRECT])
    if due is None:
        await _give_up(kit, lease, job, tried)
        return
    if to.next.tier is JobTier.BATCH:
        due = max(kit.now(), await kit.rescue_time(job, since=kit.now()))
    change = JobChange(
        JobEvent.RETRY,
        (job.id,),
        due=due,
        ready=kit.now(),
        tier=to.next.tier,
        tiers=to.next.left,
        error=tried.judged.error,
        booking=booked_failure(kit, job, tried),
    )
    await kit.commit(lease, change)


def _due(wanted: float, job: Job, soonest: float, direct_p95_seconds: float) -> float | None:
    """Return when a job is tried again; `None`: not before its deadline.

    A provider that wants to be left alone beyond the deadline is asked once more as late as it makes sense.
    """
    if wanted < job.deadline:
        return wanted
    last = rescue_at(job.deadline, direct_p95_seconds)
    return last if last > soonest else None


async def _give_up(kit: Kit, lease: Lease, job: Job, tried: Attempt) -> None:
    """End a job whose time is up with the provider's last answer, if it gave one."""
    event = JobEvent.EXPIRE if tried.reply is None else JobEvent.FAIL
    change = JobChange(
        event,
        (job.id,),
        answer=answer_of(job, tried),
        booking=booked_failure(kit, job, tried),
        error=tried.judged.error,
    )
    await kit.commit(lease, change)


async def expire(kit: Kit, lease: Lease, job: Job) -> None:
    """End a job whose deadline has passed, unless somebody with more time has joined it meanwhile."""
    seen = await kit.insist(lambda: kit.store.get(job.id))
    if seen is not None and seen.is_live and kit.now() < seen.deadline:
        note = JobError("deadline_moved", "no answer came for the first of its callers in time")
        back = JobChange(JobEvent.RETURN, (job.id,), tier=JobTier.DIRECT, tiers=(), due=kit.now(), error=note)
        await kit.commit(lease, back)
        return
    error = JobError("deadline_passed", "no answer came before the deadline")
    await kit.commit(lease, JobChange(JobEvent.EXPIRE, (job.id,), error=error))


def _trouble(kit: Kit, job: Job, tried: Attempt) -> None:
    kinds = {
        Verdict.MISS: Trouble.CAPACITY_MISS,
        Verdict.CREDENTIALS: Trouble.CREDENTIALS,
        Verdict.OTHER_TIER: Trouble.REFUSED,
    }
    kind = kinds.get(tried.judged.verdict, Trouble.PROVIDER)
    if tried.reply is not None and tried.reply.status == 429 and kind is Trouble.PROVIDER:
        kind = Trouble.RATE_LIMITED
    kit.watch.trouble(kind, job.upstream)
