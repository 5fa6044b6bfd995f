"""Jobs that a batch carries: every way in which one may go, each job's answer once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import aiohttp

from proxy.core.upstream import Provider
from proxy.jobs.model import BookingKind, Job, JobState, JobTier
from proxy.jobs.store import JobStore
from proxy.jobs.transitions import BatchEvent
from proxy.jobs.worker.loop import Worker
from proxy.jobs.worker.ports import RouteRules, Trouble
from proxy.sim.scenario import FaultMatch, FaultRule, Faults, LineRule, Scenario
from tests.support.job_worker import FAST, QUICK, Counting, Rig, kit_for, rig


def with_batches(**fields: Any) -> Scenario:
    return replace(FAST, batches=replace(FAST.batches, **fields))


def with_lines(*lines: LineRule) -> Scenario:
    return with_batches(lines=lines)


def failing(method: str, path: str, **fault: Any) -> FaultRule:
    first = fault.pop("first", None)
    return FaultRule(do=Faults(**fault), match=FaultMatch(path=path, method=method), first=first)


async def several(r: Rig, count: int = 10, **fields: Any) -> list[Job]:
    return [await r.accept(**fields) for _ in range(count)]


async def assert_each_answered_once(r: Rig, jobs: Sequence[Job], tier: str = "batch") -> None:
    for job in jobs:
        answer = await r.answer(job)
        assert (answer.status, answer.tier) == (200, tier)
        assert await r.executions(job) == 1


async def everything_is_cleaned(r: Rig) -> bool:
    key = {"Authorization": "Bearer sk-test"}
    async with aiohttp.ClientSession() as session, session.get(f"{r.url}/v1/files", headers=key) as response:
        return not (await response.json())["data"]


def test_jobs_share_a_batch_and_are_booked_at_its_price() -> None:
    async def scenario() -> None:
        async with rig() as r:
            jobs = await several(r)
            await assert_each_answered_once(r, jobs)
            stats = await r.stats()
            assert stats["batches_created"] == 1
            for job in jobs:
                (booking,) = (await r.booked(job)).values()
                assert booking.kind is BookingKind.ANSWER
                assert booking.tier == "batch"
                assert booking.usd is not None
                assert booking.standard_usd == 2 * booking.usd
            await r.until(lambda: everything_is_cleaned(r))
            assert len(await r.store.completions("openai", "gpt-4o-mini", JobTier.BATCH)) == 1

    asyncio.run(scenario())


def test_a_lonely_job_is_sent_when_it_is_old_enough() -> None:
    async def scenario() -> None:
        async with rig() as r:
            await assert_each_answered_once(r, [await r.accept()])

    asyncio.run(scenario())


def test_too_few_jobs_for_a_batch_are_called_directly_where_the_route_says_so() -> None:
    async def scenario() -> None:
        async with rig(rules=RouteRules(10, 0.05, min_jobs=3)) as r:
            await assert_each_answered_once(r, [await r.accept()], "default")
            assert (await r.stats())["batches_created"] == 0

    asyncio.run(scenario())


def test_lines_that_fail_for_now_go_again_and_those_that_fail_for_good_give_their_own_error() -> None:
    async def scenario() -> None:
        lines = (
            LineRule(contains="busy", status=429, first=1),
            LineRule(contains="broken", status=500, first=1),
            LineRule(contains="late", code="batch_expired", first=1),
            LineRule(contains="wrong", status=400, code="invalid_value"),
        )
        async with rig(with_lines(*lines)) as r:
            good = [await r.accept(word) for word in ("fine", "busy", "broken", "late")]
            wrong = await r.accept("wrong")
            for job in good:
                assert (await r.answer(job)).tier == "batch"
                assert await r.executions(job) == 1
            ended = await r.ended(wrong)
            answer = await r.store.answer(wrong.id)
            assert ended.state is JobState.FAILED
            assert answer is not None
            assert answer.status == 400
            assert json.loads(answer.body)["error"]["code"] == "invalid_value"
            assert await r.booked(wrong) == {}

    asyncio.run(scenario())


def test_a_batch_of_errors_alone_is_no_success() -> None:
    async def scenario() -> None:
        async with rig(with_lines(LineRule(status=400, code="invalid_value"))) as r:
            for job in await several(r, 3):
                assert (await r.ended(job)).state is JobState.FAILED

    asyncio.run(scenario())


def test_a_line_that_is_missing_or_comes_twice_ends_its_job_once() -> None:
    async def scenario() -> None:
        lines = (
            LineRule(contains="lost", missing=True, first=1),
            LineRule(contains="double", duplicate=True),
        )
        async with rig(with_lines(*lines)) as r:
            lost, double = await r.accept("lost"), await r.accept("double")
            assert (await r.answer(double)).status == 200
            assert (await r.answer(lost)).status == 200
            assert await r.executions(double) == 1
            assert Trouble.MISSING_LINE in r.watch.troubles
            assert Trouble.DUPLICATE_LINE in r.watch.troubles
            kinds = sorted(booking.kind.value for booking in (await r.booked(lost)).values())
            assert kinds == ["answer", "failure"]

    asyncio.run(scenario())


def test_a_job_that_no_batch_answers_is_called_directly_after_some_tries() -> None:
    async def scenario() -> None:
        async with rig(with_lines(LineRule(status=500))) as r:
            job = await r.accept()
            assert (await r.answer(job)).tier == "default"
            assert (await r.stats())["batches_created"] == QUICK.batch_tries

    asyncio.run(scenario())


def test_what_an_expired_batch_has_done_is_delivered_and_the_rest_goes_again() -> None:
    async def scenario() -> None:
        expiring = failing("POST", "/v1/batches", batch_expire_seconds=0.15, first=1)
        async with rig(replace(with_batches(turnaround_seconds=0.3), faults=(expiring,))) as r:
            jobs = await several(r)
            await assert_each_answered_once(r, jobs)
            assert (await r.stats())["batches_created"] == 2
            attempts = {(await r.ended(job)).attempts for job in jobs}
            assert attempts == {1, 2}

    asyncio.run(scenario())


def test_a_quota_refusal_halves_the_batch_and_comes_back() -> None:
    async def scenario() -> None:
        async with rig(with_batches(enqueued_tokens=60)) as r:
            jobs = await several(r, 8)
            await assert_each_answered_once(r, jobs)
            assert Trouble.QUOTA in r.watch.troubles
            assert (await r.stats())["batches_created"] > 2

    asyncio.run(scenario())


def test_a_file_that_is_too_large_is_halved_at_once() -> None:
    async def scenario() -> None:
        async with rig(with_batches(max_lines=3)) as r:
            jobs = await several(r, 10)
            await assert_each_answered_once(r, jobs)

    asyncio.run(scenario())


def test_refused_lines_go_directly_and_the_others_into_a_new_batch() -> None:
    async def scenario() -> None:
        refused = failing("POST", "/v1/batches", batch_refuse="invalid_request", first=1)
        async with rig(replace(FAST, faults=(refused,))) as r:
            jobs = await several(r, 4)
            for job in jobs:
                assert (await r.answer(job)).status == 200
                assert await r.executions(job) == 1

    asyncio.run(scenario())


def test_a_creation_whose_answer_was_lost_is_found_again_not_repeated() -> None:
    async def scenario() -> None:
        for lost in ({"status_after": 502}, {"status_after": 500}):
            faults = (failing("POST", "/v1/batches", first=1, **lost),)
            async with rig(replace(FAST, faults=faults)) as r:
                jobs = await several(r)
                await assert_each_answered_once(r, jobs)
                assert (await r.stats())["batches_created"] == 1

    asyncio.run(scenario())


def test_faults_of_every_call_are_sat_out() -> None:
    async def scenario() -> None:
        paths = (
            ("POST", "/v1/files"),
            ("POST", "/v1/batches"),
            ("GET", "/v1/batches*"),
            ("GET", "/v1/files*"),
        )
        faults = tuple(
            failing(method, path, first=2, **fault)
            for method, path in (*paths, ("DELETE", "/v1/files*"))
            for fault in ({"status": 503}, {"cut_before": True}, {"status": 429, "retry_after": 0.05})
        )
        async with rig(replace(FAST, faults=faults)) as r:
            jobs = await several(r, 5)
            await assert_each_answered_once(r, jobs)
            assert (await r.stats())["batches_created"] == 1
            await r.until(lambda: everything_is_cleaned(r))

    asyncio.run(scenario())


def test_a_batch_that_the_provider_forgot_is_made_again() -> None:
    async def scenario() -> None:
        forgotten = FaultRule(
            do=Faults(status=404, error_code="not_found"),
            match=FaultMatch(path="/v1/batches/*", method="GET"),
            first=1,
        )
        async with rig(replace(FAST, faults=(forgotten,))) as r:
            job = await r.accept()
            assert (await r.answer(job)).status == 200
            assert Trouble.GONE in r.watch.troubles
            kinds = {booking.kind for booking in (await r.booked(job)).values()}
            assert kinds == {BookingKind.ANSWER, BookingKind.FAILURE}

    asyncio.run(scenario())


def test_a_provider_without_batches_is_called_directly() -> None:
    async def scenario() -> None:
        async with rig(provider=Provider.VLLM) as r:
            await assert_each_answered_once(r, await several(r, 3), "default")

    asyncio.run(scenario())


def test_a_batch_that_nobody_wants_any_more_is_cancelled() -> None:
    async def scenario() -> None:
        async with rig(with_batches(turnaround_seconds=30.0)) as r:
            jobs = await several(r, 3)

            async def is_sent() -> bool:
                seen = await r.store.get(jobs[0].id)
                return seen is not None and seen.state is JobState.SUBMITTED

            await r.until(is_sent)
            await r.worker.cancel(jobs[0].id)
            await asyncio.sleep(0.2)
            assert (await r.stats())["batches"] != {"cancelled": 1}
            for job in jobs[1:]:
                await r.worker.cancel(job.id)

            async def is_cancelled() -> bool:
                return bool((await r.stats())["batches"].get("cancelled"))

            await r.until(is_cancelled)
            await r.until(lambda: everything_is_cleaned(r))

    asyncio.run(scenario())


def test_the_answer_to_a_cancelled_job_is_discarded_and_booked() -> None:
    async def scenario() -> None:
        async with rig(with_batches(turnaround_seconds=0.4)) as r:
            jobs = await several(r, 3)

            async def is_sent() -> bool:
                seen = await r.store.get(jobs[0].id)
                return seen is not None and seen.state is JobState.SUBMITTED

            await r.until(is_sent)
            await r.worker.cancel(jobs[0].id)
            await assert_each_answered_once(r, jobs[1:])

            async def is_booked() -> bool:
                return bool(await r.booked(jobs[0]))

            await r.until(is_booked)
            (booking,) = (await r.booked(jobs[0])).values()
            assert booking.kind is BookingKind.LOSER
            assert booking.usd is not None
            assert await r.store.answer(jobs[0].id) is None

    asyncio.run(scenario())


def test_a_batch_that_is_late_is_overtaken_and_both_costs_are_booked() -> None:
    async def scenario() -> None:
        async with rig(with_batches(turnaround_seconds=2.0)) as r:
            job = await r.accept(seconds=1.2)
            ended = await r.ended(job)
            assert ended.state is JobState.RESCUED
            assert (await r.answer(job)).tier == "default"
            assert [each.id for each in r.watch.rescues] == [job.id]

            async def is_settled() -> bool:
                return len(await r.booked(job)) == 2 or bool((await r.stats())["batches"].get("cancelled"))

            await r.until(is_settled)
            assert (await r.booked(job))["rescue"].kind is BookingKind.ANSWER
            assert await r.executions(job) <= len(await r.booked(job))

    asyncio.run(scenario())


def test_a_job_that_was_never_packed_is_called_directly_before_its_deadline() -> None:
    async def scenario() -> None:
        async with rig(rules=RouteRules(1000, 3600.0)) as r:
            job = await r.accept(seconds=0.8)
            assert (await r.answer(job)).tier == "default"
            assert await r.executions(job) == 1

    asyncio.run(scenario())


def test_an_outage_of_the_provider_neither_loses_nor_spins() -> None:
    async def scenario() -> None:
        async with rig() as r:
            up = r.policies.one
            assert up is not None
            r.policies.one = replace(up, base_url="http://127.0.0.1:9/v1")
            jobs = await several(r, 5)
            await asyncio.sleep(0.5)
            assert 2 <= len(r.watch.troubles) < 60
            r.policies.one = up
            await assert_each_answered_once(r, jobs)

    asyncio.run(scenario())


def test_batches_of_different_payers_and_models_are_kept_apart() -> None:
    async def scenario() -> None:
        async with rig() as r:
            jobs = [
                await r.accept(model=model, account=account)
                for model in ("gpt-4o-mini", "gpt-4o")
                for account in ("a", "b")
            ]
            await assert_each_answered_once(r, jobs)
            assert (await r.stats())["batches_created"] == 4

    asyncio.run(scenario())


def test_a_batch_that_delivers_during_the_rescue_wins_and_the_call_is_cut_off() -> None:
    async def scenario() -> None:
        hangs = failing("POST", "/v1/chat/completions", first_byte_ms=9000)
        async with rig(replace(with_batches(turnaround_seconds=0.8), faults=(hangs,))) as r:
            job = await r.accept(seconds=6.0, due=r.kit.now() + 0.3)
            ended = await r.ended(job)
            assert ended.state is JobState.SUCCEEDED
            assert (await r.answer(job)).tier == "batch"

            async def is_booked() -> bool:
                return len(await r.booked(job)) == 2

            await r.until(is_booked)
            booked = await r.booked(job)
            assert booked["rescue"].kind is BookingKind.LOSER
            assert booked["rescue"].usd is None
            assert booked[f"batch:{(await _batch_of(r, job))}"].kind is BookingKind.ANSWER

    asyncio.run(scenario())


class Deaf:
    """A store that does not tell that a job has ended: what a lease says is then known first."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def wait(self, job_id: str, timeout_seconds: float) -> Job | None:
        await asyncio.sleep(timeout_seconds)
        return await self._store.get(job_id)


