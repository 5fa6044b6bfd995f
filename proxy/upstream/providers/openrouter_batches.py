"""OpenRouter's batches: requests inline, behind the path and the model that they are for.

Owns the order of the keys (the body is read as it streams in: `requests` first is a 400), results in pages or
within the batch, and a search without tags. Nothing takes a batch back once it runs; asking is no harm.
Sources: OpenRouter's batch quickstart and its API reference (`GET /batches`, `GET /batches/{id}/results`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import (
    ApiLimits,
    BatchInput,
    NotFound,
    RemoteBatch,
    RemoteState,
    Unsupported,
)
from proxy.upstream.providers.batch_objects import read_batch
from proxy.upstream.providers.calls import Calls
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.inline_batches import MOST_BYTES, InlineBatches, itself, raw_elements

LIMITS = ApiLimits(jobs=10_000, bytes=MOST_BYTES)
"""OpenRouter names none; what it cannot take it refuses, and the batch is halved."""

_RESULT_PAGES = 10_000


class OpenRouterBatches(InlineBatches):
    """`BatchApi` over OpenRouter."""

    def __init__(self, client: ProviderClient, credential: Fields = (), limits: ApiLimits = LIMITS) -> None:
        super().__init__(Calls(client, credential), limits)

    async def create(self, batch: BatchInput, file_id: str | None) -> RemoteBatch:
        """See `BatchApi`."""
        wanted = {"endpoint": batch.endpoint, "model": batch.model, "completion_window": "24h"}
        return _batch(_unwrapped(json_object(await self.submit(batch, wanted))))

    async def find(
        self, tag: str, file_id: str | None, since: float, ids: Collection[str] = ()
    ) -> tuple[RemoteBatch, ...]:
        """See `BatchApi`: by the ids in the results."""
        listed = (_batch(each) async for each in self.listed("after"))
        return await self.find_untagged(listed, since, ids)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """See `BatchApi`."""
        reply = checked(await self.calls.send("GET", self.path(batch_id)))
        return _batch(_unwrapped(json_object(reply)))

    async def cancel(self, batch_id: str) -> None:
        """Ask; where there is no such request the batch runs to its end."""
        reply = await self.calls.send("POST", self.path(batch_id, "/cancel"))
        if reply.status not in (400, 404, 405, 409, 501):
            checked(reply)

    async def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        """See `BatchApi`: page by page, or from the batch itself where there are no pages."""
        cursor = ""
        for _ in range(_RESULT_PAGES):
            path = self.path(batch.id, "/results" + (f"?cursor={quote(cursor, safe='')}" if cursor else ""))
            try:
                page = checked(await self.calls.send("GET", path), whole_api=True)
            except (NotFound, Unsupported):
                if cursor:
                    raise
                page = checked(await self.calls.send("GET", self.path(batch.id)))
            for each in raw_elements(page, "data", "results"):
                yield each
            cursor = str(json_object(page).get("next_cursor") or "")
            if not cursor:
                return


def _batch(value: Mapping[str, Any]) -> RemoteBatch:
    batch = read_batch(value)
    state = batch.state
    if state is RemoteState.FAILED and batch.completed:
        state = RemoteState.COMPLETED  # not refused as a whole: what was done is paid
    # What it keeps of requests and results goes with the batch.
    return replace(
        batch, state=state, input_file_id=itself(batch.id), output_file_id=None, error_file_id=None
    )


def _unwrapped(value: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = value.get("data")
    return inner if isinstance(inner, dict) and "id" not in value else value
