"""Jobs that OpenAI carries within a background window."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from proxy.jobs.model import BookingKind, Job, JobState, JobTier
from proxy.sim.scenario import BackgroundRules, FaultMatch, FaultRule, Faults
from tests.support.job_worker import FAST, Rig, rig


async def accept(r: Rig, **fields: Any) -> Job:
    return await r.accept(tier=JobTier.BACKGROUND_2H, endpoint="/v1/responses", model="gpt-5-mini", **fields)


def test_a_window_answers_with_a_completed_response_at_its_price() -> None:
    async def scenario() -> None:
        async with rig() as r:
            job = await accept(r)
            answer = await r.answer(job)
            assert json.loads(answer.body)["status"] == "completed"
            booking = (await r.booked(job))["call:1"]
            assert (booking.tier, booking.kind) == ("background_2h", BookingKind.ANSWER)
            assert booking.usd is not None
            assert booking.standard_usd is not None
            assert abs(booking.usd - 0.7 * booking.standard_usd) < 1e-12
            assert (await r.stats())["executions_by_tier"].keys() == {"background_2h"}
            assert await r.executions(job) == 1

    asyncio.run(scenario())


def test_a_response_that_fails_is_tried_again() -> None:
    async def scenario() -> None:
        fails = FaultRule(
            do=Faults(background_fail=True), match=FaultMatch(path="/v1/responses", method="POST"), first=1
        )
        async with rig(replace(FAST, faults=(fails,))) as r:
            job = await accept(r)
            assert json.loads((await r.answer(job)).body)["status"] == "completed"
            assert (await r.ended(job)).attempts == 2

    asyncio.run(scenario())


def test_a_response_that_the_provider_forgot_is_booked_as_unknown_and_made_again() -> None:
    async def scenario() -> None:
        gone = FaultRule(
            do=Faults(status=404), match=FaultMatch(path="/v1/responses/*", method="GET"), first=1
        )
        async with rig(replace(FAST, faults=(gone,))) as r:
            job = await accept(r)
            assert (await r.answer(job)).status == 200
            kinds = {key: booking.kind for key, booking in (await r.booked(job)).items()}
            assert kinds == {"call:1": BookingKind.FAILURE, "call:2": BookingKind.ANSWER}

    asyncio.run(scenario())


def test_polls_that_fail_are_repeated() -> None:
    async def scenario() -> None:
        down = FaultRule(do=Faults(status=503), match=FaultMatch(path="/v1/responses/*"), first=3)
        async with rig(replace(FAST, faults=(down,))) as r:
            job = await accept(r)
            assert (await r.answer(job)).source == "call:1"
            assert await r.executions(job) == 1

    asyncio.run(scenario())


def test_a_window_that_is_late_is_overtaken_and_cancelled() -> None:
    async def scenario() -> None:
        slow = replace(FAST, background=BackgroundRules(time_factor=1.0))
        async with rig(slow) as r:
            job = await accept(r, seconds=1.2)
            ended = await r.ended(job)
            assert ended.state is JobState.RESCUED
            assert (await r.booked(job))["call:1"].kind is BookingKind.LOSER
            assert (await r.booked(job))["rescue"].kind is BookingKind.ANSWER
            assert (await r.stats())["requests"]["/v1/responses/{id}/cancel"] == 1

    asyncio.run(scenario())


def test_a_job_given_up_is_cancelled_at_the_provider() -> None:
    async def scenario() -> None:
        slow = replace(FAST, background=BackgroundRules(time_factor=1.0))
        async with rig(slow) as r:
            job = await accept(r)

            async def is_with_the_provider() -> bool:
                seen = await r.store.get(job.id)
                return seen is not None and seen.provider_id is not None

            await r.until(is_with_the_provider)
            before = await r.worker.cancel(job.id)
            assert before.provider_id is not None
            assert (await r.ended(job)).state is JobState.CANCELLED
            assert (await r.stats())["requests"]["/v1/responses/{id}/cancel"] == 1

    asyncio.run(scenario())
