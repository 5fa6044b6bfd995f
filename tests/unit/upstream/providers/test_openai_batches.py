"""The adapter for OpenAI's batch API: a life against the simulated provider, oddities against scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from proxy.core.upstream import Provider
from proxy.sim.server import make_app
from proxy.upstream.providers.batch_api import (
    BatchApiError,
    BatchInput,
    CredentialsRefused,
    FileRefused,
    InputChanged,
    LineProblem,
    NotFound,
    RateLimited,
    RefusalKind,
    RemoteBatch,
    RemoteState,
    Unavailable,
    Unsupported,
    refusal_kind,
)
from proxy.upstream.providers.client import ProviderClient
from proxy.upstream.providers.openai_batches import GENERIC_LIMITS, OpenAiBatches
from tests.support.job_worker import FAST, serving, upstream_at

CHAT = "/v1/chat/completions"
LINE = (
    b'{"custom_id":"%b","method":"POST","url":"/v1/chat/completions",'
    b'"body":{"model":"gpt-4o-mini","messages":[{"role":"user","content":"hi"}]}}\n'
)

Test = Callable[[OpenAiBatches], Awaitable[None]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def submission(*ids: bytes, announced_bytes: int | None = None) -> BatchInput:
    lines = [LINE % each for each in ids]

    async def pieces() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    size = sum(map(len, lines)) if announced_bytes is None else announced_bytes
    return BatchInput("tag-1", "weir-tag-1.jsonl", CHAT, "gpt-4o-mini", size, pieces)


def against(app: web.Application, test: Test) -> None:
    async def run() -> None:
        async with serving(app) as url:
            upstream = upstream_at(url, provider=Provider.OPENAI)
            async with ProviderClient.for_upstream(upstream, {}) as client:
                await test(OpenAiBatches(client, limits=GENERIC_LIMITS))

    asyncio.run(run())


def answering(*answers: tuple[int, Any], headers: dict[str, str] | None = None) -> web.Application:
    """Return an application that gives these answers in turn, the last for ever; text as it is, else JSON."""
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        status, body = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


async def lines_of(api: OpenAiBatches, batch: RemoteBatch) -> list[bytes]:
    return [line async for line in api.results(batch)]


def test_a_whole_life() -> None:
    async def test(api: OpenAiBatches) -> None:
        batch = submission(b"a", b"b")
        file_id = await api.upload(batch)
        created = await api.create(batch, file_id)
        assert (created.tag, created.state) == ("tag-1", RemoteState.RUNNING)
        assert [each.id for each in await api.find("tag-1", None, 0.0)] == [created.id]
        assert [each.id for each in await api.find("another", file_id, 0.0)] == [created.id]
        assert await api.find("another", None, 0.0) == ()
        assert [each.id for each in await api.find_files("weir-tag-1.jsonl")] == [file_id]
        assert await api.find_files("another.jsonl") == ()
        remote = created
        while not remote.state.is_final:
            await asyncio.sleep(0.02)
            remote = await api.retrieve(created.id)
        assert (remote.state, remote.total, remote.completed) == (RemoteState.COMPLETED, 2, 2)
        assert sorted(b'"custom_id":"a"' in line for line in await lines_of(api, remote)) == [False, True]
        for each in (file_id, remote.output_file_id):
            assert each is not None
            await api.delete_file(each)
            await api.delete_file(each)
        with pytest.raises(NotFound):
            await lines_of(api, remote)
        await api.cancel(created.id)

    against(make_app(FAST), test)


def test_unknown_batches_are_not_found() -> None:
    async def test(api: OpenAiBatches) -> None:
        with pytest.raises(NotFound):
            await api.retrieve("batch_none")
        with pytest.raises(NotFound):
            await api.cancel("../batches")

    against(make_app(FAST), test)


def test_more_pages_are_read_until_batches_are_too_old() -> None:
    async def test(api: OpenAiBatches) -> None:
        batch = submission(b"a")
        for _ in range(120):
            await api.create(batch, await api.upload(batch))
        assert len(await api.find("tag-1", None, 0.0)) == 120
        assert await api.find("tag-1", None, 9_999_999_999.0) != ()

    against(make_app(FAST), test)


def test_a_file_is_not_sent_to_its_end_when_its_lines_changed() -> None:
    async def test(api: OpenAiBatches) -> None:
        for announced in (10, 10_000):
            with pytest.raises(InputChanged):
                await api.upload(submission(b"a", announced_bytes=announced))
        assert await api.find_files("weir-tag-1.jsonl") == ()

    against(make_app(FAST), test)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, {"error": {"message": "no", "code": "invalid_api_key"}}, CredentialsRefused),
        (403, "", CredentialsRefused),
        (404, {"error": {"message": "no", "code": "not_found"}}, NotFound),
        (404, "<html>", Unsupported),
        (405, "", Unsupported),
        (501, {"error": {"message": "no"}}, Unsupported),
        (429, {"error": {"message": "slow", "code": "rate_limit_exceeded"}}, RateLimited),
        (413, "too large", FileRefused),
        (400, {"error": {"message": "bad", "code": "Invalid_File"}}, FileRefused),
        (409, "", Unavailable),
        (500, "", Unavailable),
        (503, {"error": "text"}, Unavailable),
        (200, "<html>welcome</html>", Unavailable),
        (200, {"error": {"message": "odd"}}, BatchApiError),
    ],
)
def test_answers_become_errors(status: int, body: Any, error: type[BatchApiError]) -> None:
    async def test(api: OpenAiBatches) -> None:
        batch = submission(b"a")
        with pytest.raises(error):
            await api.upload(batch)
        with pytest.raises(error):
            await api.create(batch, "file-1")

    against(answering((status, body)), test)


def test_a_rate_limit_says_when_to_come_back() -> None:
    async def test(api: OpenAiBatches) -> None:
        with pytest.raises(RateLimited) as refused:
            await api.retrieve("batch_1")
        assert refused.value.retry_after_seconds == 0.25

    against(answering((429, {}), headers={"retry-after-ms": "250", "Retry-After": "7"}), test)


def test_errors_hold_no_key() -> None:
    async def test(api: OpenAiBatches) -> None:
        with pytest.raises(BatchApiError) as refused:
            await api.retrieve("batch_1")
        assert "sk-test" not in repr(refused.value)

    against(answering((401, {"error": {"message": "Incorrect API key provided."}})), test)


def test_oddities_of_other_servers_are_read() -> None:
    odd = {
        "id": "b",
        "status": "Validating",
        "created_at": "2026-11-30T12:00:00Z",
        "expires_at": "1780000000",
        "request_counts": {"total": None, "completed": None, "failed": None},
        "metadata": None,
        "errors": {"object": "list", "data": [{"code": "Duplicate_Custom_Id", "line": 3, "message": "m"}, 7]},
        "output_file_id": "",
        "error_file_id": None,
    }

    async def test(api: OpenAiBatches) -> None:
        remote = await api.retrieve("b")
        assert remote.state is RemoteState.RUNNING
        assert remote.created == 1_796_040_000.0
        assert remote.expires == 1_780_000_000.0
        assert (remote.total, remote.tag, remote.output_file_id) == (None, None, None)
        assert remote.problems == (LineProblem("duplicate_custom_id", "m", 3),)

    against(answering((200, odd)), test)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("COMPLETED", RemoteState.COMPLETED),
        ("Failed", RemoteState.FAILED),
        ("EXPIRED", RemoteState.EXPIRED),
        ("canceled", RemoteState.CANCELLED),
        ("cancelling", RemoteState.CANCELLING),
        ("finalizing", RemoteState.RUNNING),
        ("something_new", RemoteState.RUNNING),
        (None, RemoteState.RUNNING),
    ],
)
def test_states_in_any_spelling(word: str | None, state: RemoteState) -> None:
    async def test(api: OpenAiBatches) -> None:
        assert (await api.retrieve("b")).state is state

    against(answering((200, {"id": "b", "status": word})), test)


def test_a_list_under_value_and_a_wrapped_batch_are_read() -> None:
    async def test(api: OpenAiBatches) -> None:
        found = await api.find("t", None, 0.0)
        assert [each.id for each in found] == ["b"]
        assert (await api.create(submission(b"a"), "f")).id == "c"

    listed = {"value": [{"id": "b", "metadata": {"weir_batch": "t"}}, "odd", {}]}
    against(answering((200, listed), (201, {"job": {"id": "c", "status": "VALIDATING"}})), test)


def test_a_provider_that_lists_nothing_has_nothing_of_ours() -> None:
    async def test(api: OpenAiBatches) -> None:
        assert await api.find("t", "f", 0.0) == ()
        assert await api.find_files("name") == ()

    against(answering((404, "not here")), test)


def test_result_lines_come_whole_whatever_the_pieces() -> None:
    long = b"x" * 300_000

    async def content(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b"on", b"e\n\ntw", b"o\r\n", long, b"\nlast"):
            await response.write(piece)
        return response

    app = web.Application()
    app.router.add_get("/v1/files/out/content", content)

    async def test(api: OpenAiBatches) -> None:
        remote = RemoteBatch("b", RemoteState.COMPLETED, output_file_id="out")
        assert await lines_of(api, remote) == [b"one", b"", b"two\r", long, b"last"]

    against(app, test)


def test_a_file_that_breaks_off_is_no_shorter_file() -> None:
    async def content(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"one\n")
        assert request.transport is not None
        request.transport.close()
        return response

    app = web.Application()
    app.router.add_get("/v1/files/out/content", content)

    async def test(api: OpenAiBatches) -> None:
        with pytest.raises(Unavailable):
            await lines_of(api, RemoteBatch("b", RemoteState.COMPLETED, output_file_id="out"))

    against(app, test)


@pytest.mark.parametrize(
    ("code", "line", "kind"),
    [
        ("token_limit_exceeded", None, RefusalKind.QUOTA),
        ("too_many_tasks", None, RefusalKind.TOO_LARGE),
        ("too_large", None, RefusalKind.TOO_LARGE),
        ("invalid_request", 3, RefusalKind.LINES),
        ("model_not_found", None, RefusalKind.OTHER),
    ],
)
def test_refusals_are_told_apart(code: str, line: int | None, kind: RefusalKind) -> None:
    assert refusal_kind(FileRefused("failed", "m", (LineProblem(code, "m", line),))) is kind
    if line is None:
        assert refusal_kind(FileRefused(code, "m")) is kind
