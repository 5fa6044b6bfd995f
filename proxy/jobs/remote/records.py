"""Jobs, batches, changes and moves as the texts that the scripts in `lua/` work on.

Owns the translation of the consequences of an event into fields to set and to drop; `local.progress` says the
same in values, and one set of contract tests holds both together.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.jobs.changes import BatchMove, JobChange
from proxy.jobs.model import NEVER, Batch, Group, Job, Lease, LeaseKind
from proxy.jobs.records import FACT_FIELDS, PROGRESS_FIELDS, encode
from proxy.jobs.transitions import (
    BATCH_TRANSITIONS,
    EMPTYING,
    ENDING,
    JOB_TRANSITIONS,
    LEAVING,
    BatchEvent,
    JobEvent,
)

Fields = dict[str, str | bytes]

_JSON_FIELDS = frozenset({"tiers", "error"})
_BATCH_FACTS = ("id", "group", "created", "parent_id", "is_borrowing")
_BATCH_PROGRESS = (
    *("state", "due", "job_count", "input_bytes", "input_tokens", "input_file_id", "output_file_id"),
    *("error_file_id", "provider_id", "ending", "submitted", "provider_expires", "credential", "attempts"),
    *("note", "updated", "purge_at"),
)
_MOVE_FIELDS = (
    *("due", "input_file_id", "output_file_id", "error_file_id", "provider_id", "ending", "submitted"),
    *("provider_expires", "input_bytes", "attempts", "note"),
)
_NUMBERS_AS_TEXT = msgspec.json.Decoder(Any)


def pool_name(group: Group) -> str:
    """Return the short name of a group's pool."""
    return hashlib.sha256(group.key.encode()).hexdigest()[:32]


def text(value: object) -> str | bytes:
    """Return a value as a field of a hash holds it."""
    match value:
        case bytes() | str():
            return value
        case float():
            return repr(value)
        case bool():
            return "1" if value else "0"
        case int():
            return str(value)
        case _:
            encoded = encode(value)
            # Enums are written as their bare value.
            return encoded[1:-1] if encoded.startswith(b'"') else encoded


def job_fields(job: Job) -> Fields:
    """Return the hash of a new job."""
    fields: Fields = {
        "facts": encode({name: getattr(job, name) for name in FACT_FIELDS}),
        "group": job.group.key,
        "pool": pool_name(job.group),
    }
    for name in ("attach_key", "owner", "created", "body_bytes", "input_tokens"):
        fields[name] = text(getattr(job, name))
    if job.webhook:
        fields["webhook"] = job.webhook
    for name in PROGRESS_FIELDS:
        value = getattr(job, name)
        if isinstance(value, bytes):
            # Through JSON, as a batch's goes: a script would not take other bytes.
            value = base64.b64encode(value)
        if value is not None and name != "lease":
            fields[name] = text(value)
    return fields


def job_from_hash(found: Mapping[bytes, bytes]) -> Job:
    """Return the job of a hash."""
    values = _NUMBERS_AS_TEXT.decode(found[b"facts"]) | _progress(found, PROGRESS_FIELDS)
    values["lease"] = _lease(found, LeaseKind.JOB, values["id"])
    return msgspec.convert(values, Job, strict=False, builtin_types=(bytes,))


def batch_texts(batch: Batch) -> dict[str, str]:
    """Return the fields of a new batch as they go through JSON, its credential included."""
    facts = encode({name: getattr(batch, name) for name in _BATCH_FACTS})
    fields = {"facts": facts.decode()}
    for name in _BATCH_PROGRESS:
        value = getattr(batch, name)
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        if value is not None:
            fields |= _texts({name: value})
    return fields


def batch_from_hash(found: Mapping[bytes, bytes]) -> Batch:
    """Return the batch of a hash."""
    values = _NUMBERS_AS_TEXT.decode(found[b"facts"]) | _progress(found, _BATCH_PROGRESS)
    values["lease"] = _lease(found, LeaseKind.BATCH, values["id"])
    return msgspec.convert(values, Batch, strict=False, builtin_types=(bytes,))


