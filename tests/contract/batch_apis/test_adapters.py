"""What every adapter for a batch API has to do, against a scripted server of each dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from proxy.core.upstream import Upstream
from proxy.jobs.packing import encode_line
from proxy.jobs.unpacking import OutcomeKind, read_line
from proxy.upstream.providers.batch_api import (
    BatchApi,
    BatchApiError,
    BatchInput,
    CredentialsRefused,
    FileRefused,
    InputChanged,
    NotFound,
    RateLimited,
    RefusalKind,
    RemoteBatch,
    RemoteState,
    Unavailable,
    refusal_kind,
)
from proxy.upstream.providers.batch_apis import BATCH_APIS, batch_api
from proxy.upstream.providers.client import ProviderClient
from tests.support.batch_servers import SERVERS
from tests.support.batch_servers.base import KEY, BatchServer
from tests.support.batch_servers.mistral import MistralServer
from tests.support.batch_servers.openrouter import OpenRouterServer
from tests.support.job_worker import serving, upstream_at

Test = Callable[[BatchApi, BatchServer], Awaitable[None]]
TEXTS = ("one", "two is bad", "three is busy", "four")
IDS = tuple(f"{number:032x}" for number in range(len(TEXTS)))
SINCE = 1_000_000_000.0


@pytest.fixture(
    params=[*SERVERS, lambda: MistralServer(has_files=True), lambda: OpenRouterServer(has_pages=False)],
    ids=[*(each.__name__ for each in SERVERS), "MistralFiles", "OpenRouterInline"],
)
def server(request: pytest.FixtureRequest) -> BatchServer:
    """Return the API of one provider."""
    made: BatchServer = request.param()
    return made


def against(server: BatchServer, test: Test, **upstream: Any) -> None:
    async def run() -> None:
        async with serving(server.app()) as url:
            configured = upstream_at(url, provider=server.provider, **upstream)
            at = Upstream(
                configured.name,
                f"{url}{server.upstream_path}",
                api_key=configured.api_key,
                provider=configured.provider,
            )
            credential = () if configured.api_key is not None else ((server.key_header, _shown(server)),)
            async with ProviderClient.for_upstream(at, {}) as client:
                api = batch_api(client, credential)
                assert api is not None
                await test(api, server)

    asyncio.run(run())


def _shown(server: BatchServer) -> str:
    return f"Bearer {KEY}" if server.key_header == "Authorization" else KEY


def submission(
    server: BatchServer, api: BatchApi, *, announced: int | None = None, tag: str = "tag"
) -> BatchInput:
    url = api.line_url(server.endpoint)
    lines = [
        encode_line(job_id, json.dumps(server.body(text)).encode(), url)
        for job_id, text in zip(IDS, TEXTS, strict=True)
    ]

    async def pieces() -> AsyncIterator[bytes]:
        yield b"".join(lines[:2])
        yield b"".join(lines[2:])

    size = sum(map(len, lines)) if announced is None else announced
    return BatchInput(tag, f"weir-{tag}.jsonl", server.endpoint, server.model, size, pieces)


async def created(api: BatchApi, batch: BatchInput, file_id: str | None) -> RemoteBatch:
    """Create a batch, again as long as the provider checks its file and has done nothing."""
    while True:
        try:
            return await api.create(batch, file_id)
        except Unavailable as problem:
            if problem.may_have_happened:
                raise


async def begun(api: BatchApi, server: BatchServer) -> RemoteBatch:
    batch = submission(server, api)
    return await created(api, batch, await api.upload(batch))


async def ended(api: BatchApi, batch_id: str) -> RemoteBatch:
    for _ in range(10):
        remote = await api.retrieve(batch_id)
        if remote.state.is_final:
            return remote
    raise AssertionError("it does not end")


async def kinds(api: BatchApi, server: BatchServer, remote: RemoteBatch) -> dict[str, OutcomeKind]:
    """Return what the results say of each line, read as the worker reads them."""
    found: dict[str, OutcomeKind] = {}
    # The worker knows no more than this of a batch that it settles.
    known = RemoteBatch(
        remote.id,
        RemoteState.COMPLETED,
        output_file_id=remote.output_file_id,
        error_file_id=remote.error_file_id,
        endpoint=server.endpoint,
    )
    async for line in api.results(known):
        if line.strip():
            read = read_line(line, "here")
            assert read is not None, line
            found[read[0]] = read[1].kind
    return found


def test_a_whole_life(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        batch = submission(server, api)
        file_id = await api.upload(batch)
        assert (file_id is not None) == api.takes_files
        assert [each.id for each in await api.find_files(batch.file_name)] == ([file_id] if file_id else [])
        assert all(each.size_bytes == batch.size_bytes for each in await api.find_files(batch.file_name))
        assert await api.find_files("another.jsonl") == ()
        remote = await created(api, batch, file_id)
        assert remote.state is RemoteState.RUNNING
        remote = await ended(api, remote.id)
        assert remote.state is RemoteState.COMPLETED
        retry, good = OutcomeKind.RETRY, OutcomeKind.ANSWER
        expected = dict(zip(IDS, (good, OutcomeKind.FAILED, retry, good), strict=True))
        assert await kinds(api, server, remote) == expected
        assert server.executions == dict.fromkeys(IDS, 1)

    against(server, test)


def test_answers_come_as_the_provider_gave_them(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        remote = await ended(api, (await begun(api, server)).id)
        read = [read_line(line, "here") async for line in api.results(remote) if line.strip()]
        answers = {each[0]: each[1].answer for each in read if each is not None}
        good, bad = answers[IDS[0]], answers[IDS[1]]
        assert good is not None
        assert bad is not None
        assert (good.status, json.loads(good.body)) == (200, server.answer(server.body("one")))
        assert bad.status == 400
        assert "bad" in json.dumps(json.loads(bad.body))

    against(server, test)


def test_what_was_done_before_the_end_is_delivered(server: BatchServer) -> None:
    server.script.ending = "expired"

    async def test(api: BatchApi, server: BatchServer) -> None:
        remote = await ended(api, (await begun(api, server)).id)
        assert remote.state is RemoteState.EXPIRED
        found = await kinds(api, server, remote)
        assert found.pop(IDS[0]) is OutcomeKind.ANSWER
        assert found.pop(IDS[1]) is OutcomeKind.FAILED
        assert found == (dict.fromkeys(IDS[2:], OutcomeKind.EXPIRED) if server.tells_undone else {})

    against(server, test)


def test_a_batch_is_cancelled(server: BatchServer) -> None:
    server.script.is_held = True

    async def test(api: BatchApi, server: BatchServer) -> None:
        remote = await begun(api, server)
        await api.cancel(remote.id)
        if not server.can_cancel:
            assert (await api.retrieve(remote.id)).state is RemoteState.RUNNING
            return
        remote = await ended(api, remote.id)
        assert remote.state is RemoteState.CANCELLED
        found = await kinds(api, server, remote)
        assert found[IDS[0]] is OutcomeKind.ANSWER
        undone = {each: kind for each, kind in found.items() if each in IDS[2:]}
        assert undone == (dict.fromkeys(IDS[2:], OutcomeKind.CANCELLED) if server.tells_undone else {})
        await api.cancel(remote.id)

    against(server, test)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("token_limit_exceeded", "Enqueued token limit exceeded", RefusalKind.QUOTA),
        ("model_not_found", "There is no such model", RefusalKind.OTHER),
    ],
)
def test_a_batch_that_fails_says_why(server: BatchServer, code: str, message: str, kind: RefusalKind) -> None:
    server.script.ending, server.script.failure = "failed", (code, message)

    async def test(api: BatchApi, server: BatchServer) -> None:
        remote = await ended(api, (await begun(api, server)).id)
        if not server.may_fail:
            return
        assert remote.state is RemoteState.FAILED
        assert remote.output_file_id is None
        told = remote.problems[0]
        assert told.message == message
        assert refusal_kind(FileRefused(told.code, told.message, remote.problems)) is kind
        assert server.executions == {}

    against(server, test)


def test_a_batch_whose_creation_was_not_answered_is_found(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        stranger = await begun(api, server)
        server.batches[stranger.id].tag = None
        for line in server.batches[stranger.id].lines:
            line["custom_id"] = f"their-{line['custom_id']}"
        await ended(api, stranger.id)
        batch = submission(server, api, tag="ours")
        file_id = await api.upload(batch)
        server.script.lost = 1
        server.script.is_held = True
        with pytest.raises(Unavailable) as lost:
            await created(api, batch, file_id)
        assert lost.value.may_have_happened
        (ours,) = set(server.batches) - {stranger.id}
        if not server.is_tagged:
            with pytest.raises(Unavailable):
                await api.find("ours", file_id, SINCE, IDS)
            assert await api.find("ours", file_id, SINCE, IDS[:1]) == ()  # none has so few lines
        server.script.is_held = False
        await ended(api, ours)
        found = await api.find("ours", file_id, SINCE, IDS)
        assert [each.id for each in found] == [ours]
        assert await api.find("nobody's", None, SINCE, [f"other-{each}" for each in IDS]) == ()

    against(server, test)


def test_nothing_is_found_where_nothing_was_made(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        assert await api.find("tag", None, SINCE, IDS) == ()
        assert await api.find_files("weir-tag.jsonl") == ()

    against(server, test)


def test_too_many_calls_say_when_to_come_back(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        remote = await begun(api, server)
        refusal = server.error(429, "rate_limit_exceeded", "slow down")
        server.script.answers = [(429, refusal, {"Retry-After": "7"})]
        with pytest.raises(RateLimited) as refused:
            await api.retrieve(remote.id)
        assert refused.value.retry_after_seconds == 7

    against(server, test)


def test_a_refused_creation_is_the_providers_word(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        batch = submission(server, api)
        server.script.answers = [(413, server.error(413, "request_too_large", "too large"), {})]
        sending = api.upload(batch) if api.takes_files else api.create(batch, None)
        with pytest.raises(FileRefused) as refused:
            await sending
        assert refusal_kind(refused.value) is RefusalKind.TOO_LARGE
        assert server.batches == {}

    against(server, test)


@pytest.mark.parametrize("answer", [(200, "<html>welcome</html>"), (502, "<html>no</html>"), (200, [])])
def test_garbage_is_no_batch(server: BatchServer, answer: tuple[int, Any]) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        remote = await begun(api, server)
        server.script.answers = [(*answer, {})]
        with pytest.raises(Unavailable):
            await api.retrieve(remote.id)
        server.script.answers = [(200, {"object": "batch"}, {})]
        with pytest.raises(BatchApiError):
            await api.retrieve(remote.id)

    against(server, test)


def test_an_unknown_batch_is_not_found(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        for call in (api.retrieve("batch_none"), api.retrieve("../batches")):
            with pytest.raises(NotFound):
                await call

    against(server, test)


def test_a_wrong_key_is_refused_and_shown_to_nobody(server: BatchServer) -> None:
    class Other(type(server)):  # type: ignore[misc]
        def is_key(self, request: Any) -> bool:
            super().is_key(request)
            return False

    server.__class__ = Other

    async def test(api: BatchApi, server: BatchServer) -> None:
        with pytest.raises(CredentialsRefused) as refused:
            await begun(api, server)
        assert KEY not in repr(refused.value)

    against(server, test)


def test_a_callers_own_key_goes_where_the_provider_wants_it(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        remote = await ended(api, (await begun(api, server)).id)
        assert await kinds(api, server, remote)

    against(server, test, api_key=None)


def test_nothing_is_left_at_the_provider(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        remote = await ended(api, (await begun(api, server)).id)
        files = [remote.input_file_id, remote.output_file_id, remote.error_file_id]
        held = [each for each in files if each is not None]
        assert held
        for file_id in (*held, *held):
            await api.delete_file(file_id)
        assert len(server.deleted) == len(held)

    against(server, test)


def test_lines_that_changed_are_not_sent_to_their_end(server: BatchServer) -> None:
    async def test(api: BatchApi, server: BatchServer) -> None:
        for announced in (10, 100_000):
            batch = submission(server, api, announced=announced)
            sending = api.upload(batch) if api.takes_files else api.create(batch, None)
            with pytest.raises(InputChanged):
                await sending
        assert server.batches == {}
        assert await api.find_files("weir-tag.jsonl") == ()

    against(server, test)


def test_every_adapter_has_a_server() -> None:
    without = {provider.value for provider in BATCH_APIS} - {made().provider.value for made in SERVERS}
    assert without == {"generic"}, "it is OpenAI's"
