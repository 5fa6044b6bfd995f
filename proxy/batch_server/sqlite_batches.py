"""Batches with their leases in an sqlite file, used inside of a transaction and one thread.

A claim raises a batch's token; a write under an older token, or after the lease was given back, is refused.
A lease that has run out stands until somebody else claims: fencing protects, not clocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from proxy.batch_server.model import BatchLease, Progress, ServedBatch
from proxy.batch_server.records import decode_batch, encode, lost, waiting_lines
from proxy.batch_server.store import Census
from proxy.jobs.store import Conflict

_PUT = """
INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    status = excluded.status, waiting = excluded.waiting, wanted = excluded.wanted,
    lease_until = excluded.lease_until, token = excluded.token, purge_at = excluded.purge_at,
    document = excluded.document, ends = excluded.ends
"""
_DUE = "SELECT document, token FROM batches WHERE {0} <= ? AND lease_until <= ? ORDER BY {0}, id LIMIT ?"
_WANTED, _ENDS = _DUE.format("wanted"), _DUE.format("ends")


class BatchTable:
    """Batches over one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany

    def create(self, batch: ServedBatch) -> None:
        """See `BatchStore.create_batch`."""
        if self.get(batch.id) is None:
            self._put(batch, 0)

    def _put(self, batch: ServedBatch, token: int) -> ServedBatch:
        lease_until = 0.0 if batch.lease is None else batch.lease.until
        wanted = ends = batch.notice_due
        if batch.is_live:
            wanted, ends = batch.due, batch.expires if batch.cancelling_at is None else batch.cancelling_at
        columns = (
            *(batch.id, batch.owner, batch.created, batch.progress.status.value),
            *(waiting_lines(batch.progress), wanted, lease_until, token, batch.purge_at, encode(batch), ends),
        )
        self._run(_PUT, columns)
        return batch

    def _row(self, batch_id: str) -> tuple[ServedBatch, int] | None:
        row = self._run("SELECT document, token FROM batches WHERE id = ?", (batch_id,)).fetchone()
        return None if row is None else (decode_batch(row[0]), row[1])

    def get(self, batch_id: str) -> ServedBatch | None:
        """See `BatchStore.batch`."""
        row = self._row(batch_id)
        return None if row is None else row[0]

    def page(self, owner: str, limit: int, after: str | None) -> tuple[ServedBatch, ...] | None:
        """See `BatchStore.list_batches`."""
        beyond: tuple[object, ...] = ()
        if after is not None:
            statement = "SELECT created, id FROM batches WHERE id = ? AND owner = ?"
            beyond = self._run(statement, (after, owner)).fetchone()
            if beyond is None:
                return None
        statement = (
            f"SELECT document FROM batches WHERE owner = ? {'AND (created, id) < (?, ?)' if beyond else ''} "
            "ORDER BY created DESC, id DESC LIMIT ?"
        )
        return tuple(decode_batch(row[0]) for row in self._run(statement, (owner, *beyond, limit)))

    def ask_to_cancel(self, batch_id: str, now: float) -> ServedBatch:
        """See `BatchStore.ask_to_cancel`."""
        row = self._row(batch_id)
        if row is None:
            raise Conflict(f"there is no batch {batch_id}")
        batch, token = row
        if not batch.is_live:
            raise Conflict(f"the batch is {batch.progress.status.value}")
        if batch.cancelling_at is not None:
            return batch
        return self._put(replace(batch, cancelling_at=now, due=min(batch.due, now)), token)

    # ---- workers

    def claim(
        self, worker: str, now: float, until: float, limit: int, only_ends: bool
    ) -> tuple[ServedBatch, ...]:
        """See `BatchStore.claim`."""
        claimed = []
        statement = _ENDS if only_ends else _WANTED
        for document, token in self._run(statement, (now, now, limit)).fetchall():
            batch = decode_batch(document)
            lease = BatchLease(batch.id, worker, token + 1, until)
            claimed.append(self._put(replace(batch, lease=lease), token + 1))
        return tuple(claimed)

    def find_held(self, lease: BatchLease) -> ServedBatch | None:
        """Return the batch of a lease, `None` unless it is the last one and was not given back."""
        batch = self.get(lease.batch_id)
        last = None if batch is None else batch.lease
        if last is None or (last.token, last.worker) != (lease.token, lease.worker):
            return None
        return batch

    def held(self, lease: BatchLease) -> ServedBatch:
        """Return the batch of a lease. Raises `LeaseLost`."""
        batch = self.find_held(lease)
        if batch is None:
            raise lost(lease)
        return batch

    def write(self, batch: ServedBatch, lease: BatchLease) -> ServedBatch:
        """Write a batch whose lease was looked at; `batch.lease` says what becomes of it."""
        return self._put(batch, lease.token)

    def ended_under(self, lease: BatchLease, progress: Progress) -> ServedBatch | None:
        """Return the batch if it has ended with this progress under this lease."""
        row = self._row(lease.batch_id)
        if row is None or row[0].is_live or row[1] != lease.token or row[0].progress != progress:
            return None
        return row[0]

    # ---- lines

    def lines(self, batch_id: str) -> Sequence[int]:
        """See `BatchStore.recorded_lines`."""
        statement = "SELECT number FROM lines WHERE batch_id = ?"
        return tuple(row[0] for row in self._run(statement, (batch_id,)))

    def add_lines(self, batch_id: str, numbers: Sequence[int]) -> None:
        """Note that lines have their results."""
        rows = ((batch_id, number) for number in numbers)
        self._run_many("INSERT OR IGNORE INTO lines VALUES (?, ?)", rows)

    def has_lines(self, batch_id: str, numbers: Sequence[int]) -> bool:
        """Return whether all of them have their results, and there are any."""
        statement = "SELECT 1 FROM lines WHERE batch_id = ? AND number = ?"
        return bool(numbers) and all(
            self._run(statement, (batch_id, number)).fetchone() is not None for number in numbers
        )

    # ---- figures

    def census(self) -> Census:
        """See `BatchStore.census`."""
        found = self._run("SELECT status, count(*), sum(waiting) FROM batches GROUP BY status").fetchall()
        return Census({status: count for status, count, _ in found}, sum(waiting for _, _, waiting in found))

    def drop_due(self, now: float, limit: int) -> tuple[ServedBatch, ...]:
        """Delete batches whose time is over, with their lines, and return them: they name their files."""
        statement = "SELECT document FROM batches WHERE purge_at <= ? ORDER BY purge_at LIMIT ?"
        due = tuple(decode_batch(row[0]) for row in self._run(statement, (now, limit)).fetchall())
        for batch in due:
            self._run("DELETE FROM batches WHERE id = ?", (batch.id,))
            self._run("DELETE FROM lines WHERE batch_id = ?", (batch.id,))
        return due
