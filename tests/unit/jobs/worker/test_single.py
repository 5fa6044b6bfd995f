"""Jobs that one call carries: flex and direct."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiohttp import web

from proxy.jobs.model import BookingKind, Delivery, JobState, JobTier
from proxy.jobs.worker.loop import Worker
from proxy.sim.scenario import FaultMatch, FaultRule, Faults, FlexRules
from tests.support.job_worker import FAST, QUICK, kit_for, rig


def test_a_flex_job_is_answered_and_booked_at_the_flex_price() -> None:
    async def scenario() -> None:
        async with rig() as r:
            job = await r.accept(tier=JobTier.FLEX)
            answer = await r.answer(job)
            ended = await r.ended(job)
            assert (ended.state, answer.status, answer.tier) == (JobState.SUCCEEDED, 200, "flex")
            assert answer.source == "call:1"
            booking = (await r.booked(job))["call:1"]
            assert booking.kind is BookingKind.ANSWER
            assert booking.usd is not None
            assert booking.standard_usd is not None
            assert booking.usd * 2 == booking.standard_usd
            assert await r.executions(job) == 1

    asyncio.run(scenario())


def test_a_capacity_miss_is_asked_again_and_not_billed() -> None:
    async def scenario() -> None:
        async with rig(replace(FAST, flex=FlexRules(miss_every=2))) as r:
            jobs = [await r.accept(tier=JobTier.FLEX) for _ in range(4)]
            for job in jobs:
                assert (await r.answer(job)).tier == "flex"
                assert await r.executions(job) == 1
            for job in jobs:
                assert len(await r.booked(job)) == 1

    asyncio.run(scenario())


def test_flex_without_any_capacity_is_overtaken_by_a_direct_call_in_time() -> None:
    async def scenario() -> None:
        async with rig(replace(FAST, flex=FlexRules(miss_share=1.0))) as r:
            job = await r.accept(tier=JobTier.FLEX, seconds=1.5)
            answer = await r.answer(job)
            assert answer.tier == "default"
            assert (await r.ended(job)).ended <= job.deadline  # type: ignore[operator]
            assert await r.executions(job) == 1

    asyncio.run(scenario())


def test_a_promise_outlives_the_deadline_of_the_caller_that_it_joined() -> None:
    async def scenario() -> None:
        slow = FaultRule(
            do=Faults(first_byte_ms=8000), match=FaultMatch(path="/v1/chat/completions"), first=2
        )
        async with rig(replace(FAST, faults=(slow,))) as r:
            job = await r.accept(tier=JobTier.FLEX, seconds=1.2, delivery=Delivery.HOLD)
            promised = replace(job, id="b" * 32, delivery=Delivery.TICKET, deadline=job.deadline + 30)
            joined = await r.store.accept(promised, b"{}")
            ended = await r.ended(job)
            assert joined.job.id == job.id
            assert ended.state is JobState.SUCCEEDED
            assert ended.ended is not None
            assert ended.ended > job.deadline

    asyncio.run(scenario())


def test_a_provider_without_flex_is_called_directly_at_once() -> None:
    async def scenario() -> None:
        async with rig(replace(FAST, flex=FlexRules(offered=False))) as r:
            job = await r.accept(tier=JobTier.FLEX)
            assert (await r.answer(job)).tier == "default"
            assert (await r.ended(job)).tier is JobTier.DIRECT

    asyncio.run(scenario())


def test_a_flex_call_that_hangs_is_rescued_and_its_cost_booked_as_unknown() -> None:
    async def scenario() -> None:
        slow = FaultRule(
            do=Faults(first_byte_ms=8000), match=FaultMatch(path="/v1/chat/completions"), first=1
        )
        async with rig(replace(FAST, faults=(slow,))) as r:
            job = await r.accept(tier=JobTier.FLEX, seconds=1.2)
            ended = await r.ended(job)
            assert ended.state is JobState.RESCUED
            assert (await r.answer(job)).source == "rescue"
            booked = await r.booked(job)
            assert {key: each.kind for key, each in booked.items()} == {
                "rescue": BookingKind.ANSWER,
                "call:1": BookingKind.LOSER,
            }
            assert booked["call:1"].usd is None
            assert await r.executions(job) == 2

    asyncio.run(scenario())


def test_an_outage_is_sat_out() -> None:
    async def scenario() -> None:
        down = FaultRule(do=Faults(status=503), first=4)
        cut = FaultRule(do=Faults(cut_before=True), first=2)
        async with rig(replace(FAST, faults=(cut, down))) as r:
            job = await r.accept(tier=JobTier.DIRECT)
            assert (await r.answer(job)).status == 200
            assert (await r.ended(job)).attempts >= 4
            assert await r.executions(job) == 1

    asyncio.run(scenario())


def test_a_refusal_of_the_request_is_the_answer() -> None:
    async def scenario() -> None:
        bad = FaultRule(do=Faults(status=400, error_code="invalid_value"))
        async with rig(replace(FAST, faults=(bad,))) as r:
            job = await r.accept(tier=JobTier.FLEX)
            ended = await r.ended(job)
            answer = await r.store.answer(job.id)
            assert ended.state is JobState.FAILED
            assert ended.attempts == 1
            assert answer is not None
            assert answer.status == 400
            assert b"invalid_value" in answer.body
            assert await r.booked(job) == {}

    asyncio.run(scenario())


def test_no_money_is_not_asked_twice() -> None:
    async def scenario() -> None:
        broke = FaultRule(do=Faults(status=429, error_code="insufficient_quota"))
        async with rig(replace(FAST, faults=(broke,))) as r:
            job = await r.accept(tier=JobTier.FLEX)
            assert (await r.ended(job)).state is JobState.FAILED
            assert (await r.ended(job)).attempts == 1

    asyncio.run(scenario())


def test_a_provider_that_is_down_for_good_expires_the_job_with_its_last_word() -> None:
    async def scenario() -> None:
        down = FaultRule(do=Faults(status=503, error_code="overloaded"))
        async with rig(replace(FAST, faults=(down,))) as r:
            job = await r.accept(tier=JobTier.DIRECT, seconds=0.6)
            ended = await r.ended(job)
            assert ended.state in (JobState.FAILED, JobState.EXPIRED)
            assert ended.error is not None
            assert (await r.booked(job)) == {}

    asyncio.run(scenario())


def test_a_job_given_up_during_its_call_is_cut_off_and_booked() -> None:
    async def scenario() -> None:
        slow = FaultRule(do=Faults(first_byte_ms=8000))
        settings = replace(QUICK, lease_seconds=0.6)
        async with rig(replace(FAST, faults=(slow,)), settings=settings) as r:
            job = await r.accept(tier=JobTier.DIRECT)

            async def is_running() -> bool:
                return (await r.executions(job)) == 1

            await r.until(is_running)
            await r.worker.cancel(job.id)

            async def is_booked() -> bool:
                return "call:1" in await r.booked(job)

            await r.until(is_booked)
            assert (await r.booked(job))["call:1"].kind is BookingKind.LOSER

            async def has_hung_up() -> bool:
                return bool((await r.stats())["disconnects"]["before_first_byte"] == 1)

            await r.until(has_hung_up)

    asyncio.run(scenario())


def test_a_stopped_worker_gives_its_calls_back_at_once() -> None:
    async def scenario() -> None:
        slow = FaultRule(do=Faults(first_byte_ms=8000), first=1)
        async with rig(replace(FAST, faults=(slow,)), settings=replace(QUICK, lease_seconds=60)) as r:
            job = await r.accept(tier=JobTier.DIRECT)

            async def is_running() -> bool:
                return (await r.executions(job)) == 1

            await r.until(is_running)
            await r.worker.stop()
            second = Worker(kit_for(r.store, r.policies, replace(QUICK, name="worker-b")))
            task = asyncio.get_running_loop().create_task(second.run())
            answer = await r.answer(job)
            assert answer.source == "call:2"
            assert (await r.booked(job))["call:1"].kind is BookingKind.FAILURE
            await second.stop()
            await task
            await second.kit.providers.close()

    asyncio.run(scenario())


def test_a_provider_that_wants_peace_beyond_the_deadline_is_asked_once_more_before_it() -> None:
    async def scenario() -> None:
        busy = FaultRule(do=Faults(status=429, retry_after=3600.0), first=1)
        async with rig(replace(FAST, faults=(busy,))) as r:
            job = await r.accept(tier=JobTier.DIRECT, seconds=1.2)
            assert (await r.answer(job)).status == 200
            assert (await r.ended(job)).attempts == 2

    asyncio.run(scenario())


def test_a_call_that_worked_without_an_answer_of_use_is_made_again_and_may_have_been_billed() -> None:
    replies = [b"<html>", b'{"error":{"code":"server_error"}}', b'{"object":"chat.completion","choices":[]}']

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=replies.pop(0), content_type="application/json")

    async def scenario() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        async with rig(app=app) as r:
            job = await r.accept(tier=JobTier.DIRECT)
            told = await r.answer(job)
            assert (await r.ended(job)).state is JobState.SUCCEEDED
            assert told.body == b'{"object":"chat.completion","choices":[]}'
            booked = await r.booked(job)
            assert [booked[f"call:{number}"].tier for number in (1, 2)] == ["unknown"] * 2

    asyncio.run(scenario())
