"""Anthropic's Message Batches: requests inline as `params`, one stream of results, no files and no tags.

Owns its words and which requests it refuses. Results become lines of OpenAI's shape: a message as it came, an
error with the status that its type has elsewhere, `expired` and `canceled` as such. Sources: `anthropic`
2.14.0 types/messages/; Anthropic's guide to batch processing and its page on errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

import msgspec

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import (
    ApiLimits,
    BatchApiError,
    BatchInput,
    FileRefused,
    LineProblem,
    RemoteBatch,
    RemoteState,
)
from proxy.upstream.providers.batch_objects import read_count, read_id, read_time
from proxy.upstream.providers.calls import JSON_TYPE, Calls, whole_input
from proxy.upstream.providers.chat_as_messages import (
    Untranslatable,
    as_chat_error,
    as_completion,
    as_message,
    chat_obstacle,
)
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.inline_batches import MOST_BYTES, InlineBatches, itself

LIMITS = ApiLimits(jobs=100_000, bytes=MOST_BYTES)

VERSION = "2026-10-21"
"""The version of the API that is asked for: one for all requests of a batch, that of `anthropic` 2.14.0."""

CHAT = "/v1/chat/completions"

_PER_REQUEST = ("anthropic-beta", "anthropic-workspace-id", "anthropic-user-profile-id")
_CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Source: Anthropic's page on errors.
_STATUSES: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_COUNTED = ("processing", "succeeded", "errored", "canceled", "expired")
_NOT_DONE = {
    "expired": {"code": "batch_expired", "message": "the batch expired before it was done"},
    "canceled": {
        "code": "batch_cancelled",
        "message": "the batch was cancelled before it was done",
    },
}


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw | None = None
    error: Any = None


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


class _Request(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw


class AnthropicBatches(InlineBatches):
    """`BatchApi` over Anthropic."""

    batches_path = "/v1/messages/batches"

    def __init__(self, client: ProviderClient, credential: Fields = (), limits: ApiLimits = LIMITS) -> None:
        super().__init__(Calls(client, credential, [("anthropic-version", VERSION)]), limits)

    async def create(self, batch: BatchInput, file_id: str | None) -> RemoteBatch:
        """See `BatchApi`."""
        lines = (await whole_input(batch)).split(b"\n")
        requests = [_request(line, number, batch.endpoint) for number, line in enumerate(lines, 1) if line]
        body = b'{"requests":[%b]}' % b",".join(requests)
        reply = await self.calls.send("POST", self.batches_path, headers=[JSON_TYPE], body=body)
        return _batch(json_object(checked(reply, whole_api=True)))

    async def find(
        self, tag: str, file_id: str | None, since: float, ids: Collection[str] = ()
    ) -> tuple[RemoteBatch, ...]:
        """See `BatchApi`: by the ids in the results."""
        listed = (_batch(each) async for each in self.listed("after_id"))
        return await self.find_untagged(listed, since, ids)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """See `BatchApi`."""
        return _batch(json_object(checked(await self.calls.send("GET", self.path(batch_id)))))

    async def cancel(self, batch_id: str) -> None:
        """See `BatchApi`."""
        reply = await self.calls.send("POST", self.path(batch_id, "/cancel"))
        if reply.status not in (400, 409):  # it has ended meanwhile
            checked(reply)

    async def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        """See `BatchApi`. Asked for by the batch's id: `results_url` could lead anywhere."""
        async for line in self.calls.lines(self.path(batch.id, "/results")):
            if line.strip():
                yield _translated(line, batch)


def line_obstacle(endpoint: str, document: Document, header: Callable[[str], str | None]) -> str | None:
    """Return why a request cannot be in a batch of Anthropic's, `None` if it can. Pure."""
    own = next((name for name in _PER_REQUEST if header(name)), None)
    if own is not None:
        return f"a batch has one {own} for all"
    if (header("anthropic-version") or VERSION) != VERSION:
        return f"a version of the API other than {VERSION} is asked for"
    if endpoint == CHAT:
        return chat_obstacle(document)
    if document.get("speed") not in (None, b"null"):
        return "speed is refused in batches"
    if document.value("max_tokens") == 0:
        return "max_tokens 0 is refused in batches"
    return None