def _progress(found: Mapping[bytes, bytes], names: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in names:
        raw = found.get(name.encode())
        if raw is None or name == "lease":
            continue
        if name == "credential":
            values[name] = base64.b64decode(raw)
        elif name in _JSON_FIELDS:
            values[name] = _NUMBERS_AS_TEXT.decode(raw)
        else:
            values[name] = raw.decode()
    return values


def _lease(found: Mapping[bytes, bytes], kind: LeaseKind, subject: str) -> Lease | None:
    token = found.get(b"token")
    if token is None:
        return None
    return Lease(kind, subject, found[b"worker"].decode(), int(token), float(found[b"until"]))


def lease_fields(lease: Lease) -> dict[str, str]:
    """Return a lease as scripts compare it."""
    return {"id": lease.subject, "token": str(lease.token), "worker": lease.worker}


def change_request(
    change: JobChange, now: float, retention_seconds: float, answer_key: str | None = None
) -> dict[str, Any]:
    """Return a change as `move_job` of prelude.lua takes it."""
    event = change.event
    moves = JOB_TRANSITIONS[event]
    request: dict[str, Any] = {
        "ids": change.job_ids,
        "targets": {source.value: target.value for source, target in moves.items()},
        "tries": event is JobEvent.SUBMIT,
        "is_leaving": event in LEAVING,
        "is_ending": event in ENDING,
    }
    values: dict[str, object | None] = {
        "updated": now,
        "tier": change.tier,
        "tiers": change.tiers,
        "due": change.due,
        "ready": change.ready,
        "provider_id": change.provider_id,
        "error": change.error,
    }
    drop: list[str] = []
    if event is JobEvent.BEGIN_RESCUE:
        values["rescue_begun"] = now
    if event in LEAVING:
        drop.append("batch_id")
    if event in (JobEvent.RETURN, JobEvent.RETRY) and change.provider_id is None:
        drop.append("provider_id")
    if event in ENDING:
        drop += ["credential", *(name for name in ("error",) if change.error is None)]
        (ending,) = set(moves.values())
        values |= {
            "due": NEVER,
            "ended": now,
            "ended_as": ending,
            "purge_at": now + retention_seconds,
            "answer_source": None if change.answer is None else change.answer.source,
            "answer_key": answer_key,
            "until": "0",
        }
    if change.answer is not None:
        request["answer_source"] = change.answer.source
    if change.booking is not None:
        request["booking"] = [change.booking.key, encode(change.booking).decode()]
    return request | {"set": _texts(values), "drop": drop}


def move_request(move: BatchMove, now: float, retention_seconds: float) -> dict[str, Any]:
    """Return a move as `write_batch` of prelude.lua takes it."""
    moves = BATCH_TRANSITIONS[move.event]
    values: dict[str, object | None] = {name: getattr(move, name) for name in _MOVE_FIELDS}
    values["updated"] = now
    targets = set(moves.values())
    if len(targets) == 1:
        values["state"] = targets.pop()
    is_clean = move.event is BatchEvent.CLEAN
    if is_clean:
        values |= {"due": NEVER, "purge_at": now + retention_seconds}
    if is_clean or move.due is not None:
        values["until"] = "0"
    return {
        "sources": {source.value: True for source in moves},
        "empties": move.event in EMPTYING,
        "set": _texts(values),
        "drop": ["credential"] if is_clean else [],
    }


def reset_request(change: JobChange, now: float, deadline: float, purge_at: float) -> dict[str, Any]:
    """Return the change of a job that is tried again."""
    request = change_request(change, now, 0.0)
    request["set"] |= _texts({"deadline": deadline, "wanted": NEVER, "purge_at": purge_at})
    request["drop"] = [
        *("ended", "ended_as", "error", "answer_source", "answer_key", "provider_id", "rescue_begun"),
        *("notice_due", "notice_tries", "notice_note"),
    ]
    return request


def _texts(values: Mapping[str, object | None]) -> dict[str, str]:
    found = {name: text(value) for name, value in values.items() if value is not None}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}
