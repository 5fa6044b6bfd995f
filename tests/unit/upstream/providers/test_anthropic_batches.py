"""Anthropic's words: what it refuses, what its errors mean, and chats among its messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from proxy.core.document import Document
from proxy.core.upstream import Provider
from proxy.jobs.packing import encode_line
from proxy.jobs.unpacking import OutcomeKind, read_line
from proxy.upstream.providers.anthropic_batches import CHAT, VERSION, AnthropicBatches
from proxy.upstream.providers.batch_api import (
    BatchInput,
    FileRefused,
    LineProblem,
    RemoteBatch,
    RemoteState,
)
from proxy.upstream.providers.batch_apis import line_obstacle
from proxy.upstream.providers.client import ProviderClient
from tests.support.batch_servers.anthropic import AnthropicServer
from tests.support.job_worker import serving, upstream_at

CHATS = (
    {"model": "claude-haiku-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": "one"}]},
    {"model": "claude-haiku-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": "a bad one"}]},
)


def against(server: AnthropicServer, test: Callable[[AnthropicBatches], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(server.app()) as url:
            upstream = upstream_at(url, provider=Provider.ANTHROPIC)
            async with ProviderClient.for_upstream(upstream, {}) as client:
                await test(AnthropicBatches(client))

    asyncio.run(run())


def chats(*bodies: dict[str, Any]) -> BatchInput:
    whole = b"".join(encode_line(f"job{n}", json.dumps(body).encode(), None) for n, body in enumerate(bodies))

    async def lines() -> AsyncIterator[bytes]:
        yield whole

    return BatchInput("tag", "weir-tag.jsonl", CHAT, "claude-haiku-4-5", len(whole), lines)


def obstacle(body: dict[str, Any], endpoint: str = "/v1/messages", **headers: str) -> str | None:
    document = Document.parse(json.dumps(body).encode())
    fields: dict[str, str | None] = {name.replace("_", "-"): value for name, value in headers.items()}

    def header(name: str) -> str | None:
        return fields.get(name)

    return line_obstacle(Provider.ANTHROPIC, endpoint, document, header)


def test_chats_are_carried_as_messages_and_answered_as_chats() -> None:
    server = AnthropicServer()

    async def test(api: AnthropicBatches) -> None:
        created = await api.create(chats(*CHATS), None)
        server.end(server.batches[created.id], "completed")
        known = RemoteBatch(created.id, RemoteState.COMPLETED, created=1000.0, endpoint=CHAT)
        read = dict(
            each for line in [line async for line in api.results(known)] if (each := read_line(line, "here"))
        )
        good, bad = read["job0"].answer, read["job1"].answer
        assert good is not None
        assert bad is not None
        answer = json.loads(good.body)
        assert (good.status, answer["choices"][0]["message"]["content"]) == (200, "re: one")
        assert answer["created"] == 1000
        assert (read["job1"].kind, bad.status) == (OutcomeKind.FAILED, 400)
        assert json.loads(bad.body)["error"]["type"] == "invalid_request_error"

    against(server, test)


def test_a_chat_that_cannot_be_translated_is_named_and_harms_no_other() -> None:
    async def test(api: AnthropicBatches) -> None:
        with pytest.raises(FileRefused) as refused:
            await api.create(chats(CHATS[0], {**CHATS[1], "seed": 1}), None)
        problem = LineProblem("untranslatable", "seed has no equal in messages", 2)
        assert refused.value.problems == (problem,)

    against(AnthropicServer(), test)


@pytest.mark.parametrize(
    ("kind", "status", "outcome"),
    [
        ("invalid_request_error", 400, OutcomeKind.FAILED),
        ("billing_error", 402, OutcomeKind.FAILED),
        ("rate_limit_error", 429, OutcomeKind.RETRY),
        ("api_error", 500, OutcomeKind.RETRY),
        ("overloaded_error", 529, OutcomeKind.RETRY),
        ("something_new", 500, OutcomeKind.RETRY),
    ],
)
def test_an_errored_line_has_the_status_of_its_error(kind: str, status: int, outcome: OutcomeKind) -> None:
    server = AnthropicServer()
    server.result = lambda body: {  # type: ignore[method-assign]
        "type": "errored",
        "error": {"type": "error", "error": {"type": kind, "message": "m"}},
    }

    async def test(api: AnthropicBatches) -> None:
        created = await api.create(chats(CHATS[0]), None)
        server.end(server.batches[created.id], "completed")
        known = RemoteBatch(created.id, RemoteState.COMPLETED, endpoint="/v1/messages")
        (line,) = [line async for line in api.results(known)]
        read = read_line(line, "here")
        assert read is not None
        assert read[1].answer is not None
        assert (read[1].kind, read[1].answer.status) == (outcome, status)
        assert json.loads(read[1].answer.body)["error"]["type"] == kind

    against(server, test)


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        ({"max_tokens": 5}, {}, None),
        ({"max_tokens": 5}, {"anthropic_version": VERSION}, None),
        ({"max_tokens": 0}, {}, "max_tokens 0 is refused in batches"),
        ({"speed": "fast"}, {}, "speed is refused in batches"),
        ({"speed": None}, {}, None),
        ({}, {"anthropic_beta": "x"}, "a batch has one anthropic-beta for all"),
        ({}, {"anthropic_workspace_id": "w"}, "a batch has one anthropic-workspace-id for all"),
        ({}, {"anthropic_version": "2023-06-01"}, f"a version of the API other than {VERSION} is asked for"),
    ],
)
def test_what_a_batch_refuses_is_not_deferred(
    body: dict[str, Any], headers: dict[str, str], reason: str | None
) -> None:
    assert obstacle(body, **headers) == reason


def test_a_chat_is_asked_whether_it_translates() -> None:
    assert obstacle(CHATS[0], CHAT) is None
    assert obstacle({**CHATS[0], "seed": 1}, CHAT) == "seed has no equal in messages"


def test_other_providers_refuse_nothing_that_is_known() -> None:
    def no_header(name: str) -> None:
        return None

    assert line_obstacle(Provider.OPENAI, CHAT, Document.parse(b'{"seed":1}'), no_header) is None
