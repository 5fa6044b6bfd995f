"""The port to wherever files and batches are kept. Its errors are those of `jobs.store`.

Every method is one atomic step, durable when it returns; each may be repeated after `StoreUnavailable`.
A store decides nothing. Chunks go through a vault (`jobs.sealing`), as bodies of jobs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.batch_server.model import BatchLease, FilePurpose, Progress, Recorded, ServedBatch, StoredFile


@dataclass(frozen=True, slots=True)
class FileQuery:
    """Which complete files to list: of one owner, from `after` (an id of theirs) on, newest first or last."""

    owner: str
    purpose: FilePurpose | None = None
    limit: int = 10_000
    after: str | None = None
    is_newest_first: bool = True


@dataclass(frozen=True, slots=True)
class Census:
    """How many batches there are by status (`BatchStatus.value`), and how many lines of live ones wait."""

    batches: dict[str, int]
    waiting_lines: int


class BatchStore(Protocol):
    """Files and batches. All may raise `StoreUnavailable`."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        ...

    async def close(self) -> None:
        """Let go of connections, files and threads."""
        ...

    # ---- files

    async def create_file(self, file: StoredFile) -> None:
        """Begin a file that is not complete; after an hour without its completion `purge` deletes it."""
        ...

    async def append_chunk(self, file_id: str, index: int, data: bytes) -> None:
        """Keep a chunk of a file that was begun; again with the same index replaces it.

        Raises `Conflict` for a file that is complete or gone.
        """
        ...

    async def complete_file(self, file: StoredFile) -> None:
        """Let callers see the file, as `file` describes it. Raises `Conflict` for one that is gone."""
        ...

    async def file(self, file_id: str) -> StoredFile | None:
        """Return a complete file that has not expired."""
        ...

    async def list_files(self, query: FileQuery) -> tuple[StoredFile, ...] | None:
        """Return files; `None` for an `after` that is no file of the owner's."""
        ...

    async def chunk(self, file_id: str, index: int) -> bytes | None:
        """Return a chunk, `None` where there is none. Raises `SealError` for one that does not open."""
        ...

    async def delete_file(self, file_id: str) -> bool:
        """Erase a file with its chunks; False: there was none."""
        ...

    # ---- callers' batches

    async def create_batch(self, batch: ServedBatch) -> None:
        """Keep a new batch; again is no harm."""
        ...

    async def batch(self, batch_id: str) -> ServedBatch | None:
        """Return a batch."""
        ...

    async def list_batches(self, owner: str, limit: int, after: str | None) -> tuple[ServedBatch, ...] | None:
        """Return an owner's batches, newest first; `None` for an `after` that is no batch of theirs."""
        ...

    async def ask_to_cancel(self, batch_id: str, now: float) -> ServedBatch:
        """Set `cancelling_at` of a live batch, once, and make it due; return it.

        Raises `Conflict` for one that has ended or is gone.
        """
        ...

    # ---- workers

    async def claim(
        self, worker: str, lease_seconds: float, limit: int, *, only_ends: bool = False
    ) -> tuple[ServedBatch, ...]:
        """Lease batches that are due, or whose notice is due, and that nobody works on; longest due first.

        `only_ends`: those alone that have ended, were cancelled, or whose window is over: ends come beside
        long work.
        """
        ...

    async def renew(self, lease: BatchLease, lease_seconds: float) -> BatchLease:
        """Prolong a lease. Raises `LeaseLost`."""
        ...

    async def release(self, lease: BatchLease, due: float) -> None:
        """Give a lease back; a live batch is due at `due`. A lost lease is no error here."""
        ...

    async def save(self, lease: BatchLease, progress: Progress) -> ServedBatch:
        """Write the progress and return the batch, with its caller's wishes. Raises `LeaseLost`."""
        ...

    async def record(self, lease: BatchLease, recorded: Recorded) -> ServedBatch:
        """Add results in one step: chunks (numbered by the progress before), line numbers, progress.

        What is added to a file is one chunk of it. Lines that are all recorded already are no harm: nothing
        is written then. Raises `LeaseLost`, with nothing written, and `ValueError` for a progress that does
        not count these chunks and bytes.
        """
        ...

    async def recorded_lines(self, batch_id: str) -> Sequence[int]:
        """Return the numbers of the lines that have their results, in any order."""
        ...

    async def finish(
        self, lease: BatchLease, progress: Progress, files: Sequence[StoredFile], notice_due: float | None
    ) -> ServedBatch:
        """End the batch: write the progress, show its result files, erase the credential, drop the lease.

        Raises `LeaseLost`.
        """
        ...

    async def noted(self, lease: BatchLease, notice_due: float | None) -> None:
        """Note that a notice was told (`None`), or count a failure and when to try again; drop the lease.

        Raises `LeaseLost`.
        """
        ...

    # ---- figures

    async def census(self) -> Census:
        """Count batches."""
        ...

    async def purge(self, now: float, limit: int = 1000) -> int:
        """Delete files and batches whose time is over and return how many: below `limit`, all of them."""
        ...
