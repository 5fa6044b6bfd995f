"""Jobs in one sqlite file: the store that needs no server, for several processes of one machine.

Owns the thread that talks to the file. Pieces of work that wait together share a transaction, each in a
savepoint of its own, so that many acceptances cost one write to the disk. `synchronous=FULL`: what is
acknowledged survives a power failure. Refuses network file systems in words only: WAL does not work there.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from proxy.core.clock import Clock, SystemClock
from proxy.jobs.local.sqlite_schema import migrate
from proxy.jobs.local.sqlite_tables import SqliteTables
from proxy.jobs.local.store import LocalStore
from proxy.jobs.local.tables import Desk
from proxy.jobs.sealing import PlainVault, Vault, unopenable
from proxy.jobs.store import StoreUnavailable

_T = TypeVar("_T")

BUSY_SECONDS = 5.0
"""How long a process waits for another one that writes."""

WATCH_SECONDS = 0.2
"""How often waiters look whether another process has written."""

_MOST_TOGETHER = 256
_OPENING_TRIES = 20
_PAGE_BYTES = 4096
_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class _Piece:
    work: Callable[[Desk], Any]
    future: asyncio.Future[Any]
    is_reading: bool


class SqliteStore(LocalStore):
    """A `JobStore` in a file, made with mode 0600 where it is missing.

    retention_seconds  how long a job stays after its end
    vault              what bodies and answers go through
    max_file_bytes     the file does not outgrow it: `StoreUnavailable` instead; 0 is no limit
    """

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        *,
        retention_seconds: float = 86_400.0,
        vault: Vault | None = None,
        max_file_bytes: int = 0,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        super().__init__(clock or SystemClock())
        self._path = path
        self._retention_seconds = retention_seconds
        self._vault = vault or PlainVault()
        self._max_file_bytes = max_file_bytes
        self._busy_seconds = busy_seconds
        self._pieces: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._file = (0, 0)

    async def open(self) -> None:
        """See `JobStore`."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._thread = threading.Thread(target=self._serve, args=(opened,), name="weir-jobs", daemon=True)
        self._thread.start()
        try:
            await opened
        except StoreUnavailable:
            self._thread = None
            raise

    async def close(self) -> None:
        """See `JobStore`."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        if self._thread is not None:
            self._pieces.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            self._thread = None

    async def warnings(self) -> tuple[str, ...]:
        """See `JobStore`."""
        beginnings = await self._look(lambda desk: cast(SqliteTables, desk.tables).beginnings(_SAMPLE))
        strange = unopenable(self._vault, beginnings)
        return () if strange is None else (strange,)

    async def _work(self, piece: Callable[[Desk], _T]) -> _T:
        return await self._enqueue(piece, is_reading=False)

    async def _look(self, piece: Callable[[Desk], _T]) -> _T:
        return await self._enqueue(piece, is_reading=True)

    async def _enqueue(self, work: Callable[[Desk], _T], *, is_reading: bool) -> _T:
        if self._thread is None or self._loop is None:
            raise StoreUnavailable(f"the job store {self._path} is not open")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._pieces.put(_Piece(work, future, is_reading))
        return await future

    def _watch(self) -> None:
        if self._loop is not None and (self._watcher is None or self._watcher.done()):
            self._watcher = self._loop.create_task(self._look_for_writers(), name="weir-jobs-watch")

    async def _look_for_writers(self) -> None:
        seen: int | None = None
        while len(self._waiting):
            try:
                version = await self._look(lambda desk: cast(SqliteTables, desk.tables).writers())
                if version != seen and seen is not None:
                    self._waiting.ended(await self._ended_among(self._waiting.job_ids))
                    self._waiting.has_work()
                seen = version
            except StoreUnavailable:
                # Whoever asks the store next is told.
                pass
            await asyncio.sleep(WATCH_SECONDS)

    async def _ended_among(self, job_ids: tuple[str, ...]) -> list[str]:
        return await self._look(lambda desk: desk.tables.ended_among(job_ids))

    # ---- in the thread

    def _serve(self, opened: asyncio.Future[None]) -> None:
        try:
            connection = self._connect()
        except (sqlite3.Error, OSError, StoreUnavailable) as error:
            self._settle(opened, None, self._explained(error))
            return
        self._settle(opened, None, None)
        try:
            while (pieces := self._next_pieces()) is not None:
                self._do(connection, pieces)
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        # Whatever callers asked is in it: for the owner's eyes only. sqlite gives its other files this mode.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
        try:
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            opened = os.stat(self._path)
            self._file = (opened.st_dev, opened.st_ino)
            if self._max_file_bytes:
                connection.execute(f"PRAGMA max_page_count = {self._max_file_bytes // _PAGE_BYTES}")
            migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _next_pieces(self) -> list[_Piece] | None:
        first = self._pieces.get()
        if first is None:
            return None
        pieces = [first]
        while len(pieces) < _MOST_TOGETHER:
            try:
                piece = self._pieces.get_nowait()
            except queue.Empty:
                break
            if piece is None:
                self._pieces.put(None)
                break
            pieces.append(piece)
        return pieces

    def _do(self, connection: sqlite3.Connection, pieces: list[_Piece]) -> None:
        done: list[tuple[_Piece, Desk, Any, Exception | None]] = []
        try:
            is_reading = all(piece.is_reading for piece in pieces)
            self._check_file()
            connection.execute("BEGIN" if is_reading else "BEGIN IMMEDIATE")
            # The lock may have come late. Whoever has given up meanwhile has been told that nothing was done.
            wanted = [piece for piece in pieces if not piece.future.done()]
            done = [(piece, *self._do_one(connection, piece)) for piece in wanted]
            connection.execute("COMMIT")
            self._check_file()
        except (sqlite3.Error, OSError, StoreUnavailable) as error:
            _roll_back(connection)
            unavailable = self._explained(error)
            for piece in pieces:
                self._settle(piece.future, None, unavailable)
            return
        for piece, desk, result, problem in done:
            self._settle(piece.future, result, problem, desk)

    def _check_file(self) -> None:
        """Raise `StoreUnavailable` if the open file is not the one at its path: nobody would find it."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._file:
            raise StoreUnavailable(
                f"the job store {self._path} was {'deleted' if found is None else 'replaced'} under us "
                "(put the former file back, or restart Weir to begin with what is there)"
            )

    def _do_one(self, connection: sqlite3.Connection, piece: _Piece) -> tuple[Desk, Any, Exception | None]:
        desk = Desk(SqliteTables(connection, self._vault), self._clock.wall(), self._retention_seconds)
        connection.execute("SAVEPOINT piece")
        try:
            result = piece.work(desk)
        except sqlite3.Error:
            # Says something about the file, not about the piece: all of them fail.
            raise
        except Exception as problem:
            connection.execute("ROLLBACK TO piece")
            connection.execute("RELEASE piece")
            return Desk(desk.tables, desk.now, desk.retention_seconds), None, problem
        connection.execute("RELEASE piece")
        return desk, result, None

    def _settle(
        self, future: asyncio.Future[Any], result: object, problem: Exception | None, desk: Desk | None = None
    ) -> None:
        def settle() -> None:
            # Whoever asked may have gone; what was done is told to the others all the same.
            if desk is not None and problem is None:
                self._tell(desk)
            if future.done():
                return
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(settle)
        except RuntimeError:
            # The loop has closed under us; nobody is there to be told.
            pass

    def _explained(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, StoreUnavailable):
            return error
        text = str(error)
        for words, advice in _ADVICE.items():
            if words in text:
                return StoreUnavailable(f"the job store {self._path}: {text} ({advice})")
        return StoreUnavailable(f"the job store {self._path}: {text}")


_ADVICE = {
    "readonly": "the process may not write the file or its folder",
    "full": "free some space, or raise its limit; what is stored is safe",
    "locked": "another process has held the file for long",
    "not a database": "this file is something else: give another path",
    "malformed": "the file is damaged: move it away with its -wal and -shm, or restore it from a copy",
    "No such file": "make the folder first",
    "unable to open": "make the folder first, and let the process write there",
}


def _use_wal(connection: sqlite3.Connection) -> None:
    # Changing the mode takes a lock for which sqlite does not wait.
    for _ in range(_OPENING_TRIES):
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            threading.Event().wait(0.05)
            continue
        if mode != "wal":
            raise StoreUnavailable(f"the file system of the job store cannot do WAL (journal mode {mode})")
        return
    raise StoreUnavailable("the job store is locked by another process that is opening it")


def _roll_back(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("ROLLBACK")
    except sqlite3.Error:
        # sqlite has done so itself, as it does when the disk is full.
        pass
