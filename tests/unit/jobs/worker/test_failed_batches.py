"""Batches that failed and left a file of errors: what its lines say counts, and nothing is left behind.

The simulated provider's failed batches have none, as OpenAI's; others' have (tests/real/test_batches.py).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from proxy.jobs.model import JobState, JobTier
from proxy.jobs.worker.ports import RouteRules, Trouble
from tests.support.job_worker import Rig, rig

ANSWER = {"object": "chat.completion", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@dataclass
class Failing:
    """A server whose batches fail: `code` for the batch, `line_code` for each line in its error file."""

    code: str
    line_code: str
    lines: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    created: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/files", self._upload)
        app.router.add_get("/v1/files", self._nothing)
        app.router.add_get("/v1/batches", self._nothing)
        app.router.add_post("/v1/batches", self._create)
        app.router.add_get("/v1/batches/{id}", self._failed)
        app.router.add_get("/v1/files/errors/content", self._errors)
        app.router.add_delete("/v1/files/{id}", self._delete)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _upload(self, request: web.Request) -> web.Response:
        text = (await request.post())["file"].file.read().decode()  # type: ignore[union-attr]
        self.lines = [json.loads(line)["custom_id"] for line in text.splitlines()]
        return web.json_response({"id": "input"})

    async def _nothing(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [], "has_more": False})

    async def _create(self, _: web.Request) -> web.Response:
        self.created += 1
        return web.json_response({"id": "b", "status": "validating", "input_file_id": "input"})

    async def _failed(self, _: web.Request) -> web.Response:
        problems = {"data": [{"code": self.code, "message": "no"}]}
        said: dict[str, Any] = {"id": "b", "status": "failed", "errors": problems, "error_file_id": "errors"}
        return web.json_response(said)

    async def _errors(self, _: web.Request) -> web.Response:
        error = {"code": self.line_code, "message": "not this one"}
        return web.Response(
            text="\n".join(json.dumps({"custom_id": each, "error": error}) for each in self.lines)
        )

    async def _delete(self, request: web.Request) -> web.Response:
        self.deleted.append(request.match_info["id"])
        return web.json_response({"deleted": True})

    async def _chat(self, _: web.Request) -> web.Response:
        return web.json_response(ANSWER)


async def is_cleaned(r: Rig, server: Failing) -> None:
    async def are_deleted() -> bool:
        return {"input", "errors"} <= set(server.deleted)

    await r.until(are_deleted)


def test_each_job_gets_what_its_line_says() -> None:
    async def scenario() -> None:
        server = Failing("batch_line_error", "invalid_request")
        async with rig(app=server.app(), rules=RouteRules(2, 5.0)) as r:
            for job in [await r.accept(), await r.accept()]:
                ended = await r.ended(job)
                assert ended.ended_as is JobState.FAILED
                assert ended.error is not None
                assert ended.error.message == "not this one"
            await is_cleaned(r, server)
            assert server.created == 1
            assert not await r.store.completions("openai", "gpt-4o-mini", JobTier.BATCH)

    asyncio.run(scenario())


@pytest.mark.parametrize("code", ["token_limit_exceeded", "too_many_tasks"])
def test_a_refusal_of_the_whole_batch_counts_more_than_its_lines(code: str) -> None:
    async def scenario() -> None:
        server = Failing(code, "invalid_request")
        async with rig(app=server.app(), rules=RouteRules(2, 5.0)) as r:
            jobs = [await r.accept(seconds=2.0), await r.accept(seconds=2.0)]
            for job in jobs:
                assert (await r.answer(job)).tier == "direct"
            assert server.created > 1
            assert {Trouble.QUOTA, Trouble.REFUSED} & set(r.watch.troubles)
            await is_cleaned(r, server)

    asyncio.run(scenario())
