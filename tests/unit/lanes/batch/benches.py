"""A batch lane over the memory store, with nobody who works: tests play the worker and the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proxy.core.clock import ManualClock, SystemClock
from proxy.core.document import Document
from proxy.core.exchange import Exchange
from proxy.dialects.chat import CHAT
from proxy.dialects.dialect import Dialect
from proxy.http.head import Header, RequestHead
from proxy.jobs.changes import JobChange, JobQuery
from proxy.jobs.memory_store import MemoryStore
from proxy.jobs.model import Answer, Delivery, Job, JobError, JobState, JobTier
from proxy.jobs.sealing import Vault
from proxy.jobs.store import StoreUnavailable
from proxy.jobs.transitions import JobEvent
from proxy.lanes.batch.lane import BatchLane
from proxy.lanes.batch.plan import DeferralPlan
from proxy.lanes.lane import Call, Deferral, Outgoing
from proxy.policy.model import BatchPolicy
from tests.support.direct_lane import DirectTwin, outgoing, pool
from tests.support.replies import Reply

BODY = b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"hi"}]}'
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-5-mini","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,'
    b'"completion_tokens":1,"total_tokens":2}}'
)
HOLD = DeferralPlan(
    delivery=Delivery.HOLD,
    tiers=(JobTier.FLEX,),
    endpoint="/v1/chat/completions",
    deadline_seconds=60.0,
    hold_seconds=60.0,
    direct_seconds=1.0,
)
LATE = msgspec.structs.replace(HOLD, deadline_seconds=0.1, direct_seconds=3.1)
"""Its way out comes as soon as the caller waits: three seconds of slack less than what a call takes."""

ALICE = ((b"Authorization", b"Bearer sk-alice"), (b"x-stainless-retry-count", b"0"))
AGAIN = ((b"Authorization", b"Bearer sk-alice"), (b"x-stainless-retry-count", b"1"))


class MemoryStoreThatFails(MemoryStore):
    """A memory store that is away while a test says so."""

    is_away = False

    async def _work(self, piece: Callable[[Any], Any]) -> Any:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super()._work(piece)


@dataclass
class Asked:
    """A request on the lane."""

    call: Call
    exchange: Exchange
    reply: Reply
    heartbeats: list[float] = field(default_factory=list)


@dataclass
class LaneBench:
    """The lane, its store, and who is called direct."""

    lane: BatchLane
    store: MemoryStoreThatFails
    direct: DirectTwin
    cancelled: list[str]

    def ask(
        self,
        plan: DeferralPlan = HOLD,
        body: bytes = BODY,
        headers: tuple[tuple[bytes, bytes], ...] = ALICE,
        policy: BatchPolicy | None = None,
        dialect: Dialect = CHAT,
        target: bytes | None = None,
    ) -> Asked:
        """Carry a request."""
        loop = asyncio.get_running_loop()
        sent = outgoing(pool(loop, ManualClock()), body, dialect)
        lines: list[Header] = [(name.lower(), name, value) for name, value in headers]
        head = RequestHead(b"POST", target or dialect.path.encode(), "1.1", lines)
        document = Document.parse(body)
        reply, beats = Reply(), list[float]()
        deferral = Deferral(
            plan=plan,
            policy=policy or BatchPolicy(),
            route="nightly",
            dialect=dialect,
            document=document,
            model="gpt-5-mini",
            is_stream=dialect.is_stream(document),
            wants_usage=False,
            keep_alive=beats.append,
        )
        exchange = Exchange("r1", SystemClock.monotonic())
        given = Outgoing(head, sent.pool, body, sent.plan, deferral=deferral)
        return Asked(self.lane.carry(given, exchange, reply), exchange, reply, beats)

    async def jobs(self, count: int = 1) -> tuple[Job, ...]:
        """Return the jobs in the store, once there are so many."""
        await until(self._has_jobs, count)
        return (await self.store.list_jobs(JobQuery())).jobs

    async def _has_jobs(self, count: int) -> bool:
        return len((await self.store.list_jobs(JobQuery())).jobs) >= count

    async def ends(self, *states: JobState) -> Job:
        """Return the only job, once it has ended (or is in one of these states)."""

        async def is_so() -> bool:
            job = await self.job()
            return job.state in states if states else not job.is_live

        await until(is_so)
        return await self.job()

    async def job(self) -> Job:
        """Return the only job."""
        (job,) = await self.jobs()
        return job

    async def end(self, job: Job, answer: Answer | None = None, error: JobError | None = None) -> None:
        """Be the worker that ends a job: with an answer, else as failed."""
        held = await self.store.claim_job(job.id, "worker", 30.0)
        assert held is not None
        assert held.lease is not None
        await self.store.commit_job(held.lease, JobChange(JobEvent.SUBMIT, (job.id,)))
        event = JobEvent.FAIL if answer is None else JobEvent.SUCCEED
        await self.store.commit_job(held.lease, JobChange(event, (job.id,), answer=answer, error=error))

    async def over(self, asked: Asked) -> Reply:
        """Wait until a caller has its answer."""

        async def is_over() -> bool:
            return asked.reply.is_over

        await until(is_over)
        assert asked.reply.faults == []
        return asked.reply

    async def called_direct(self, count: int = 1) -> None:
        """Wait until so many requests went direct."""

        async def is_so() -> bool:
            return len(self.direct.calls) >= count

        await until(is_so)


async def until(is_so: Callable[..., Awaitable[bool]], *values: int) -> None:
    """Wait for something that will be so in a moment."""
    for _ in range(1000):
        if await is_so(*values):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


LaneTest = Callable[[LaneBench], Awaitable[None]]


@asynccontextmanager
async def lane_bench(vault: Vault | None = None, grace_seconds: float = 0.05) -> AsyncIterator[LaneBench]:
    """Run a lane until the end of the context."""
    store = MemoryStoreThatFails()
    direct = DirectTwin(ManualClock())
    cancelled: list[str] = []

    async def cancel(job_id: str, *, if_unwanted: bool = False) -> Job:
        job = await store.cancel(job_id, if_unwanted=if_unwanted)
        cancelled.append(job_id)
        return job

    lane = BatchLane(
        asyncio.get_running_loop(),
        SystemClock(),
        store,
        direct,
        vault,
        lambda: not store.is_away,
        cancel,
        grace_seconds,
    )
    lane.salt = b"s" * 32
    try:
        yield LaneBench(lane, store, direct, cancelled)
    finally:
        await lane.tasks.end(0.0)


def on_a_lane(test: LaneTest) -> Callable[[], None]:
    """Run a test on a lane of its own."""

    def run() -> None:
        async def main() -> None:
            async with lane_bench() as bench:
                await test(bench)

        asyncio.run(main())

    run.__name__ = getattr(test, "__name__", "test")
    run.__doc__ = test.__doc__
    return run


def ok(body: bytes = ANSWER) -> Answer:
    """Return an answer of the provider."""
    return Answer(200, body, (("content-type", "application/json"),), "call:1", "flex")
