"""OpenAI's batch API, and any server of its shape: files in, files out.

Owns paths, multipart and the tolerance that servers of this shape need: states in any case, dates as numbers
or ISO text, counts that are null, error files of no bytes, lists under `data` or `value`. Sources: `openai`
3.57.0 (types/batch.py, batch_create_params.py, file_create_params.py) and the vendor's batch guide.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from proxy.core.json_values import decode
from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import (
    ApiLimits,
    BatchApiError,
    BatchInput,
    FileRefused,
    InputChanged,
    LineProblem,
    NotFound,
    RemoteBatch,
    RemoteFile,
    RemoteState,
    Unavailable,
    Unsupported,
)
from proxy.upstream.providers.client import CallFailed, Fields, ProviderClient, Reply, Upload

TAG_KEY = "weir_batch"
"""The key in the provider's metadata under which our batch's id stands."""

LIMITS = ApiLimits(jobs=50_000, bytes=200_000_000, gap_seconds=1.8)
"""OpenAI's guide: 50,000 requests and 200 MB a batch, 2,000 creations an hour."""

GENERIC_LIMITS = replace(LIMITS, gap_seconds=0.0)
"""Servers of this shape copy the sizes; how often one may create they do not say (429 does)."""

_PAGES = 20
_PAGE_SIZE = 100
# A clock that goes a little wrong must not hide a batch of ours.
_SLACK_SECONDS = 3600.0
_BOUNDARY = "weir-5c1f0a9f4a6b4f5d8e0b7d1c2a3f4e5d"
_STATES: Mapping[str, RemoteState] = {
    "cancelling": RemoteState.CANCELLING,
    "cancellation_requested": RemoteState.CANCELLING,
    "completed": RemoteState.COMPLETED,
    "failed": RemoteState.FAILED,
    "expired": RemoteState.EXPIRED,
    "cancelled": RemoteState.CANCELLED,
    "canceled": RemoteState.CANCELLED,
}


class OpenAiBatches:
    """`BatchApi` over `/v1/files` and `/v1/batches`; `credential` are header fields of a caller."""

    takes_files = True

    def __init__(self, client: ProviderClient, credential: Fields = (), limits: ApiLimits = LIMITS) -> None:
        self.limits = limits
        self._client = client
        self._credential = credential

    def line_url(self, endpoint: str) -> str | None:
        """See `BatchApi`."""
        return endpoint

    async def upload(self, batch: BatchInput) -> str | None:
        """See `BatchApi`."""
        head, tail = _multipart(batch.file_name)
        lines = _Counted(batch)
        body = Upload(len(head) + batch.size_bytes + len(tail), lines.between(head, tail))
        content_type = f"multipart/form-data; boundary={_BOUNDARY}"
        try:
            reply = await self._send("POST", "/v1/files", headers=[("Content-Type", content_type)], body=body)
        except Unavailable:
            if lines.differ:
                raise InputChanged("a job was deleted while its line was on the way") from None
            raise
        return str(json_object(checked(reply, whole_api=True))["id"])

    async def create(self, batch: BatchInput, file_id: str | None) -> RemoteBatch:
        """See `BatchApi`."""
        wanted = {
            "input_file_id": file_id,
            "endpoint": batch.endpoint,
            "completion_window": "24h",
            "metadata": {TAG_KEY: batch.tag},
        }
        reply = await self._send(
            "POST",
            "/v1/batches",
            headers=[("Content-Type", "application/json")],
            body=json.dumps(wanted).encode(),
        )
        return _batch(json_object(checked(reply, whole_api=True)))

    async def find(self, tag: str, file_id: str | None, since: float) -> tuple[RemoteBatch, ...]:
        """See `BatchApi`."""
        found: dict[str, RemoteBatch] = {}
        async for batch in self._listed(since - _SLACK_SECONDS):
            if batch.tag == tag or (file_id is not None and batch.input_file_id == file_id):
                found[batch.id] = batch
        return tuple(sorted(found.values(), key=lambda batch: batch.created or 0.0))

    async def _listed(self, since: float) -> AsyncIterator[RemoteBatch]:
        try:
            async for page in self._pages("/v1/batches", {}):
                batches = [_batch(each) for each in page]
                for batch in batches:
                    yield batch
                # Newest first: the rest is older still.
                if any(batch.created is not None and batch.created < since for batch in batches):
                    return
        except Unsupported:
            return

    async def find_files(self, file_name: str) -> tuple[RemoteFile, ...]:
        """See `BatchApi`."""
        found: dict[str, RemoteFile] = {}
        try:
            async for page in self._pages("/v1/files", {"purpose": "batch"}):
                for each in page:
                    if each.get("filename") == file_name:
                        size = each.get("bytes")
                        known = size if isinstance(size, int) else None
                        found[str(each["id"])] = RemoteFile(str(each["id"]), file_name, known)
        except Unsupported:
            pass
        return tuple(found.values())

    async def _pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[list[dict[str, Any]]]:
        after: str | None = None
        for _ in range(_PAGES):
            given = {**query, "limit": str(_PAGE_SIZE)} | ({} if after is None else {"after": after})
            words = "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())
            reply = checked(await self._send("GET", f"{path}?{words}"), whole_api=True)
            listed = json_object(reply)
            data = listed.get("data", listed.get("value"))
            page = [each for each in data if isinstance(each, dict) and "id" in each] if data else []
            if not page:
                return
            yield page
            last = str(page[-1]["id"])
            if not listed.get("has_more") or last == after:
                return
            after = last

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """See `BatchApi`."""
        return _batch(json_object(checked(await self._send("GET", _batch_path(batch_id)))))

    async def cancel(self, batch_id: str) -> None:
        """See `BatchApi`."""
        reply = await self._send("POST", f"{_batch_path(batch_id)}/cancel")
        if reply.status not in (400, 409):  # it has ended meanwhile, or is being cancelled already
            checked(reply)

    async def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        """See `BatchApi`. A file that is gone raises `NotFound` only before its first line."""
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id:
                async for line in self._lines(file_id):
                    yield line

    async def _lines(self, file_id: str) -> AsyncIterator[bytes]:
        rest = bytearray()
        try:
            async with self._client.stream(
                "GET", f"{_file_path(file_id)}/content", credential=self._credential
            ) as (reply, pieces):
                if reply.status != 200:
                    body = b"".join([piece async for piece in pieces])
                    checked(Reply(reply.status, reply.headers, body))
                async for piece in pieces:
                    rest += piece
                    if b"\n" in piece:
                        *lines, last = rest.split(b"\n")
                        rest = bytearray(last)
                        for line in lines:
                            yield bytes(line)
        except CallFailed as failed:
            raise Unavailable(str(failed), may_have_happened=failed.may_have_happened) from None
        if rest.strip():
            yield bytes(rest)

    async def delete_file(self, file_id: str) -> None:
        """See `BatchApi`."""
        try:
            checked(await self._send("DELETE", _file_path(file_id)))
        except (NotFound, FileRefused, Unsupported):
            return  # gone, or the provider deletes nothing by request

    async def _send(
        self, method: str, path: str, *, headers: Fields = (), body: bytes | Upload | None = None
    ) -> Reply:
        try:
            return await self._client.call(
                method, path, headers=headers, credential=self._credential, body=body
            )
        except CallFailed as failed:
            raise Unavailable(str(failed), may_have_happened=failed.may_have_happened) from None


