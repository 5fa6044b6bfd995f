"""The worker carries jobs over every batch API without knowing any of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.jobs.model import Job, JobState
from proxy.upstream.providers.batch_apis import BATCH_APIS
from tests.support.batch_servers import SERVERS
from tests.support.batch_servers.anthropic import AnthropicServer
from tests.support.batch_servers.base import BatchServer
from tests.support.job_worker import Rig, new_job, rig

PACKAGE = Path(__file__).resolve().parents[3] / "proxy"
WORKER = PACKAGE / "jobs" / "worker"
PROVIDERS = PACKAGE / "upstream" / "providers"


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> BatchServer:
    """Return the API of one provider."""
    made: BatchServer = request.param()
    return made


async def accept(r: Rig, server: BatchServer, text: str) -> Job:
    """Accept a job for the provider."""
    upstream = r.policies.one
    assert upstream is not None
    if not upstream.base_url.endswith(server.upstream_path):
        r.policies.one = replace(upstream, base_url=f"{r.url}{server.upstream_path}")
    body = json.dumps(server.body(text)).encode()
    # A line that is refused for now is tried again, as a call of its own at last.
    job = new_job(endpoint=server.endpoint, model=server.model, body_bytes=len(body), seconds=60.0)
    return (await r.store.accept(job, body)).job


def carried(server: BatchServer, test: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        async with rig(app=server.app(), provider=server.provider, is_running=False) as r:
            running = asyncio.get_running_loop().create_task(r.worker.run())
            try:
                await test(r)
            finally:
                await r.worker.stop()
                await running

    asyncio.run(run())


def test_jobs_are_answered_once_although_the_creation_was_not(server: BatchServer) -> None:
    server.script.lost = 1

    async def test(r: Rig) -> None:
        jobs = [await accept(r, server, text) for text in ("one", "two is bad", "three")]
        ended = [await r.ended(job, 30.0) for job in jobs]
        assert [each.ended_as for each in ended] == [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]
        for job, text in zip(jobs[::2], ("one", "three"), strict=True):
            answer = await r.store.answer(job.id)
            assert answer is not None
            assert (answer.tier, json.loads(answer.body)) == (
                "batch",
                server.answer(server.body(text)),
            )
        assert server.executions == {job.id: 1 for job in jobs}

        async def is_clean() -> bool:
            return len(server.deleted) > 0

        await r.until(is_clean)

    carried(server, test)


def test_what_expired_goes_again_and_no_further_than_that(server: BatchServer) -> None:
    server.script.ending = "expired"

    async def test(r: Rig) -> None:
        jobs = [await accept(r, server, text) for text in ("one", "two")]

        async def has_begun() -> bool:
            return sum(server.executions.values()) > 0

        await r.until(has_begun)
        server.script.ending = "completed"
        for job in jobs:
            assert (await r.ended(job, 30.0)).ended_as is JobState.SUCCEEDED
        assert server.executions == {job.id: 1 for job in jobs}

    carried(server, test)


def test_a_chat_rides_a_batch_of_messages() -> None:
    server = AnthropicServer()

    async def test(r: Rig) -> None:
        body = b'{"model":"claude-haiku-4-5","max_tokens":5,"messages":[{"role":"user","content":"one"}]}'
        chat = "/v1/chat/completions"
        job = new_job(endpoint=chat, model=server.model, body_bytes=len(body), seconds=60.0)
        answer = await r.answer((await r.store.accept(job, body)).job)
        completion = json.loads(answer.body)
        assert (answer.tier, completion["object"]) == ("batch", "chat.completion")
        assert completion["choices"][0]["message"]["content"] == "re: one"
        assert time.time() - completion["created"] < 60
        booking = next(iter((await r.booked(job)).values()))
        assert (booking.tier, booking.input_tokens, booking.output_tokens) == ("batch", 5, 2)

    carried(server, test)


def test_the_worker_knows_no_adapter() -> None:
    files = {path.stem for path in PROVIDERS.glob("*_batches.py")}
    assert len(files) >= len(BATCH_APIS) - 1
    for path in WORKER.glob("*.py"):
        code = path.read_text(encoding="utf-8")
        assert [name for name in files if name in code] == [], path.name
        assert "Provider." not in code, path.name
