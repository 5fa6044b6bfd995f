"""Files and batches in an sqlite file of their own, beside the job store's: big writes hold up no acceptance.

Owns the order of what one step of the port writes; the statements are `sqlite_files`' and `sqlite_batches`',
the file and the thread that talks to it `proxy.jobs.local.sqlite_file`'s.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from proxy.batch_server.model import BatchLease, Progress, Recorded, ServedBatch, StoredFile
from proxy.batch_server.records import check_recorded
from proxy.batch_server.sqlite_batches import BatchTable
from proxy.batch_server.sqlite_files import FileTable
from proxy.batch_server.sqlite_schema import MIGRATIONS
from proxy.batch_server.store import Census, FileQuery
from proxy.core.clock import Clock, SystemClock
from proxy.jobs.local.sqlite_file import BUSY_SECONDS, SqliteFile
from proxy.jobs.sealing import PlainVault, Vault

_T = TypeVar("_T")

_MOST_TOGETHER = 32
"""Pieces of work in one transaction: each may write a chunk of a megabyte."""

_BATCHES_DROPPED = 8
"""In one transaction: each may have 50,000 lines."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """What a piece of work sees: the tables, and what time it is."""

    files: FileTable
    batches: BatchTable
    now: float


class SqliteBatchStore:
    """A `BatchStore` in a file, made with mode 0600 where it is missing. See `BatchStore` for every method.

    vault           what chunks go through
    max_file_bytes  the file does not outgrow it: `StoreUnavailable` instead; 0 is no limit
    """

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        *,
        vault: Vault | None = None,
        max_file_bytes: int = 0,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self._clock = clock or SystemClock()
        self._vault = vault or PlainVault()
        self._file = SqliteFile(
            path,
            "batch store",
            MIGRATIONS,
            busy_seconds=busy_seconds,
            max_file_bytes=max_file_bytes,
            most_together=_MOST_TOGETHER,
        )

    async def open(self) -> None:
        """See `BatchStore`."""
        await self._file.open()

    async def close(self) -> None:
        """See `BatchStore`."""
        await self._file.close()

    async def _work(self, piece: Callable[[_Tables], _T], *, is_reading: bool = False) -> _T:
        def work(connection: sqlite3.Connection) -> _T:
            files, batches = FileTable(connection, self._vault), BatchTable(connection)
            return piece(_Tables(files, batches, self._clock.wall()))

        return await self._file.do(work, is_reading=is_reading)

    async def _look(self, piece: Callable[[_Tables], _T]) -> _T:
        return await self._work(piece, is_reading=True)

    # ---- files

    async def create_file(self, file: StoredFile) -> None:
        """See `BatchStore`."""
        await self._work(lambda tables: tables.files.create(file))

    async def append_chunk(self, file_id: str, index: int, data: bytes) -> None:
        """See `BatchStore`."""
        await self._work(lambda tables: tables.files.append(file_id, index, data))

    async def complete_file(self, file: StoredFile) -> None:
        """See `BatchStore`."""
        await self._work(lambda tables: tables.files.complete(file))

    async def file(self, file_id: str) -> StoredFile | None:
        """See `BatchStore`."""
        return await self._look(lambda tables: tables.files.get(file_id, tables.now))

    async def list_files(self, query: FileQuery) -> tuple[StoredFile, ...] | None:
        """See `BatchStore`."""
        return await self._look(lambda tables: tables.files.page(query, tables.now))

    async def chunk(self, file_id: str, index: int) -> bytes | None:
        """See `BatchStore`."""
        return await self._look(lambda tables: tables.files.chunk(file_id, index))

    async def delete_file(self, file_id: str) -> bool:
        """See `BatchStore`."""
        was_there = await self._work(lambda tables: tables.files.doom_known(file_id))
        await self._sweep()
        return was_there

    async def _sweep(self) -> None:
        while await self._work(lambda tables: tables.files.sweep()):
            pass

    # ---- callers' batches

    async def create_batch(self, batch: ServedBatch) -> None:
        """See `BatchStore`."""
        await self._work(lambda tables: tables.batches.create(batch))

    async def batch(self, batch_id: str) -> ServedBatch | None:
        """See `BatchStore`."""
        return await self._look(lambda tables: tables.batches.get(batch_id))

    async def list_batches(self, owner: str, limit: int, after: str | None) -> tuple[ServedBatch, ...] | None:
        """See `BatchStore`."""
        return await self._look(lambda tables: tables.batches.page(owner, limit, after))

    async def ask_to_cancel(self, batch_id: str, now: float) -> ServedBatch:
        """See `BatchStore`."""
        return await self._work(lambda tables: tables.batches.ask_to_cancel(batch_id, now))

    # ---- workers

    async def claim(
        self, worker: str, lease_seconds: float, limit: int, *, only_ends: bool = False
    ) -> tuple[ServedBatch, ...]:
        """See `BatchStore`."""
        return await self._work(
            lambda tables: tables.batches.claim(
                worker, tables.now, tables.now + lease_seconds, limit, only_ends
            )
        )

    async def renew(self, lease: BatchLease, lease_seconds: float) -> BatchLease:
        """See `BatchStore`."""

        def prolong(tables: _Tables) -> BatchLease:
            longer = replace(lease, until=tables.now + lease_seconds)
            tables.batches.write(replace(tables.batches.held(lease), lease=longer), lease)
            return longer

        return await self._work(prolong)

    async def release(self, lease: BatchLease, due: float) -> None:
        """See `BatchStore`."""

        def give_back(tables: _Tables) -> None:
            batch = tables.batches.find_held(lease)
            if batch is not None:
                due_now = due if batch.is_live else batch.due
                tables.batches.write(replace(batch, due=due_now, lease=None), lease)

        await self._work(give_back)

    async def save(self, lease: BatchLease, progress: Progress) -> ServedBatch:
        """See `BatchStore`."""
        return await self._work(
            lambda tables: tables.batches.write(replace(tables.batches.held(lease), progress=progress), lease)
        )

    async def record(self, lease: BatchLease, recorded: Recorded) -> ServedBatch:
        """See `BatchStore`."""

        def add(tables: _Tables) -> ServedBatch:
            batch = tables.batches.held(lease)
            if tables.batches.has_lines(batch.id, recorded.lines):
                # Asked again after an answer that got lost.
                return batch
            before = batch.progress
            check_recorded(before, recorded)
            if recorded.output:
                tables.files.put_chunk(batch.output_file_id, before.output_chunks, recorded.output)
            if recorded.errors:
                tables.files.put_chunk(batch.error_file_id, before.error_chunks, recorded.errors)
            tables.batches.add_lines(batch.id, recorded.lines)
            return tables.batches.write(replace(batch, progress=recorded.progress), lease)

        return await self._work(add)

    async def recorded_lines(self, batch_id: str) -> Sequence[int]:
        """See `BatchStore`."""
        return await self._look(lambda tables: tables.batches.lines(batch_id))

    async def finish(
        self, lease: BatchLease, progress: Progress, files: Sequence[StoredFile], notice_due: float | None
    ) -> ServedBatch:
        """See `BatchStore`."""

        def end(tables: _Tables) -> ServedBatch:
            ended = tables.batches.ended_under(lease, progress)
            if ended is not None:
                return ended
            batch = tables.batches.held(lease)
            for file in files:
                tables.files.put_complete(file)
            changes = replace(batch, progress=progress, credential=None, notice_due=notice_due, lease=None)
            return tables.batches.write(changes, lease)

        return await self._work(end)

    async def noted(self, lease: BatchLease, notice_due: float | None) -> None:
        """See `BatchStore`."""

        def note(tables: _Tables) -> None:
            batch = tables.batches.held(lease)
            tries = batch.notice_tries + (notice_due is not None)
            tables.batches.write(replace(batch, notice_due=notice_due, notice_tries=tries, lease=None), lease)

        await self._work(note)

    # ---- figures

    async def census(self) -> Census:
        """See `BatchStore`."""
        return await self._look(lambda tables: tables.batches.census())

    async def purge(self, now: float, limit: int = 1000) -> int:
        """See `BatchStore`."""
        gone = await self._work(lambda tables: tables.files.doom_due(now, limit))
        while gone < limit:
            some = min(limit - gone, _BATCHES_DROPPED)
            dropped = await self._drop_batches(now, some)
            gone += dropped
            if dropped < some:
                break
        await self._sweep()
        return gone

    async def _drop_batches(self, now: float, limit: int) -> int:
        def drop(tables: _Tables) -> int:
            due = tables.batches.drop_due(now, limit)
            for batch in due:
                tables.files.doom(batch.output_file_id)
                tables.files.doom(batch.error_file_id)
            return len(due)

        return await self._work(drop)
