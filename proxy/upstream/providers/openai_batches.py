"""OpenAI's batch API, and any server of its shape: files in, files out.

Owns paths and the order of calls. What other providers of this shape want differently are the attributes and
methods that their adapters replace. Sources: `openai` 3.57.0 (types/batch.py, batch_create_params.py,
file_create_params.py) and the vendor's batch guide.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from proxy.core.json_values import decode
from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import (
    ApiLimits,
    BatchInput,
    FileRefused,
    NotFound,
    RemoteBatch,
    RemoteFile,
    Unsupported,
)
from proxy.upstream.providers.batch_objects import TAG_KEY, read_batch, read_id
from proxy.upstream.providers.calls import Calls
from proxy.upstream.providers.client import Fields, ProviderClient, Reply

LIMITS = ApiLimits(jobs=50_000, bytes=200_000_000, gap_seconds=1.8)
"""OpenAI's guide: 50,000 requests and 200 MB a batch, 2,000 creations an hour."""

GENERIC_LIMITS = replace(LIMITS, gap_seconds=0.0)
"""Servers of this shape copy the sizes; how often one may create they do not say (429 does)."""

_PAGES = 20
_PAGE_SIZE = 100
# A clock that goes a little wrong must not hide a batch of ours.
_SLACK_SECONDS = 3600.0


class OpenAiBatches:
    """`BatchApi` over `/v1/files` and `/v1/batches`; `credential` are header fields of a caller."""

    takes_files = True
    files_path = "/v1/files"
    upload_path = "/v1/files"
    batches_path = "/v1/batches"
    part_type = "application/jsonl"
    purpose = "batch"
    query = ""
    """What every path ends with, `?api-version=…`."""

    def __init__(self, client: ProviderClient, credential: Fields = (), limits: ApiLimits = LIMITS) -> None:
        self.limits = limits
        self.calls = Calls(client, credential)

    # ---- what others do differently

    def line_url(self, endpoint: str) -> str | None:
        """See `BatchApi`."""
        return endpoint

    def form(self, batch: BatchInput) -> Mapping[str, str]:
        """Return the fields that go before the file."""
        return {"purpose": self.purpose}

    def wanted(self, batch: BatchInput, file_id: str | None) -> Mapping[str, Any]:
        """Return the body of a creation."""
        return {
            "input_file_id": file_id,
            "endpoint": batch.endpoint,
            "completion_window": "24h",
            "metadata": {TAG_KEY: batch.tag},
        }

    def read(self, value: Mapping[str, Any]) -> RemoteBatch:
        """Return a batch that the provider shows."""
        return read_batch(value)

    # ---- the port

    async def upload(self, batch: BatchInput) -> str | None:
        """See `BatchApi`."""
        path = f"{self.upload_path}{self.query}"
        reply = await self.calls.upload(path, batch, self.form(batch), self.part_type)
        return read_id(json_object(checked(reply, whole_api=True)))

    async def create(self, batch: BatchInput, file_id: str | None) -> RemoteBatch:
        """See `BatchApi`."""
        path = f"{self.batches_path}{self.query}"
        reply = await self.calls.send_json("POST", path, self.wanted(batch, file_id))
        return self.read(json_object(checked(reply, whole_api=True)))

    async def find(
        self, tag: str, file_id: str | None, since: float, ids: Collection[str] = ()
    ) -> tuple[RemoteBatch, ...]:
        """See `BatchApi`."""
        found: dict[str, RemoteBatch] = {}
        async for batch in self._recent(since - _SLACK_SECONDS):
            if batch.tag == tag or (file_id is not None and batch.input_file_id == file_id):
                found[batch.id] = batch
        return tuple(sorted(found.values(), key=lambda batch: batch.created or 0.0))

    async def _recent(self, since: float) -> AsyncIterator[RemoteBatch]:
        try:
            async for page in self._pages(self.batches_path, {}):
                batches = [self.read(each) for each in page]
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
            async for page in self._pages(self.files_path, {"purpose": self.purpose}):
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
            reply = await self.calls.send("GET", f"{path}{self.query or '?'}{self.query and '&'}{words}")
            page, has_more = _listed(checked(reply, whole_api=True))
            if not page:
                return
            yield page
            last = str(page[-1]["id"])
            if not has_more or last == after:
                return
            after = last

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """See `BatchApi`."""
        return self.read(json_object(checked(await self.calls.send("GET", self._batch_path(batch_id)))))

    async def cancel(self, batch_id: str) -> None:
        """See `BatchApi`."""
        reply = await self.calls.send("POST", self._batch_path(batch_id, "/cancel"))
        if reply.status not in (400, 409):  # it has ended meanwhile, or is being cancelled already
            checked(reply)

    async def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        """See `BatchApi`. A file that is gone raises `NotFound` only before its first line."""
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id:
                async for line in self.calls.lines(self._file_path(file_id, "/content")):
                    yield line

    async def delete_file(self, file_id: str) -> None:
        """See `BatchApi`."""
        try:
            checked(await self.calls.send("DELETE", self._file_path(file_id)))
        except (NotFound, FileRefused, Unsupported):
            return  # gone, or the provider deletes nothing by request

    def _batch_path(self, batch_id: str, rest: str = "") -> str:
        return f"{self.batches_path}/{quote(batch_id, safe='')}{rest}{self.query}"

    def _file_path(self, file_id: str, rest: str = "") -> str:
        return f"{self.files_path}/{quote(file_id, safe='')}{rest}{self.query}"


def _listed(reply: Reply) -> tuple[list[dict[str, Any]], bool]:
    """Return what a list holds, and whether there is more of it. Together lists without an envelope."""
    value = decode(reply.body)
    listed: Mapping[str, Any] = {"data": value} if isinstance(value, list) else json_object(reply)
    data = listed.get("data", listed.get("value"))
    page = [each for each in data if isinstance(each, dict) and "id" in each] if data else []
    return page, bool(listed.get("has_more"))
