"""What batch APIs have in common that take the lines within the creation itself, and keep no files.

Owns the body of such a creation (in memory, so that batches are small), the deletion of the batch itself
where others delete files, and the search for a batch without a tag. Adapters say how their batches look.

A provider that keeps no tag does not tell whose a batch is until there are results. So one that may be ours
(created since, of no more lines than ours) is waited for; then the ids in its results decide. Nothing is paid
twice, and jobs whose deadline comes first are rescued as ever.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any
from urllib.parse import quote

from proxy.core.document import Document, DocumentError
from proxy.core.json_values import decode
from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import (
    ApiLimits,
    BatchInput,
    FileRefused,
    NotFound,
    RemoteBatch,
    RemoteFile,
    Unavailable,
    Unsupported,
)
from proxy.upstream.providers.batch_objects import read_text
from proxy.upstream.providers.calls import JSON_TYPE, Calls, whole_input
from proxy.upstream.providers.client import Reply

MOST_BYTES = 32 * 1024 * 1024
"""Of the lines of one batch. Providers take more, but it is in memory while it is sent."""

_PAGES = 20
_SELF = "batch:"
# Clocks of several machines; a longer one would make strangers' batches candidates.
_SLACK_SECONDS = 120.0


class InlineBatches(ABC):
    """The part of `BatchApi` that needs no words of a provider; `batches_path` is where batches live."""

    takes_files = False
    batches_path = "/v1/batches"

    def __init__(self, calls: Calls, limits: ApiLimits) -> None:
        self.limits = limits
        self.calls = calls

    def line_url(self, endpoint: str) -> str | None:
        """See `BatchApi`: an element has neither `method` nor `url`."""
        return None

    async def upload(self, batch: BatchInput) -> str | None:
        """See `BatchApi`."""
        return None

    async def find_files(self, file_name: str) -> tuple[RemoteFile, ...]:
        """See `BatchApi`."""
        return ()

    @abstractmethod
    def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        """See `BatchApi`."""

    async def delete_file(self, file_id: str) -> None:
        """See `BatchApi`: deletes a batch with its requests and results."""
        batch_id = file_id.removeprefix(_SELF)
        try:
            checked(await self.calls.send("DELETE", self.path(batch_id)))
        except (NotFound, FileRefused, Unsupported):
            return

    def path(self, batch_id: str, rest: str = "") -> str:
        """Return the path of a batch."""
        return f"{self.batches_path}/{quote(batch_id, safe='')}{rest}"

    async def submit(self, batch: BatchInput, before: Mapping[str, Any]) -> Reply:
        """Create a batch: `before` are the members of the body before its `requests`, in their order."""
        lines = await whole_input(batch)
        requests = lines.rstrip(b"\n").replace(b"\n", b",")
        body = b'%b,"requests":[%b]}' % (json.dumps(before).encode()[:-1], requests)
        reply = await self.calls.send("POST", self.batches_path, headers=[JSON_TYPE], body=body)
        return checked(reply, whole_api=True)

    async def listed(self, cursor: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the batches that there are, as they are told of; `cursor` asks for the next page."""
        after: str | None = None
        for _ in range(_PAGES):
            query = "?limit=100" + ("" if after is None else f"&{cursor}={quote(after, safe='')}")
            try:
                reply = checked(await self.calls.send("GET", self.batches_path + query), whole_api=True)
            except Unsupported:
                return
            page = json_object(reply)
            for each in page.get("data") or ():
                if isinstance(each, dict):
                    yield each
            after = read_text(page.get("last_id"))
            if not page.get("has_more") or after is None:
                return

    async def find_untagged(
        self, listed: AsyncIterator[RemoteBatch], since: float, ids: Collection[str]
    ) -> tuple[RemoteBatch, ...]:
        """Return which of the batches have results of ours. Raises `Unavailable` while one may come to."""
        found: list[RemoteBatch] = []
        ours, is_undecided = frozenset(ids), False
        async for batch in listed:
            if batch.created is not None and batch.created < since - _SLACK_SECONDS:
                break  # newest first: the rest is older still
            if batch.total is not None and not 0 < batch.total <= len(ours):
                continue
            if not batch.state.is_final:
                is_undecided = True
            elif await self._is_ours(batch, ours):
                found.append(batch)
        if is_undecided and not found:
            raise Unavailable("a batch that may be ours is still at work")
        return tuple(sorted(found, key=lambda batch: batch.created or 0.0))

    async def _is_ours(self, batch: RemoteBatch, ours: frozenset[str]) -> bool:
        try:
            async for line in self.results(batch):
                value = decode(line)
                if isinstance(value, dict) and value.get("custom_id") in ours:
                    return True
        except (NotFound, FileRefused, Unsupported):
            pass
        return False


def raw_elements(reply: Reply, *names: str) -> tuple[bytes, ...]:
    """Return the elements of the first of these arrays that an answer has, as they are written."""
    try:
        document = Document.parse(reply.body)
    except DocumentError:
        value = json_object(reply)
        listed: list[Any] = next((value[name] for name in names if isinstance(value.get(name), list)), [])
        return tuple(json.dumps(each).encode() for each in listed)
    return next((each for name in names if (each := document.array(name)) is not None), ())


def itself(batch_id: str) -> str:
    """Return the name by which a batch is deleted where there is no file."""
    return f"{_SELF}{batch_id}"
