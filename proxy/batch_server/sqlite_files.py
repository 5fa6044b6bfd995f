"""Files and their chunks in an sqlite file, used inside of a transaction and one thread.

A file is deleted in two steps: its record at once, so that nobody sees it any more, its chunks afterwards,
some per transaction, so that 200 MB do not hold up everybody else.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from proxy.batch_server.model import StoredFile
from proxy.batch_server.records import chunk_context, decode_file, encode, file_gone_at
from proxy.batch_server.store import FileQuery
from proxy.jobs.sealing import Vault
from proxy.jobs.store import Conflict

_MOST_SWEPT_FILES = 200
_MOST_SWEPT_BYTES = 16 * 1024 * 1024
_LEAST_CHUNK_COST = 16 * 1024
"""As many bytes a small chunk counts for: deleting it is work as well."""
_MOST_SWEPT_CHUNKS = _MOST_SWEPT_BYTES // _LEAST_CHUNK_COST


class FileTable:
    """Files over one connection. Chunks go through the vault."""

    def __init__(self, connection: sqlite3.Connection, vault: Vault) -> None:
        self._run = connection.execute
        self._vault = vault

    def create(self, file: StoredFile) -> None:
        """See `BatchStore.create_file`."""
        self._put("INSERT OR IGNORE", file)

    def append(self, file_id: str, index: int, data: bytes) -> None:
        """See `BatchStore.append_chunk`."""
        is_complete = self._is_complete(file_id)
        if is_complete is not False:
            raise Conflict(f"the file {file_id} is {'gone' if is_complete is None else 'complete'}")
        self.put_chunk(file_id, index, data)

    def put_chunk(self, file_id: str, index: int, data: bytes) -> None:
        """Keep a chunk, whether there is a file yet or not."""
        blob = self._vault.seal(data, chunk_context(file_id, index))
        self._run("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?)", (file_id, index, blob))

    def complete(self, file: StoredFile) -> None:
        """See `BatchStore.complete_file`."""
        if self._is_complete(file.id) is None:
            raise Conflict(f"the file {file.id} is gone")
        self.put_complete(file)

    def put_complete(self, file: StoredFile) -> None:
        """Let callers see a file, whether it was begun or not."""
        self._put("INSERT OR REPLACE", replace(file, is_complete=True))

    def _put(self, how: str, file: StoredFile) -> None:
        columns = (
            *(file.id, file.owner, file.purpose.value, file.created, file.expires, file.is_complete),
            *(file_gone_at(file), encode(file)),
        )
        self._run(f"{how} INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", columns)

    def _is_complete(self, file_id: str) -> bool | None:
        row = self._run("SELECT is_complete FROM files WHERE id = ?", (file_id,)).fetchone()
        return None if row is None else bool(row[0])

    def get(self, file_id: str, now: float) -> StoredFile | None:
        """See `BatchStore.file`."""
        statement = "SELECT document FROM files WHERE id = ? AND is_complete AND expires > ?"
        row = self._run(statement, (file_id, now)).fetchone()
        return None if row is None else decode_file(row[0])

    def page(self, query: FileQuery, now: float) -> tuple[StoredFile, ...] | None:
        """See `BatchStore.list_files`."""
        conditions = ["owner = ? AND is_complete AND expires > ?"]
        values: list[object] = [query.owner, now]
        if query.purpose is not None:
            conditions.append("purpose = ?")
            values.append(query.purpose.value)
        sign, order = ("<", "DESC") if query.is_newest_first else (">", "ASC")
        if query.after is not None:
            statement = "SELECT created, id FROM files WHERE id = ? AND owner = ? AND is_complete"
            after = self._run(statement, (query.after, query.owner)).fetchone()
            if after is None:
                return None
            conditions.append(f"(created, id) {sign} (?, ?)")
            values += after
        statement = (
            f"SELECT document FROM files WHERE {' AND '.join(conditions)} "
            f"ORDER BY created {order}, id {order} LIMIT ?"
        )
        return tuple(decode_file(row[0]) for row in self._run(statement, (*values, query.limit)))

    def chunk(self, file_id: str, index: int) -> bytes | None:
        """See `BatchStore.chunk`."""
        statement = "SELECT data FROM chunks WHERE file_id = ? AND number = ?"
        row = self._run(statement, (file_id, index)).fetchone()
        return None if row is None else self._vault.open(row[0], chunk_context(file_id, index))

    def doom_known(self, file_id: str) -> bool:
        """Doom a file that has a record; False: chunks without one are those of a batch that still runs."""
        return self._is_complete(file_id) is not None and self.doom(file_id)

    def doom(self, file_id: str) -> bool:
        """Delete a file's record, if there is one, and note that its chunks have to go."""
        self._run("INSERT OR IGNORE INTO doomed VALUES (?)", (file_id,))
        return self._run("DELETE FROM files WHERE id = ?", (file_id,)).rowcount > 0

    def doom_due(self, now: float, limit: int) -> int:
        """Doom files whose time is over and return how many."""
        statement = "SELECT id FROM files WHERE gone_at <= ? ORDER BY gone_at LIMIT ?"
        due = [row[0] for row in self._run(statement, (now, limit))]
        return sum(self.doom(file_id) for file_id in due)

    def sweep(self) -> bool:
        """Delete some chunks of doomed files and return whether there may be more to delete."""
        doomed = self._run("SELECT file_id FROM doomed LIMIT ?", (_MOST_SWEPT_FILES,)).fetchall()
        bytes_left = _MOST_SWEPT_BYTES
        for (file_id,) in doomed:
            bytes_left = self._sweep_file(file_id, bytes_left)
            if bytes_left <= 0:
                return True
        return len(doomed) == _MOST_SWEPT_FILES

    def _sweep_file(self, file_id: str, bytes_left: int) -> int:
        """Delete chunks of one file and return what is left of the bytes, nothing if it has more."""
        statement = "SELECT number, length(data) FROM chunks WHERE file_id = ? ORDER BY number LIMIT ?"
        last = -1
        for number, size in self._run(statement, (file_id, _MOST_SWEPT_CHUNKS)).fetchall():
            last, bytes_left = number, bytes_left - max(size, _LEAST_CHUNK_COST)
            if bytes_left <= 0:
                break
        self._run("DELETE FROM chunks WHERE file_id = ? AND number <= ?", (file_id, last))
        if bytes_left > 0:
            self._run("DELETE FROM doomed WHERE file_id = ?", (file_id,))
        return bytes_left
