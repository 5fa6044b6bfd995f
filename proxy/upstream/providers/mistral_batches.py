"""Mistral's batch jobs: lines without method and address, model and window on the job, states of its own.

Owns those words. Requests go inline (10,000 at most); results come as files or, where it makes none, inline.
Source: `mistralai` 3.7.0 createbatchjobrequest.py, batchjob.py, batchjobstatus.py, batcherror.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from math import ceil
from typing import Any
from urllib.parse import quote

from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import (
    ApiLimits,
    BatchInput,
    LineProblem,
    RemoteBatch,
    RemoteState,
    Unsupported,
)
from proxy.upstream.providers.batch_objects import (
    TAG_KEY,
    read_count,
    read_id,
    read_tag,
    read_text,
    read_time,
)
from proxy.upstream.providers.calls import Calls
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.inline_batches import MOST_BYTES, InlineBatches, itself, raw_elements

LIMITS = ApiLimits(jobs=10_000, bytes=MOST_BYTES)

_STATES: Mapping[str, RemoteState] = {
    "SUCCESS": RemoteState.COMPLETED,
    "FAILED": RemoteState.FAILED,
    "TIMEOUT_EXCEEDED": RemoteState.EXPIRED,
    "CANCELLATION_REQUESTED": RemoteState.CANCELLING,
    "CANCELLED": RemoteState.CANCELLED,
}
_MOST_HOURS = 168
_PAGES = 20
_PAGE_SIZE = 100
_SLACK_SECONDS = 3600.0


class MistralBatches(InlineBatches):
    """`BatchApi` over Mistral."""

    batches_path = "/v1/batch/jobs"

    def __init__(self, client: ProviderClient, credential: Fields = (), limits: ApiLimits = LIMITS) -> None:
        super().__init__(Calls(client, credential), limits)

    async def create(self, batch: BatchInput, file_id: str | None) -> RemoteBatch:
        """See `BatchApi`."""
        hours = min(_MOST_HOURS, max(1, ceil(batch.wait_seconds / 3600)))
        wanted = {
            "endpoint": batch.endpoint,
            "model": batch.model,
            "metadata": {TAG_KEY: batch.tag},
            "timeout_hours": hours,
        }
        return _batch(json_object(await self.submit(batch, wanted)))

    async def find(
        self, tag: str, file_id: str | None, since: float, ids: Collection[str] = ()
    ) -> tuple[RemoteBatch, ...]:
        """See `BatchApi`: by the tag in the metadata."""
        found: list[RemoteBatch] = []
        for page in range(_PAGES):
            path = f"{self.batches_path}?page={page}&page_size={_PAGE_SIZE}&order_by=-created"
            try:
                listed = json_object(checked(await self.calls.send("GET", path), whole_api=True))
            except Unsupported:
                break
            batches = [_batch(each) for each in listed.get("data") or () if isinstance(each, dict)]
            found += [batch for batch in batches if batch.tag == tag]
            oldest = batches[-1].created if batches else None
            if len(batches) < _PAGE_SIZE or (oldest is not None and oldest < since - _SLACK_SECONDS):
                break
        return tuple(sorted(found, key=lambda batch: batch.created or 0.0))

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """See `BatchApi`."""
        return _batch(json_object(checked(await self.calls.send("GET", self.path(batch_id)))))

    async def cancel(self, batch_id: str) -> None:
        """See `BatchApi`."""
        reply = await self.calls.send("POST", self.path(batch_id, "/cancel"))
        if reply.status not in (400, 409, 422):  # it has ended meanwhile
            checked(reply)

    async def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        """See `BatchApi`. A line that has no file of its own stands in the job itself."""
        files = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id]
        for file_id in files:
            async for line in self.calls.lines(f"/v1/files/{quote(file_id, safe='')}/content"):
                yield line
        if not files:
            reply = checked(await self.calls.send("GET", self.path(batch.id, "?inline=true")))
            for each in raw_elements(reply, "outputs"):
                yield each

    async def delete_file(self, file_id: str) -> None:
        """See `BatchApi`: files of results as files, requests with their job."""
        if file_id.startswith(itself("")):
            await super().delete_file(file_id)
            return
        reply = await self.calls.send("DELETE", f"/v1/files/{quote(file_id, safe='')}")
        if not 400 <= reply.status < 500 or reply.status in (401, 403, 408, 409, 429):
            checked(reply)


def _batch(value: Mapping[str, Any]) -> RemoteBatch:
    batch_id = read_id(value)
    state = _STATES.get(str(value.get("status")).upper(), RemoteState.RUNNING)
    if state is RemoteState.FAILED and read_count(value.get("succeeded_requests")):
        state = RemoteState.COMPLETED  # not refused as a whole: what was done is paid
    return RemoteBatch(
        id=batch_id,
        state=state,
        tag=read_tag(value),
        input_file_id=itself(batch_id),
        output_file_id=read_text(value.get("output_file")),
        error_file_id=read_text(value.get("error_file")),
        created=read_time(value.get("created_at")),
        total=read_count(value.get("total_requests")),
        completed=read_count(value.get("succeeded_requests")),
        failed=read_count(value.get("failed_requests")),
        problems=_problems(value.get("errors")),
    )


def _problems(errors: object) -> tuple[LineProblem, ...]:
    """Return what is said about the job: sentences without a code."""
    listed = errors if isinstance(errors, list) else []
    messages = [each.get("message") for each in listed if isinstance(each, dict)]
    return tuple(LineProblem(_code(told), told) for told in messages if isinstance(told, str))


def _code(message: str) -> str:
    words = message.lower()
    return "quota_exceeded" if "quota" in words or "limit exceeded" in words else "failed"
