"""Files and batches as the texts that the scripts in `lua/` work on, and the names of these scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from proxy.batch_server.model import BatchLease, Progress, ServedBatch, StoredFile
from proxy.batch_server.records import decode_batch, encode, waiting_lines
from proxy.jobs.remote.client import ScriptSet

BATCH_SCRIPTS = ScriptSet(
    "proxy.batch_server",
    "batch store",
    ("append", "begin", "cancel", "claim", "complete", "create", "delete", "finish", "lease", "list", "save"),
)

Hash = Mapping[bytes, bytes]
"""A hash as the client returns it."""

_PROGRESS = msgspec.json.Decoder(Progress)
_BITS = 8


def batch_fields(batch: ServedBatch) -> list[str | bytes]:
    """Return the hash of a new batch, field and text one after the other."""
    facts = replace(
        batch,
        credential=None,
        progress=Progress(),
        cancelling_at=None,
        due=0.0,
        notice_due=None,
        notice_tries=0,
        lease=None,
    )
    fields: dict[str, str | bytes] = {
        "facts": encode(facts),
        "owner": batch.owner,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "expires": repr(batch.expires),
        "purge_at": repr(batch.purge_at),
        "progress": encode(batch.progress),
        "status": batch.progress.status.value,
        "waiting": str(waiting_lines(batch.progress)),
        "due": repr(batch.due),
        "notice_due": moment(batch.notice_due),
        "notice_tries": str(batch.notice_tries),
        "until": "0",
    }
    if batch.cancelling_at is not None:
        fields["cancelling_at"] = repr(batch.cancelling_at)
    if batch.credential is not None:
        fields["credential"] = batch.credential
    return [part for pair in fields.items() for part in pair]


def moment(seconds: float | None) -> str:
    """Return a time as scripts take it, empty for never."""
    return "" if seconds is None else repr(seconds)


def batch_from_hash(found: Hash) -> ServedBatch:
    """Return the batch of a hash."""
    facts = decode_batch(found[b"facts"])
    notice_due = found[b"notice_due"]
    return replace(
        facts,
        credential=found.get(b"credential"),
        progress=_PROGRESS.decode(found[b"progress"]),
        cancelling_at=float(found[b"cancelling_at"]) if b"cancelling_at" in found else None,
        due=float(found[b"due"]),
        notice_due=float(notice_due) if notice_due else None,
        notice_tries=int(found[b"notice_tries"]),
        lease=_lease(found, facts.id),
    )


def _lease(found: Hash, batch_id: str) -> BatchLease | None:
    until = float(found[b"until"])
    if not until:
        return None
    return BatchLease(batch_id, found[b"worker"].decode(), int(found[b"token"]), until)


def as_hash(flat: Sequence[bytes]) -> Hash:
    """Return the hash of a script's answer."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def holder(lease: BatchLease) -> tuple[str, str, str]:
    """Return a lease as scripts compare it."""
    return lease.batch_id, str(lease.token), lease.worker


def progress_arguments(progress: Progress) -> tuple[bytes, str, str]:
    """Return a progress as `save` takes it."""
    return encode(progress), progress.status.value, str(waiting_lines(progress))


def file_arguments(file: StoredFile) -> tuple[str | bytes, ...]:
    """Return a complete file as `complete` and `finish` take it."""
    whole = replace(file, is_complete=True)
    return (
        *(file.id, file.owner, file.purpose.value, repr(file.created), repr(file.expires)),
        encode(whole),
    )


def numbers_of(bitmap: bytes | None) -> tuple[int, ...]:
    """Return the numbers of the bits that are set, the first bit of a byte being its highest."""
    return tuple(
        place * _BITS + bit
        for place, byte in enumerate(bitmap or b"")
        if byte
        for bit in range(_BITS)
        if byte & (0x80 >> bit)
    )


def has_all(bitmap: bytes | None, numbers: Sequence[int]) -> bool:
    """Return whether all of these bits are set, and there are any."""
    bits = bitmap or b""
    return bool(numbers) and all(
        number // _BITS < len(bits) and bits[number // _BITS] & (0x80 >> number % _BITS) for number in numbers
    )
