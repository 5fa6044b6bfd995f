"""Batches from file to answer, and every way in which one may end, at servers that somebody else wrote.

What each server can do: llmock works on every line and so has batches that fail in part; it never lets one
expire, and cancels none by itself. aimock ends a batch as it is told, but answers every line or none: its
expired and cancelled batches have no partial results (those are tried at the simulated provider, in
tests/unit/jobs/worker/test_batches.py). Neither refuses a batch's input file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from proxy.jobs.model import BookingKind, Job, JobState, JobTier
from proxy.jobs.packing import clean_body
from proxy.jobs.shaping import STORED_WITHOUT
from proxy.jobs.worker.ports import Trouble
from tests.real.batches import AtWork, at_work
from tests.real.processes import Server, aimock, llmock
from tests.support.job_worker import new_job

pytestmark = pytest.mark.xdist_group("batches")

FIXTURES = {"fixtures": [{"match": {"userMessage": "question"}, "response": {"content": "A direct answer."}}]}
SPOILT = b'{"model":"gpt-4o-mini","n":"many","messages":[{"role":"user","content":"question"}]}'
Scene = Callable[[AtWork], Awaitable[None]]


@pytest.fixture(scope="module")
def at_llmock(home: Path) -> Iterator[Server]:
    with llmock(home) as server:
        yield server


@pytest.fixture(scope="module")
def at_aimock(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    fixtures = tmp_path_factory.mktemp("aimock") / "fixtures.json"
    fixtures.write_text(json.dumps(FIXTURES), encoding="utf-8")
    with aimock(home, fixtures) as server:
        yield server


def play(scene: Scene, server: Server, folder: Path, *outcomes: str, lost: int = 0, jobs: int = 3) -> None:
    async def run() -> None:
        async with at_work(server.url, folder, jobs=jobs, outcomes=list(outcomes), lost=lost) as work:
            await scene(work)

    asyncio.run(run())


async def accepted(work: AtWork, count: int = 3) -> list[Job]:
    return [await work.rig.accept() for _ in range(count)]


async def spoilt(work: AtWork) -> Job:
    """Accept a job that llmock cannot work on."""
    job = new_job()
    return (await work.rig.store.accept(job, clean_body(SPOILT, STORED_WITHOUT))).job


async def assert_answered(work: AtWork, jobs: list[Job], tier: str = "batch") -> None:
    """Assert that each job has an answer in that tier, and one bill for it."""
    for job in jobs:
        answer = await work.rig.answer(job)
        message = json.loads(answer.body)["choices"][0]["message"]
        assert (answer.status, answer.tier, message["role"]) == (200, tier, "assistant")
        kinds = [booking.kind for booking in (await work.rig.booked(job)).values()]
        assert kinds.count(BookingKind.ANSWER) == 1


async def assert_ended(work: AtWork, *statuses: str) -> None:
    """Assert how the batches ended that were made at the server, and that their files are deleted there."""
    batches = await work.batches()
    assert [batch["status"] for batch in batches] == list(statuses)
    for batch in batches:
        assert len(batch["metadata"]["weir_batch"]) == 32

        async def are_gone(batch: dict[str, object] = batch) -> bool:
            return await work.are_gone(batch)

        await work.rig.until(are_gone)


@pytest.mark.parametrize("name", ["llmock", "aimock"])
def test_a_batch_is_completed(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async def scene(work: AtWork) -> None:
        jobs = await accepted(work)
        await assert_answered(work, jobs)
        assert {(await work.rig.ended(job)).ended_as for job in jobs} == {JobState.SUCCEEDED}
        await assert_ended(work, "completed")
        assert len(await work.rig.store.completions("openai", "gpt-4o-mini", JobTier.BATCH)) == 1

    play(scene, request.getfixturevalue(f"at_{name}"), tmp_path)


def test_lines_of_a_completed_batch_fail_for_themselves(at_llmock: Server, tmp_path: Path) -> None:
    """aimock's batches never fail in part."""

    async def scene(work: AtWork) -> None:
        bad, *good = await spoilt(work), *await accepted(work, 2)
        await assert_answered(work, good)
        ended = await work.rig.ended(bad)
        assert ended.ended_as is JobState.FAILED
        assert ended.error is not None
        assert ended.error.code == "unsupported_endpoint"
        (batch,) = await work.batches()
        assert batch["output_file_id"]
        assert batch["error_file_id"]
        await assert_ended(work, "completed")

    play(scene, at_llmock, tmp_path)


def test_a_batch_failed_because_every_line_did(at_llmock: Server, tmp_path: Path) -> None:
    """What its error file says of each line is that job's ending."""

    async def scene(work: AtWork) -> None:
        jobs = [await spoilt(work) for _ in range(3)]
        for job in jobs:
            ended = await work.rig.ended(job)
            assert ended.ended_as is JobState.FAILED
            assert ended.error is not None
            assert "invalid literal" in ended.error.message
        await assert_ended(work, "failed")
        assert not await work.rig.store.completions("openai", "gpt-4o-mini", JobTier.BATCH)

    play(scene, at_llmock, tmp_path)


def test_jobs_of_a_batch_that_failed_go_into_another(at_aimock: Server, tmp_path: Path) -> None:
    async def scene(work: AtWork) -> None:
        await assert_answered(work, await accepted(work))
        await assert_ended(work, "failed", "completed")

    play(scene, at_aimock, tmp_path, "failed", "completed")


def test_jobs_whose_batches_always_fail_are_answered_directly(at_aimock: Server, tmp_path: Path) -> None:
    async def scene(work: AtWork) -> None:
        await assert_answered(work, await accepted(work), "direct")
        await assert_ended(work, *3 * ["failed"])

    play(scene, at_aimock, tmp_path, *3 * ["failed"])


@pytest.mark.parametrize("ending", ["expired", "cancelled"])
def test_what_a_batch_did_not_do_is_done_by_the_next(ending: str, at_aimock: Server, tmp_path: Path) -> None:
    """llmock's batches do not expire, and nobody but their owner cancels them."""

    async def scene(work: AtWork) -> None:
        jobs = await accepted(work)
        await assert_answered(work, jobs)
        for job in jobs:
            booked = await work.rig.booked(job)
            assert {booking.kind for booking in booked.values()} == {BookingKind.FAILURE, BookingKind.ANSWER}
        await assert_ended(work, ending, "completed")

    play(scene, at_aimock, tmp_path, ending, "completed")


@pytest.mark.parametrize("name", ["llmock", "aimock"])
def test_a_batch_that_nobody_wants_any_more_is_cancelled(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def scene(work: AtWork) -> None:
        jobs = await accepted(work)

        async def is_submitted() -> bool:
            return all(job.state is JobState.SUBMITTED for job in await work.rig.store.jobs(ids))

        ids = [job.id for job in jobs]
        await work.rig.until(is_submitted)
        for job in jobs:
            await work.rig.worker.cancel(job.id)

        async def is_cancelled() -> bool:
            return [batch["status"] for batch in await work.batches()] == ["cancelled"]

        await work.rig.until(is_cancelled)
        await assert_ended(work, "cancelled")

    play(scene, request.getfixturevalue(f"at_{name}"), tmp_path)


@pytest.mark.parametrize("name", ["llmock", "aimock"])
def test_a_batch_whose_creation_was_not_heard_of_is_found_and_not_made_again(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def scene(work: AtWork) -> None:
        jobs = await accepted(work)
        await assert_answered(work, jobs)
        assert Trouble.PROVIDER in work.rig.watch.troubles
        await assert_ended(work, "completed")

    play(scene, request.getfixturevalue(f"at_{name}"), tmp_path, lost=1)