def _request(line: bytes, number: int, endpoint: str) -> bytes:
    request = msgspec.json.decode(line, type=_Request)
    if _CUSTOM_ID.fullmatch(request.custom_id) is None:
        raise BatchApiError("a custom_id that Anthropic refuses")
    params = bytes(request.body)
    if endpoint == CHAT:
        try:
            params = as_message(params)
        except Untranslatable as reason:
            problem = LineProblem("untranslatable", str(reason), number)
            raise FileRefused(problem.code, problem.message, (problem,)) from None
    return b'{"custom_id":"%b","params":%b}' % (request.custom_id.encode(), params)


def _batch(value: Mapping[str, Any]) -> RemoteBatch:
    counts = value.get("request_counts")
    count = counts if isinstance(counts, dict) else {}
    figures = {name: read_count(count.get(name)) or 0 for name in _COUNTED}
    batch_id = read_id(value)
    return RemoteBatch(
        id=batch_id,
        state=_state(value, figures),
        input_file_id=itself(batch_id),
        created=read_time(value.get("created_at")),
        expires=read_time(value.get("expires_at")),
        total=sum(figures.values()) or None,
        completed=figures["succeeded"],
        failed=figures["errored"],
    )


def _state(value: Mapping[str, Any], figures: Mapping[str, int]) -> RemoteState:
    match value.get("processing_status"):
        case "ended":
            if value.get("cancel_initiated_at") and figures["canceled"]:
                return RemoteState.CANCELLED
            return RemoteState.EXPIRED if figures["expired"] else RemoteState.COMPLETED
        case "canceling":
            return RemoteState.CANCELLING
        case _:
            return RemoteState.RUNNING


def _translated(line: bytes, batch: RemoteBatch) -> bytes:
    """Return a result as a line of OpenAI's shape; what cannot be read stays as it is."""
    try:
        read = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _translated_slowly(line, batch)
    message = None if read.result.message is None else bytes(read.result.message)
    return _openai_line(read.custom_id, read.result.type, message, read.result.error, batch)


def _translated_slowly(line: bytes, batch: RemoteBatch) -> bytes:
    # Half a surrogate pair in an answer is no reason to lose it.
    value = decode(line)
    result = value.get("result") if isinstance(value, dict) else None
    if not isinstance(result, dict) or not isinstance(value.get("custom_id"), str):
        return line
    message = json.dumps(result["message"]).encode() if isinstance(result.get("message"), dict) else None
    kind = str(result.get("type"))
    return _openai_line(value["custom_id"], kind, message, result.get("error"), batch)


def _openai_line(
    custom_id: str, kind: str, message: bytes | None, error: object, batch: RemoteBatch
) -> bytes:
    name = json.dumps(custom_id).encode()
    is_chat = batch.endpoint == CHAT
    if kind == "succeeded" and message is not None:
        message = as_completion(message, batch.created or 0.0) if is_chat else message
        return b'{"custom_id":%b,"response":{"status_code":200,"body":%b},"error":null}' % (name, message)
    if kind in _NOT_DONE:
        told = json.dumps(_NOT_DONE[kind]).encode()
        return b'{"custom_id":%b,"response":null,"error":%b}' % (name, told)
    inner = error.get("error") if isinstance(error, dict) else None
    word = inner.get("type") if isinstance(inner, dict) else None
    status = _STATUSES.get(str(word), 500)
    return b'{"custom_id":%b,"response":{"status_code":%d,"body":%b},"error":null}' % (
        name,
        status,
        json.dumps(as_chat_error(error) if is_chat else error).encode(),
    )
