"""Files and batches as text for stores. What is read was written here.

Owns the formats and what a store derives from a record to find it again; a store adds keys and indexes.
"""

from __future__ import annotations

import msgspec

from proxy.batch_server.model import LIVE_STATUSES, BatchLease, Progress, Recorded, ServedBatch, StoredFile
from proxy.jobs.store import LeaseLost

INCOMPLETE_SECONDS = 3600.0
"""How long a file may stay without its completion."""

_ENCODER = msgspec.json.Encoder()
_FILE = msgspec.json.Decoder(StoredFile)
_BATCH = msgspec.json.Decoder(ServedBatch)


def encode(value: object) -> bytes:
    """Return any value of the model as JSON."""
    return _ENCODER.encode(value)


def decode_file(text: bytes) -> StoredFile:
    """Return the file of a JSON text."""
    return _FILE.decode(text)


def decode_batch(text: bytes) -> ServedBatch:
    """Return the batch of a JSON text."""
    return _BATCH.decode(text)


def chunk_context(file_id: str, index: int) -> str:
    """Return what a sealed chunk is bound to."""
    return f"{file_id}:{index}"


def file_gone_at(file: StoredFile) -> float:
    """Return when `purge` deletes a file."""
    if file.is_complete:
        return file.expires
    return min(file.expires, file.created + INCOMPLETE_SECONDS)


def waiting_lines(progress: Progress) -> int:
    """Return how many lines wait for their results."""
    if progress.status not in LIVE_STATUSES:
        return 0
    return max(0, progress.total - progress.completed - progress.failed)


def check_recorded(before: Progress, recorded: Recorded) -> None:
    """Raise `ValueError` unless the progress counts what is added: a file could not be read back."""
    after = recorded.progress
    added_output = (after.output_chunks - before.output_chunks, after.output_bytes - before.output_bytes)
    added_errors = (after.error_chunks - before.error_chunks, after.error_bytes - before.error_bytes)
    for data, (chunks, size) in ((recorded.output, added_output), (recorded.errors, added_errors)):
        if chunks != bool(data) or size != len(data):
            raise ValueError(
                f"{len(data)} bytes make {int(bool(data))} chunk, the progress adds {chunks} of {size} bytes"
            )


def lost(lease: BatchLease) -> LeaseLost:
    """Return what to say to whoever writes under a lease that is not the last one any more."""
    return LeaseLost(f"the batch {lease.batch_id} belongs to somebody else by now")