class _Counted:
    """Sends exactly as many bytes as were announced, or notices that it cannot."""

    def __init__(self, batch: BatchInput) -> None:
        self._batch = batch
        self.differ = False

    async def between(self, head: bytes, tail: bytes) -> AsyncIterator[bytes]:
        yield head
        left = self._batch.size_bytes
        async for piece in self._batch.lines():
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            self.differ = True
            raise InputChanged("the lines are not those that were announced")
        yield tail


def _multipart(file_name: str) -> tuple[bytes, bytes]:
    parts = (
        f"--{_BOUNDARY}",
        'Content-Disposition: form-data; name="purpose"',
        "",
        "batch",
        f"--{_BOUNDARY}",
        f'Content-Disposition: form-data; name="file"; filename="{file_name}"',
        "Content-Type: application/jsonl",
        "",
        "",
    )
    return "\r\n".join(parts).encode(), f"\r\n--{_BOUNDARY}--\r\n".encode()


def _batch_path(batch_id: str) -> str:
    return f"/v1/batches/{quote(batch_id, safe='')}"


def _file_path(file_id: str) -> str:
    return f"/v1/files/{quote(file_id, safe='')}"


def _batch(value: Mapping[str, Any]) -> RemoteBatch:
    if not isinstance(value.get("id"), str):
        raise BatchApiError("the provider's batch has no id")
    metadata = value.get("metadata")
    tag = metadata.get(TAG_KEY) if isinstance(metadata, dict) else None
    counts = value.get("request_counts")
    count = counts.get if isinstance(counts, dict) else {}.get
    return RemoteBatch(
        id=value["id"],
        state=_STATES.get(str(value.get("status")).lower(), RemoteState.RUNNING),
        tag=tag if isinstance(tag, str) else None,
        input_file_id=_text(value.get("input_file_id")),
        output_file_id=_text(value.get("output_file_id")),
        error_file_id=_text(value.get("error_file_id")),
        created=_time(value.get("created_at")),
        expires=_time(value.get("expires_at")),
        total=_count(count("total")),
        completed=_count(count("completed")),
        failed=_count(count("failed")),
        problems=_problems(value.get("errors")),
    )


def _problems(errors: object) -> tuple[LineProblem, ...]:
    data = errors.get("data") if isinstance(errors, dict) else errors
    if not isinstance(data, list):
        return ()
    return tuple(
        LineProblem(
            str(each.get("code") or "invalid_request").lower(),
            str(each.get("message") or ""),
            _count(each.get("line")),
        )
        for each in data
        if isinstance(each, dict)
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            number = decode(value.encode())
            return float(number) if isinstance(number, int | float) else None
        return moment.timestamp() if moment.tzinfo is not None else None
    return None