def test_a_call_that_is_cut_off_by_its_lost_lease_is_booked_too() -> None:
    async def scenario() -> None:
        hangs = failing("POST", "/v1/chat/completions", first_byte_ms=9000)
        settings = replace(QUICK, lease_seconds=0.3)
        slow = replace(with_batches(turnaround_seconds=0.8), faults=(hangs,))
        async with rig(slow, is_running=False, settings=settings) as r:
            deaf = cast(JobStore, Deaf(r.store))
            worker = Worker(kit_for(deaf, r.policies, settings, watch=r.watch))
            running = asyncio.get_running_loop().create_task(worker.run())
            job = await r.accept(seconds=6.0, due=r.kit.now() + 0.3)
            assert (await r.ended(job)).state is JobState.SUCCEEDED

            async def is_booked() -> bool:
                return len(await r.booked(job)) == 2

            await r.until(is_booked)
            assert Trouble.LEASE_LOST in r.watch.troubles
            assert (await r.booked(job))["rescue"].kind is BookingKind.LOSER
            await worker.stop()
            await running
            await worker.kit.providers.close()

    asyncio.run(scenario())


async def _batch_of(r: Rig, job: Job) -> str:
    (key,) = [key for key in await r.booked(job) if key.startswith("batch:")]
    return key.removeprefix("batch:")


