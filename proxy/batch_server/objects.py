"""Files and batches as callers see them: OpenAI's JSON objects. Pure.

Shapes: `openai` 3.57 types/file_object.py, file_deleted.py, batch.py, batch_error.py, batch_usage.py. Every
field of theirs is there, null where there is nothing to say; times are whole seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.batch_server.model import (
    BatchStatus,
    LineProblem,
    Progress,
    ServedBatch,
    StoredFile,
    TokenSums,
)

_CANCELLING = "cancelling"


def file_object(file: StoredFile) -> dict[str, Any]:
    """Return a file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created),
        "expires_at": int(file.expires),
        "filename": file.filename,
        "purpose": file.purpose.value,
        "status": "processed",
        "status_details": None,
    }


def deleted_file(file_id: str) -> dict[str, Any]:
    """Return what the deletion of a file is answered with."""
    return {"id": file_id, "object": "file", "deleted": True}


def list_page(objects: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """Return a page of a list."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }


def shown_status(batch: ServedBatch) -> str:
    """Return the status that callers see: a live batch that is to end is `cancelling`."""
    if batch.is_live and batch.cancelling_at is not None:
        return _CANCELLING
    return batch.progress.status.value


def batch_object(batch: ServedBatch) -> dict[str, Any]:
    """Return a batch. Its result files show once it has ended, as far as they have content."""
    progress = batch.progress
    has_ended = not batch.is_live
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": progress.model or None,
        "errors": _errors(progress.problems),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.window,
        "status": shown_status(batch),
        "output_file_id": batch.output_file_id if has_ended and progress.output_bytes else None,
        "error_file_id": batch.error_file_id if has_ended and progress.error_bytes else None,
        "created_at": int(batch.created),
        "in_progress_at": _seconds(progress.in_progress_at),
        "expires_at": int(batch.expires),
        "finalizing_at": _seconds(progress.finalizing_at),
        "completed_at": _ended_at(batch, BatchStatus.COMPLETED),
        "failed_at": _ended_at(batch, BatchStatus.FAILED),
        "expired_at": _ended_at(batch, BatchStatus.EXPIRED),
        "cancelling_at": _seconds(batch.cancelling_at),
        "cancelled_at": _ended_at(batch, BatchStatus.CANCELLED),
        "request_counts": {
            "total": progress.total,
            "completed": progress.completed,
            "failed": progress.failed,
        },
        "usage": _usage(progress.tokens),
        "metadata": None if batch.metadata is None else dict(batch.metadata),
    }


def _errors(problems: Sequence[LineProblem]) -> dict[str, Any] | None:
    if not problems:
        return None
    data = [
        {"code": each.code, "message": each.message, "line": each.line, "param": each.param}
        for each in problems
    ]
    return {"object": "list", "data": data}


def _usage(tokens: TokenSums) -> dict[str, Any]:
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.input + tokens.output,
    }


def _ended_at(batch: ServedBatch, status: BatchStatus) -> int | None:
    return _seconds(batch.progress.ended_at) if batch.progress.status is status else None


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def told(progress: Progress) -> str:
    """Return for the log what came of a batch's lines, or what is wrong with its input.

    The message about a line is left out: it repeats what the caller wrote there.
    """
    if not progress.problems:
        return (
            f"{progress.completed} of {progress.total} lines completed, {progress.failed} in the error file"
        )
    first = progress.problems[0]
    more = len(progress.problems) - 1
    where = first.message.rstrip(".") if first.line is None else f"line {first.line}"
    return f"{first.code} ({where})" + (f" and {more} more" if more else "")
