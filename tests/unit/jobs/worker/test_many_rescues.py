"""Thousands of jobs that are late together: their direct calls begin one after the other, and in time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from aiohttp import web

from proxy.jobs.model import JobState, JobTier
from proxy.jobs.worker.ports import RouteRules
from tests.support.job_worker import FAST, QUICK, Table, rig

SLOW_BATCHES = replace(FAST, batches=replace(FAST.batches, turnaround_seconds=3600.0))
ANSWER = {"object": "chat.completion", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@dataclass
class Crowded:
    """A server that sees how many calls it works on at once."""

    seconds: float = 0.05
    now: int = 0
    most: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        return app

    async def _answer(self, _: web.Request) -> web.Response:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return web.json_response(ANSWER)


def test_jobs_of_a_batch_are_rescued_at_times_of_their_own() -> None:
    async def scenario() -> None:
        settings = replace(QUICK, calls=2, lease_seconds=1.0)
        rules = RouteRules(20, 5.0)
        table = Table(direct_seconds=30.0)
        async with rig(SLOW_BATCHES, settings=settings, rules=rules, table=table) as r:
            jobs = [await r.accept(seconds=3600.0, due=9_000_000_000.0) for _ in range(20)]

            async def are_submitted() -> bool:
                seen = await r.store.jobs([job.id for job in jobs])
                return all(job.state is JobState.SUBMITTED for job in seen)

            await r.until(are_submitted)
            times = [job.due - job.deadline for job in await r.store.jobs([job.id for job in jobs])]
            # Nine pairs before the last one, half a minute each.
            assert all(-(30.0 + 9 * 30.0 + 8.0) <= time <= -30.0 for time in times)
            assert len({round(time) for time in times}) > 10

    asyncio.run(scenario())


def test_many_late_jobs_are_all_answered_in_time_by_few_calls_at_once() -> None:
    async def scenario() -> None:
        slow = replace(SLOW_BATCHES, timing=replace(FAST.timing, base_ms=120.0))
        settings = replace(QUICK, calls=2, lease_seconds=0.3)
        # The last pair begins so long before the deadline: more than a call takes, on a busy machine too.
        table = Table(direct_seconds=0.8)
        async with rig(slow, settings=settings, rules=RouteRules(8, 5.0), table=table) as r:
            jobs = [await r.accept(seconds=6.5) for _ in range(8)]
            endings = {(await r.ended(job)).ended_as for job in jobs}
            assert endings == {JobState.RESCUED}

    asyncio.run(scenario())


def test_no_more_calls_go_on_than_the_upstream_takes() -> None:
    async def scenario() -> None:
        server = Crowded()
        async with rig(app=server.app(), max_connections=3) as r:
            jobs = [await r.accept(tier=JobTier.DIRECT) for _ in range(12)]
            for job in jobs:
                assert (await r.answer(job)).status == 200
            assert server.most == 3

    asyncio.run(scenario())


def test_who_gets_no_turn_before_the_deadline_has_cost_nothing() -> None:
    async def scenario() -> None:
        server = Crowded(seconds=2.0)
        async with rig(app=server.app(), max_connections=1, settings=replace(QUICK, calls=2)) as r:
            first = await r.accept(tier=JobTier.DIRECT)

            async def is_called() -> bool:
                return server.now == 1

            await r.until(is_called)
            second = await r.accept(tier=JobTier.DIRECT, seconds=0.3)
            ended = await r.ended(second)
            assert ended.ended_as is JobState.EXPIRED
            assert not await r.booked(second)
            assert (await r.answer(first)).status == 200

    asyncio.run(scenario())
