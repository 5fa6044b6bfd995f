"""One call to a provider for one job, and the race of two.

Owns what is sent and what is kept of an answer. An attempt never raises for what the provider does: it says
what came of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from proxy.jobs.booking import Bill, book, book_failure, book_unknown, read_bill
from proxy.jobs.model import Answer, Booking, BookingKind, HeaderFields, Job, JobError, JobTier
from proxy.jobs.sealing import SealError
from proxy.jobs.shaping import body_for
from proxy.jobs.verdicts import Judged, Verdict, judge
from proxy.jobs.worker.kit import Kit
from proxy.upstream.providers.answers import retry_after_seconds
from proxy.upstream.providers.client import CallFailed, Reply

KEPT_HEADERS = frozenset(
    {"content-type", "x-request-id", "request-id", "openai-processing-ms", "openai-version"}
)
"""Header fields of an answer that are stored with it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one call.

    source          names the execution within its job
    reply           `None` where there is no complete answer
    may_have_run    there is none, or none of use, and the provider may have worked (and billed) all the same
    """

    tier: JobTier
    source: str
    judged: Judged
    reply: Reply | None = field(default=None, repr=False)
    may_have_run: bool = False
    seconds: float = 0.0

    @property
    def is_decided(self) -> bool:
        """It is the provider's last word."""
        return self.judged.verdict in (Verdict.ANSWER, Verdict.FINAL)

    @property
    def retry_after_seconds(self) -> float | None:
        """When the provider wants to be asked again."""
        return None if self.reply is None else retry_after_seconds(self.reply.headers)


async def attempt(kit: Kit, job: Job, tier: JobTier, source: str) -> Attempt:
    """Send a job's body by a tier that is one call; raises nothing for what the provider does."""
    try:
        bodies = await kit.insist(lambda: kit.store.bodies((job.id,)))
    except SealError as problem:
        return Attempt(tier, source, Judged(Verdict.FINAL, unreadable(problem)))
    body = bodies.get(job.id)
    if body is None:
        return Attempt(tier, source, Judged(Verdict.FINAL, JobError("body_erased", "the body is erased")))
    try:
        async with kit.turns.turn(job.upstream, tier, kit.most_calls(job.upstream), job.deadline - kit.now()):
            return await _call(kit, job, tier, source, body)
    except TimeoutError:
        error = JobError("no_turn", "too many other calls to the upstream are under way")
        return Attempt(tier, source, Judged(Verdict.AGAIN, error))


def unreadable(problem: SealError) -> JobError:
    """Return why a job fails whose body does not open: nothing was sent, so nothing is booked."""
    return JobError("body_unreadable", f"the job's request cannot be read: {problem}")


async def _call(kit: Kit, job: Job, tier: JobTier, source: str, body: bytes) -> Attempt:
    begun = kit.now()
    try:
        reply = await kit.providers.client(job.upstream).call(
            job.method,
            job.endpoint,
            headers=_fields(job),
            credential=kit.providers.credential(job),
            body=body_for(tier, body),
            answer_seconds=max(1.0, job.deadline - begun),
            total_seconds=max(1.0, job.deadline - begun),
        )
    except CallFailed as failed:
        error = JobError("provider_unavailable", str(failed))
        return Attempt(
            tier, source, Judged(Verdict.AGAIN, error), None, failed.may_have_happened, kit.now() - begun
        )
    except SealError as problem:
        error = JobError("credential_unreadable", str(problem))
        return Attempt(tier, source, Judged(Verdict.CREDENTIALS, error))
    judged = judge(tier, reply.status, reply.body)
    may_have_run = reply.status < 300 and judged.verdict is not Verdict.ANSWER
    return Attempt(tier, source, judged, reply, may_have_run, kit.now() - begun)


def _fields(job: Job) -> HeaderFields:
    named = {name.lower() for name, _ in job.headers}
    return job.headers if "content-type" in named else (*job.headers, ("Content-Type", "application/json"))


def answer_of(job: Job, tried: Attempt) -> Answer | None:
    """Return what is stored of an attempt."""
    reply = tried.reply
    if reply is None:
        return None
    kept = tuple((name, value) for name, value in reply.headers.items() if name in KEPT_HEADERS)
    tier = booked(job, tried, BookingKind.ANSWER, None).tier
    return Answer(reply.status, reply.body, kept, tried.source, tier)


def booked(job: Job, tried: Attempt, kind: BookingKind, kit: Kit | None) -> Booking:
    """Return the bill of an answered attempt."""
    bill = bill_of(job, tried)
    price = None if kit is None else kit.price(job.upstream, job.model)
    return book(job, tried.source, kind, tried.tier, bill, price)


def bill_of(job: Job, tried: Attempt) -> Bill:
    """Return what an attempt says about its cost."""
    return Bill(None, None) if tried.reply is None else read_bill(job.endpoint, tried.reply.body)


def booked_failure(kit: Kit, job: Job, tried: Attempt) -> Booking | None:
    """Return the bill of an attempt without a usable answer, `None` where there is nothing to pay."""
    price = kit.price(job.upstream, job.model)
    booking = book_failure(job, tried.source, tried.tier, bill_of(job, tried), price)
    return book_unknown(job, tried.source) if booking is None and tried.may_have_run else booking


async def stop(task: asyncio.Task[Attempt | None]) -> Attempt | None:
    """Cancel a task that has lost, and return what came of it if it was faster."""
    if not task.done():
        task.cancel()
    await asyncio.wait({task})
    return None if task.cancelled() or task.exception() is not None else task.result()
