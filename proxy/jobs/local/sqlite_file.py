"""One sqlite file and the thread that talks to it, whatever is kept in it.

Pieces of work that wait together share a transaction, each in a savepoint of its own, so that many of them
cost one write to the disk. `synchronous=FULL`: what is acknowledged survives a power failure. Owns the file's
mode, its schema's version and what is said when it cannot be used. Refuses network file systems in words
only: WAL does not work there.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from proxy.jobs.store import StoreUnavailable

_T = TypeVar("_T")

BUSY_SECONDS = 5.0
"""How long a process waits for another one that writes."""

_MOST_TOGETHER = 256
_OPENING_TRIES = 20
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Piece:
    work: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]
    is_reading: bool
    on_done: Callable[[Any], None] | None


class SqliteFile:
    """A file, made with mode 0600 where it is missing.

    subject         what it is to operators: `job store`
    migrations      statements, divided by semicolons, that bring it up to date: added to, never changed
    busy_seconds    how long another process may hold it
    max_file_bytes  the file does not outgrow it: `StoreUnavailable` instead; 0 is no limit
    most_together   how many pieces of work share a transaction at most
    """

    def __init__(
        self,
        path: Path,
        subject: str,
        migrations: Sequence[str],
        *,
        busy_seconds: float = BUSY_SECONDS,
        max_file_bytes: int = 0,
        most_together: int = _MOST_TOGETHER,
    ) -> None:
        self._path = path
        self._subject = subject
        self._migrations = migrations
        self._busy_seconds = busy_seconds
        self._max_file_bytes = max_file_bytes
        self._most_together = most_together
        self._pieces: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened_file = (0, 0)

    async def open(self) -> None:
        """Start the thread and bring the schema up to date. Raises `StoreUnavailable`."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        name = f"weir-{self._subject.replace(' ', '-')}"
        self._thread = threading.Thread(target=self._serve, args=(opened,), name=name, daemon=True)
        self._thread.start()
        try:
            await opened
        except StoreUnavailable:
            self._thread = None
            raise

    async def close(self) -> None:
        """Finish what waits and end the thread."""
        if self._thread is not None:
            self._pieces.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            self._thread = None

    async def do(
        self,
        work: Callable[[sqlite3.Connection], _T],
        *,
        is_reading: bool = False,
        on_done: Callable[[_T], None] | None = None,
    ) -> _T:
        """Do a piece of work in one atomic and durable step and return its result, or raise what it raises.

        `on_done` gets the result as well, in the event loop, even if whoever asked is gone by then.
        Raises `StoreUnavailable`, with nothing done.
        """
        if self._thread is None or self._loop is None:
            raise StoreUnavailable(f"the {self._subject} {self._path} is not open")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._pieces.put(_Piece(work, future, is_reading, on_done))
        return await future

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
                self._do_together(connection, pieces)
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        # Whatever callers asked is in it: for the owner's eyes only. sqlite gives its other files this mode.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
        try:
            self._use_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            opened = os.stat(self._path)
            self._opened_file = (opened.st_dev, opened.st_ino)
            if self._max_file_bytes:
                connection.execute(f"PRAGMA max_page_count = {self._max_file_bytes // _PAGE_BYTES}")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
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
                raise StoreUnavailable(
                    f"the file system of the {self._subject} cannot do WAL (journal mode {mode})"
                )
            return
        raise StoreUnavailable(f"the {self._subject} is locked by another process that is opening it")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the file up to date, once however many processes open it.

        `user_version` of the file counts the migrations that it has seen.
        """
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version > len(self._migrations):
                raise StoreUnavailable(
                    f"the {self._subject} was written by a later release of Weir (schema {version}, "
                    f"this one knows {len(self._migrations)}): run that release, or give another path"
                )
            for migration in self._migrations[version:]:
                for statement in migration.split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(self._migrations)}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _next_pieces(self) -> list[_Piece] | None:
        first = self._pieces.get()
        if first is None:
            return None
        pieces = [first]
        while len(pieces) < self._most_together:
            try:
                piece = self._pieces.get_nowait()
            except queue.Empty:
                break
            if piece is None:
                self._pieces.put(None)
                break
            pieces.append(piece)
        return pieces

    def _do_together(self, connection: sqlite3.Connection, pieces: list[_Piece]) -> None:
        done: list[tuple[_Piece, Any, Exception | None]] = []
        try:
            is_reading = all(piece.is_reading for piece in pieces)
            self._check_file()
            connection.execute("BEGIN" if is_reading else "BEGIN IMMEDIATE")
            # The lock may have come late. Whoever has given up meanwhile has been told that nothing was done.
            wanted = [piece for piece in pieces if not piece.future.done()]
            done = [(piece, *_do_one(connection, piece)) for piece in wanted]
            connection.execute("COMMIT")
            self._check_file()
        except (sqlite3.Error, OSError, StoreUnavailable) as error:
            _roll_back(connection)
            unavailable = self._explained(error)
            for piece in pieces:
                self._settle(piece.future, None, unavailable)
            return
        for piece, result, problem in done:
            self._settle(piece.future, result, problem, piece.on_done)

    def _check_file(self) -> None:
        """Raise `StoreUnavailable` if the open file is not the one at its path: nobody would find it."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._opened_file:
            raise StoreUnavailable(
                f"the {self._subject} {self._path} was {'deleted' if found is None else 'replaced'} under us "
                "(put the former file back, or restart Weir to begin with what is there)"
            )

    def _settle(
        self,
        future: asyncio.Future[Any],
        result: object,
        problem: Exception | None,
        on_done: Callable[[Any], None] | None = None,
    ) -> None:
        def settle() -> None:
            # Whoever asked may have gone; what was done is told to the others all the same.
            if on_done is not None and problem is None:
                on_done(result)
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
                return StoreUnavailable(f"the {self._subject} {self._path}: {text} ({advice})")
        return StoreUnavailable(f"the {self._subject} {self._path}: {text}")


_ADVICE = {
    "readonly": "the process may not write the file or its folder",
    "full": "free some space, or raise its limit; what is stored is safe",
    "locked": "another process has held the file for long",
    "not a database": "this file is something else: give another path",
    "malformed": "the file is damaged: move it away with its -wal and -shm, or restore it from a copy",
    "No such file": "make the folder first",
    "unable to open": "make the folder first, and let the process write there",
}


def _do_one(connection: sqlite3.Connection, piece: _Piece) -> tuple[Any, Exception | None]:
    connection.execute("SAVEPOINT piece")
    try:
        result = piece.work(connection)
    except sqlite3.Error:
        # Says something about the file, not about the piece: all of them fail.
        raise
    except Exception as problem:
        connection.execute("ROLLBACK TO piece")
        connection.execute("RELEASE piece")
        return None, problem
    connection.execute("RELEASE piece")
    return result, None


def _roll_back(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("ROLLBACK")
    except sqlite3.Error:
        # sqlite has done so itself, as it does when the disk is full.
        pass