class Freezing:
    """A store that stops answering one worker when it is about to note that its batch was created."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.is_frozen = False
        self.thaw = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*given: Any, **named: Any) -> Any:
            if name == "commit_batch" and given[1] is not None and given[1].event is BatchEvent.CREATE:
                self.is_frozen = True
            if self.is_frozen:
                await self.thaw.wait()
            return await method(*given, **named)

        return call


def test_a_worker_that_stood_still_finds_its_work_taken_over() -> None:
    async def scenario() -> None:
        async with rig(is_running=False, settings=replace(QUICK, lease_seconds=0.4)) as r:
            jobs = await several(r, 3)
            frozen = Freezing(r.store)
            watch = Counting()
            kit = kit_for(cast(JobStore, frozen), r.policies, replace(QUICK, name="still"), watch=watch)
            still = Worker(kit)
            task = asyncio.get_running_loop().create_task(still.run())

            async def is_frozen() -> bool:
                return frozen.is_frozen

            await r.until(is_frozen)
            other = asyncio.get_running_loop().create_task(r.worker.run())
            await assert_each_answered_once(r, jobs)
            frozen.is_frozen = False
            frozen.thaw.set()

            async def is_told() -> bool:
                return Trouble.LEASE_LOST in watch.troubles

            await r.until(is_told)
            assert (await r.stats())["batches_created"] == 1
            await still.stop()
            await task
            await kit.providers.close()
            await r.worker.stop()
            await other

    asyncio.run(scenario())
