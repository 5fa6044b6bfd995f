"""What another attacker of the batch lane found: words that no store or head holds, files that are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.core.clock import SystemClock
from proxy.jobs.changes import JobChange
from proxy.jobs.model import Job, JobState, JobTier
from proxy.jobs.sealing import PlainVault
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.transitions import JobEvent
from proxy.jobs.worker.ports import RouteRules, Trouble
from proxy.jobs.worker.single import MOST_LOST, take_back_lost
from tests.support.job_worker import Rig, rig

ANSWER: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
HALF = "\ud800"
"""Half a surrogate pair, which JSON may hold and UTF-8 may not."""

Direct = Callable[[], web.StreamResponse]
Lines = Callable[[list[str], int], bytes]


def result(job_id: str, **fields: Any) -> bytes:
    """Return a line of an output file, with fields of its response."""
    response = {"status_code": 200, "request_id": "r", "body": ANSWER} | fields
    return json.dumps({"custom_id": job_id, "response": response, "error": None}).encode()


def results(job_ids: list[str], reading: int) -> bytes:
    """Return an output file in which every job has its answer."""
    return b"\n".join(result(each) for each in job_ids)


@dataclass
class Odd:
    """A provider that says what a test wants.

    lines    the output file, of the ids in the last input file and how often it was read
    problem  why a batch of these jobs fails, if it does
    """

    lines: Lines = results
    direct: Direct = lambda: web.json_response(ANSWER)
    problem: Callable[[list[str]], dict[str, Any] | None] = lambda _: None
    inputs: list[list[str]] = field(default_factory=list)
    created: int = 0
    readings: int = 0
    calls: int = 0
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/files", self._upload)
        app.router.add_get("/v1/files", self._nothing)
        app.router.add_get("/v1/batches", self._nothing)
        app.router.add_post("/v1/batches", self._create)
        app.router.add_get("/v1/batches/{id}", self._look)
        app.router.add_get("/v1/files/{id}/content", self._content)
        app.router.add_delete("/v1/files/{id}", self._nothing)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _upload(self, request: web.Request) -> web.Response:
        text = (await request.post())["file"].file.read().decode()  # type: ignore[union-attr]
        self.inputs.append([json.loads(line)["custom_id"] for line in text.splitlines()])
        return web.json_response({"id": f"input-{len(self.inputs) - 1}"})

    async def _nothing(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [], "has_more": False})

    async def _create(self, request: web.Request) -> web.Response:
        number = (await request.json())["input_file_id"].removeprefix("input-")
        self.created += 1
        return web.json_response({"id": number, "status": "validating", "input_file_id": f"input-{number}"})

    async def _look(self, request: web.Request) -> web.Response:
        number = request.match_info["id"]
        if not self.may_end.is_set():
            return web.json_response({"id": number, "status": "validating"})
        problem = self.problem(self.inputs[int(number)])
        if problem is None:
            return web.json_response({"id": number, "status": "completed", "output_file_id": f"o-{number}"})
        return web.json_response({"id": number, "status": "failed", "errors": {"data": [problem]}})

    async def _content(self, request: web.Request) -> web.Response:
        self.readings += 1
        number = int(request.match_info["id"].removeprefix("o-"))
        return web.Response(body=self.lines(self.inputs[number], self.readings))

    async def _chat(self, _: web.Request) -> web.StreamResponse:
        self.calls += 1
        return self.direct()


@asynccontextmanager
async def stored(tmp_path: Path, odd: Odd, jobs: int = 1, **options: Any) -> AsyncIterator[Rig]:
    """Run a worker over a store that writes everything down, against a provider."""
    odd.may_end.set()
    store = SqliteStore(tmp_path / "jobs.db", SystemClock(), retention_seconds=60.0, vault=PlainVault())
    await store.open()
    try:
        async with rig(app=odd.app(), store=store, rules=RouteRules(jobs, 0.05), **options) as r:
            yield r
    finally:
        await store.close()


# ---- words


def refusal() -> web.Response:
    """Return a refusal that quotes half a character of what was sent."""
    error = {"message": f"Invalid value: '{HALF}'", "code": f"c{HALF}", "type": HALF}
    return web.json_response({"error": error}, status=400)


@pytest.mark.parametrize("tier", [JobTier.FLEX, JobTier.DIRECT])
def test_an_error_that_quotes_half_a_character_ends_its_job(tmp_path: Path, tier: JobTier) -> None:
    async def scenario() -> None:
        odd = Odd(direct=refusal)
        async with stored(tmp_path, odd) as r:
            ended = await r.ended(await r.accept(tier=tier))
            assert (ended.state, odd.calls) == (JobState.FAILED, 1)
            assert ended.error is not None
            assert (ended.error.code, ended.error.message) == ("c?", "Invalid value: '?'")

    asyncio.run(scenario())


def test_a_header_of_odd_bytes_does_not_make_a_call_twice(tmp_path: Path) -> None:
    def direct() -> web.Response:
        odd = {"x-request-id": "\xe4\u4e2d", "openai-version": "2020-10-01"}
        return web.json_response(ANSWER, headers=odd)

    async def scenario() -> None:
        odd = Odd(direct=direct)
        async with stored(tmp_path, odd) as r:
            answer = await r.answer(await r.accept(tier=JobTier.FLEX))
            assert odd.calls == 1
            assert [name for name, _ in answer.headers if name != "content-type"] == ["openai-version"]

    asyncio.run(scenario())


@pytest.mark.parametrize("said", [f"r{HALF}", "r\u4e2d", "r\r\nset-cookie: a=1\r\n\r\nHTTP/1.1 200 OK"])
def test_a_request_id_that_no_head_can_hold_is_left_out(tmp_path: Path, said: str) -> None:
    async def scenario() -> None:
        odd = Odd(lines=lambda ids, _: b"\n".join(result(each, request_id=said) for each in ids))
        async with stored(tmp_path, odd) as r:
            answer = await r.answer(await r.accept())
            assert answer.headers == (("content-type", "application/json"),)
            assert (answer.status, odd.created) == (200, 1)

    asyncio.run(scenario())


def test_a_batch_that_failed_for_odd_reasons_is_taken_another_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        odd = Odd(problem=lambda _: {"code": f"c{HALF}", "message": f"m{HALF}"})
        async with stored(tmp_path, odd) as r:
            assert (await r.answer(await r.accept())).tier == "direct"
            assert Trouble.INTERNAL not in r.watch.troubles

    asyncio.run(scenario())


def test_a_tier_of_a_hundred_thousand_letters_is_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        odd = Odd(direct=lambda: web.json_response(ANSWER | {"service_tier": "x" * 100_000}))
        async with stored(tmp_path, odd) as r:
            assert len((await r.answer(await r.accept(tier=JobTier.FLEX))).tier) == 64

    asyncio.run(scenario())


# ---- files


@pytest.mark.parametrize("status", [100, 101, 199, 204, 205, 304, -1, 600, 10**30])
def test_a_line_with_an_answer_never_has_a_status_without_a_body(tmp_path: Path, status: int) -> None:
    async def scenario() -> None:
        odd = Odd(lines=lambda ids, _: b"\n".join(result(each, status_code=status) for each in ids))
        async with stored(tmp_path, odd) as r:
            answer = await r.answer(await r.accept())
            assert (answer.status, json.loads(answer.body)) == (200, ANSWER)

    asyncio.run(scenario())


@pytest.mark.parametrize("nonsense", [b"<html>502</html>", b"", b"\x1f\x8b\x08\x00 not what it says"])
def test_files_that_say_nothing_are_read_again_before_anything_is_paid_again(
    tmp_path: Path, nonsense: bytes
) -> None:
    async def scenario() -> None:
        odd = Odd(lines=lambda ids, reading: nonsense if reading < 3 else results(ids, reading))
        async with stored(tmp_path, odd, jobs=2) as r:
            for job in [await r.accept(), await r.accept()]:
                answer = await r.answer(job)
                assert (answer.status, list(await r.booked(job))) == (200, [answer.source])
            assert (odd.created, odd.readings, odd.calls) == (1, 3, 0)

    asyncio.run(scenario())


def test_files_that_never_say_anything_do_not_hold_their_jobs(tmp_path: Path) -> None:
    async def scenario() -> None:
        odd = Odd(lines=lambda ids, reading: b"<html></html>" if reading <= 4 else results(ids, reading))
        async with stored(tmp_path, odd) as r:
            job = await r.accept()
            assert (await r.answer(job)).status == 200
            assert (odd.created, Trouble.MISSING_LINE in r.watch.troubles) == (2, True)
            assert len(await r.booked(job)) == 2

    asyncio.run(scenario())


def test_a_refused_line_is_not_looked_for_among_jobs_that_have_moved_up(tmp_path: Path) -> None:
    """A job leaves between upload and validation: the number of a bad line then names its neighbour."""

    async def scenario() -> None:
        bad: set[str] = set()

        def problem(ids: list[str]) -> dict[str, Any] | None:
            lines = [number for number, each in enumerate(ids, 1) if each in bad]
            return {"code": "invalid_request", "message": "bad", "line": lines[0]} if lines else None

        odd = Odd(problem=problem)
        async with stored(tmp_path, odd, jobs=4) as r:
            odd.may_end.clear()
            jobs = [await r.accept() for _ in range(4)]

            async def is_created() -> bool:
                return odd.created == 1

            await r.until(is_created)
            first, second = odd.inputs[0][0], odd.inputs[0][1]
            bad.add(second)
            await r.store.cancel(first)
            odd.may_end.set()
            for job in jobs:
                if job.id == first:
                    continue
                answer = await r.answer(job)
                assert answer.source.startswith("call:" if job.id == second else "batch:")
            assert odd.calls == 1

    asyncio.run(scenario())


# ---- calls


def test_a_job_whose_calls_are_always_lost_fails_at_last(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path, Odd(), is_running=False) as r:
            job = await r.accept(tier=JobTier.FLEX, seconds=600.0)
            for _ in range(MOST_LOST):
                assert job.is_live
                job = await lose_a_call(r, job)
            assert (job.state, len(await r.booked(job))) == (JobState.FAILED, MOST_LOST)

    asyncio.run(scenario())


async def lose_a_call(r: Rig, job: Job) -> Job:
    """Be a worker that dies during its call, and the next one that finds the job."""
    held = await r.store.claim_job(job.id, "dying", 30.0)
    assert held is not None
    assert held.lease is not None
    await r.store.commit_job(held.lease, JobChange(JobEvent.SUBMIT, (job.id,), due=0.0))
    found = await r.store.claim_job(job.id, "next", 30.0)
    assert found is not None
    assert found.lease is not None
    after = await take_back_lost(r.kit, found.lease, found)
    if after.is_live:
        await r.store.release(found.lease)
    return after
