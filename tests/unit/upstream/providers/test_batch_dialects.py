"""What single providers of batches want: windows, paths, order of keys. The rest is a contract of all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from proxy.core.upstream import Provider, Secret, Upstream
from proxy.upstream.providers.answers import error_of
from proxy.upstream.providers.azure_batches import AzureBatches
from proxy.upstream.providers.batch_api import BatchApi, BatchInput, FileRefused, RemoteState, Unavailable
from proxy.upstream.providers.batch_apis import batch_api
from proxy.upstream.providers.client import ProviderClient
from tests.support.batch_servers.base import Json
from tests.support.job_worker import serving

LINE = b'{"custom_id":"a","body":{"model":"m","messages":[]}}\n'
DAY = 86_400.0


class Recorder:
    """Answers everything with one object, and remembers what was asked."""

    def __init__(self, answer: Json) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, bytes]] = []

    def app(self) -> web.Application:
        async def handle(request: web.Request) -> web.Response:
            self.asked.append((request.method, request.path_qs, await request.read()))
            return web.json_response(self.answer)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        return app


def submission(wait_seconds: float = DAY) -> BatchInput:
    async def lines() -> AsyncIterator[bytes]:
        yield LINE

    chat = "/v1/chat/completions"
    return BatchInput("tag", "weir-tag.jsonl", chat, "m", len(LINE), lines, wait_seconds)


def created(provider: Provider, answer: Json, batch: BatchInput, path: str = "/v1") -> Recorder:
    """Create a batch against a server that answers like that."""
    recorder = Recorder(answer)

    async def run() -> None:
        async with serving(recorder.app()) as url:
            upstream = Upstream("up", f"{url}{path}", api_key=Secret("k"), provider=provider)
            async with ProviderClient.for_upstream(upstream, {}) as client:
                api = batch_api(client, ())
                assert api is not None
                await api.create(batch, "file-1")

    asyncio.run(run())
    return recorder


@pytest.mark.parametrize(
    ("wait_seconds", "window"),
    [(60.0, "24h"), (DAY, "24h"), (DAY + 1, "48h"), (3 * DAY, "72h"), (6.5 * DAY, "7d"), (30 * DAY, "7d")],
)
def test_groq_is_given_the_shortest_window_that_all_can_wait_for(wait_seconds: float, window: str) -> None:
    asked = created(Provider.GROQ, {"id": "b"}, submission(wait_seconds)).asked
    assert json.loads(asked[-1][2])["completion_window"] == window


@pytest.mark.parametrize(("wait_seconds", "hours"), [(60.0, 1), (DAY, 24), (DAY + 1, 25), (30 * DAY, 168)])
def test_mistral_is_given_the_hours_that_all_can_wait(wait_seconds: float, hours: int) -> None:
    asked = created(Provider.MISTRAL, {"id": "b"}, submission(wait_seconds)).asked
    assert json.loads(asked[-1][2])["timeout_hours"] == hours


def test_openrouter_reads_path_and_model_before_the_requests() -> None:
    (asked,) = created(Provider.OPENROUTER, {"id": "b"}, submission(), "/api/v1").asked
    assert asked[:2] == ("POST", "/api/v1/batches")
    assert list(json.loads(asked[2])) == ["endpoint", "model", "completion_window", "requests"]
    assert json.loads(asked[2])["requests"] == [json.loads(LINE)]


@pytest.mark.parametrize(
    ("base", "files", "line_url"),
    [
        ("/openai/v1", "/openai/v1/files/file-1", "/v1/chat/completions"),
        ("/openai", "/openai/files/file-1?api-version=2024-10-21", "/chat/completions"),
        ("/openai/deployments/d", "/openai/files/file-1?api-version=2024-10-21", "/chat/completions"),
    ],
)
def test_azure_is_addressed_beside_its_deployments(base: str, files: str, line_url: str) -> None:
    asked = created(Provider.AZURE, {"id": "b", "status": "Processed"}, submission(), base).asked
    assert asked[0][1] == files
    assert json.loads(asked[1][2])["endpoint"] == line_url


def azure(status: str, details: str | None = None) -> None:
    recorder = Recorder({"id": "file-1", "status": status, "status_details": details})

    async def run() -> None:
        async with serving(recorder.app()) as url:
            upstream = Upstream("up", f"{url}/openai/v1", api_key=Secret("k"), provider=Provider.AZURE)
            async with ProviderClient.for_upstream(upstream, {}) as client:
                await AzureBatches(client, look_seconds=0.0).create(submission(), "file-1")

    asyncio.run(run())


def test_a_file_that_azure_cannot_process_is_refused() -> None:
    with pytest.raises(FileRefused, match="line 1 is no JSON"):
        azure("Error", "line 1 is no JSON")


def test_a_file_that_azure_still_processes_is_waited_for_without_a_creation() -> None:
    with pytest.raises(Unavailable) as problem:
        azure("running")
    assert not problem.value.may_have_happened


@pytest.mark.parametrize("state", ["FAILED", "INVALID_FORMAT"])
def test_a_file_that_together_does_not_like_is_refused(state: str) -> None:
    told = {"id": "file-1", "processing_status": state, "validation_report": {"error": "no JSON in line 1"}}
    with pytest.raises(FileRefused, match="no JSON in line 1"):
        created(Provider.TOGETHER, told, submission())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"object":"error","message":"m","type":"Invalid_Model"}', ("invalid_model", "m")),
        (b'{"error":{"message":"m","code":413}}', ("413", "m")),
        (b'{"type":"error","error":{"type":"api_error","message":"m"}}', ("api_error", "m")),
        (b'{"message":"no Route matched"}', (None, "no Route matched")),
        (b'{"detail":"Not Found"}', (None, "")),
    ],
)
def test_errors_are_read_with_and_without_an_envelope(body: bytes, told: tuple[str | None, str]) -> None:
    assert error_of(body) == told


async def _state(api: BatchApi) -> RemoteState:
    return (await api.retrieve("b")).state


@pytest.mark.parametrize(
    ("provider", "answer", "state"),
    [
        (Provider.MISTRAL, {"status": "QUEUED"}, RemoteState.RUNNING),
        (Provider.MISTRAL, {"status": "CANCELLATION_REQUESTED"}, RemoteState.CANCELLING),
        (Provider.MISTRAL, {"status": "FAILED", "succeeded_requests": 0}, RemoteState.FAILED),
        (Provider.MISTRAL, {"status": "FAILED", "succeeded_requests": 3}, RemoteState.COMPLETED),
        (Provider.OPENROUTER, {"status": "failed"}, RemoteState.FAILED),
        (
            Provider.OPENROUTER,
            {"status": "failed", "request_counts": {"completed": 1}},
            RemoteState.COMPLETED,
        ),
        (Provider.TOGETHER, {"status": "VALIDATING"}, RemoteState.RUNNING),
        (Provider.ANTHROPIC, {"processing_status": "canceling"}, RemoteState.CANCELLING),
        (Provider.ANTHROPIC, {"processing_status": "ended", "request_counts": None}, RemoteState.COMPLETED),
        (Provider.ANTHROPIC, {"processing_status": "something_new"}, RemoteState.RUNNING),
    ],
)
def test_states_in_the_providers_words(provider: Provider, answer: Json, state: RemoteState) -> None:
    found: list[Any] = []

    async def run() -> None:
        async with serving(Recorder({"id": "b", **answer}).app()) as url:
            upstream = Upstream("up", f"{url}/v1", api_key=Secret("k"), provider=provider)
            async with ProviderClient.for_upstream(upstream, {}) as client:
                api = batch_api(client, ())
                assert api is not None
                found.append(await _state(api))

    asyncio.run(run())
    assert found == [state]
