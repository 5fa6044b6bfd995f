"""A batch as servers of OpenAI's shape show it, read with the tolerance that they need.

Owns states in any case, dates as numbers or ISO text, counts that are null, metadata that is none. Refuses
nothing but a batch without an id. Sources: `openai` 3.57.0 types/batch.py, Azure's guide to batches,
`together` 3.1.1 types/batch_job.py, `groq` 1.7.0 types/batch_retrieve_response.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from proxy.core.json_values import decode
from proxy.upstream.providers.batch_api import BatchApiError, LineProblem, RemoteBatch, RemoteState

TAG_KEY = "weir_batch"
"""The key in the provider's metadata under which our batch's id stands."""

_STATES: Mapping[str, RemoteState] = {
    "cancelling": RemoteState.CANCELLING,
    "cancellation_requested": RemoteState.CANCELLING,
    "completed": RemoteState.COMPLETED,
    "failed": RemoteState.FAILED,
    "expired": RemoteState.EXPIRED,
    "cancelled": RemoteState.CANCELLED,
    "canceled": RemoteState.CANCELLED,
}


def read_batch(value: Mapping[str, Any]) -> RemoteBatch:
    """Return a batch object of OpenAI's shape. Raises `BatchApiError` for one without an id."""
    counts = value.get("request_counts")
    count = counts.get if isinstance(counts, dict) else {}.get
    return RemoteBatch(
        id=read_id(value),
        state=_STATES.get(str(value.get("status")).lower(), RemoteState.RUNNING),
        tag=read_tag(value),
        input_file_id=read_text(value.get("input_file_id")),
        output_file_id=read_text(value.get("output_file_id")),
        error_file_id=read_text(value.get("error_file_id")),
        created=read_time(value.get("created_at")),
        expires=read_time(value.get("expires_at")),
        total=read_count(count("total")),
        completed=read_count(count("completed")),
        failed=read_count(count("failed")),
        problems=tuple(_problems(value.get("errors"))),
    )


def read_id(value: Mapping[str, Any]) -> str:
    """Return the id of a batch or a file. Raises `BatchApiError` where it has none."""
    found = value.get("id")
    if not isinstance(found, str) or not found:
        raise BatchApiError("what the provider made has no id")
    return found


def read_tag(value: Mapping[str, Any]) -> str | None:
    """Return our batch's id from the metadata of the provider's."""
    metadata = value.get("metadata")
    return read_text(metadata.get(TAG_KEY)) if isinstance(metadata, dict) else None


def _problems(errors: object) -> Iterator[LineProblem]:
    data = errors.get("data") if isinstance(errors, dict) else errors
    for each in data if isinstance(data, list) else ():
        if isinstance(each, dict):
            code = str(each.get("code") or "invalid_request").lower()
            yield LineProblem(code, str(each.get("message") or ""), read_count(each.get("line")))


def read_text(value: object) -> str | None:
    """Return text that is not empty."""
    return value if isinstance(value, str) and value else None


def read_count(value: object) -> int | None:
    """Return a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_time(value: object) -> float | None:
    """Return seconds since the epoch from a number, a number as text, or ISO 8601 with its zone."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            number = decode(value.encode(errors="replace"))
            return float(number) if isinstance(number, int | float) else None
        return moment.timestamp() if moment.tzinfo is not None else None
    return None
