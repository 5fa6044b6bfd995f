"""What a batch's commit and split say to the scripts, and what the scripts refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.jobs.changes import BatchMove, JobChange
from proxy.jobs.model import Batch, BatchState, Lease
from proxy.jobs.remote.records import batch_texts, change_request, lease_fields, move_request, pool_name
from proxy.jobs.store import Conflict, LeaseLost
from proxy.jobs.transitions import BatchEvent, JobEvent


def moving_request(
    lease: Lease,
    move: BatchMove | None,
    changes: Sequence[JobChange],
    answer_keys: Mapping[str, str],
    now: float,
    retention_seconds: float,
) -> dict[str, Any]:
    """Return what move.lua takes for a batch."""
    request: dict[str, Any] = {
        "batch_lease": lease_fields(lease),
        "changes": [
            change_request(change, now, retention_seconds, answer_keys.get(change.job_ids[0]))
            for change in changes
        ],
    }
    if move is not None:
        request["batch"] = move_request(move, now, retention_seconds)
    return request


def pack_request(batch: Batch, worker: str, lease_seconds: float, now: float) -> dict[str, Any]:
    """Return what pack.lua takes, without the ids."""
    lease = {"token": "1", "worker": worker, "until": repr(now + lease_seconds)}
    return {
        "id": batch.id,
        "pool": pool_name(batch.group),
        "now": repr(now),
        "worker": worker,
        "set": batch_texts(replace(batch, updated=now)) | lease,
        "pack": change_request(JobChange(JobEvent.PACK, ()), now, 0.0),
    }


def split_request(
    lease: Lease, parts: Sequence[tuple[Batch, Sequence[str]]], now: float, retention_seconds: float
) -> dict[str, Any]:
    """Return what split.lua takes."""
    refuse = move_request(BatchMove(BatchEvent.REFUSE, due=now), now, retention_seconds)
    return {
        "lease": lease_fields(lease),
        "sources": refuse["sources"],
        "refuse": refuse["set"],
        "back": change_request(JobChange(JobEvent.RETURN, ()), now, retention_seconds),
        "pack": change_request(JobChange(JobEvent.PACK, ()), now, retention_seconds),
        "parts": [
            {
                "id": part.id,
                "set": batch_texts(replace(part, parent_id=lease.subject, updated=now)),
                "ids": list(job_ids),
            }
            for part, job_ids in parts
        ],
    }


def raise_refusal(status: bytes, rest: Sequence[bytes], lease: Lease | None) -> None:
    """Raise what a script answers instead of `ok`."""
    subject = "" if lease is None else f"the {lease.kind.value} {lease.subject}"
    if status == b"gone":
        raise Conflict(f"{subject} is gone")
    if status == b"lost":
        raise LeaseLost(f"{subject} belongs to somebody else by now")
    if status in (b"state", b"holds"):
        state = BatchState(rest[0].decode())
        raise Conflict(
            f"{subject} is {state.value}" if status == b"state" else f"{subject} holds jobs", state
        )
