"""Jobs in one sqlite file: the store that needs no server, for several processes of one machine.

Owns what a piece of work sees of the file and the watch for what other processes write; the file itself and
the thread that talks to it are `local.sqlite_file`'s.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from proxy.core.clock import Clock, SystemClock
from proxy.jobs.local.sqlite_file import BUSY_SECONDS, SqliteFile
from proxy.jobs.local.sqlite_schema import MIGRATIONS
from proxy.jobs.local.sqlite_tables import SqliteTables
from proxy.jobs.local.store import LocalStore
from proxy.jobs.local.tables import Desk
from proxy.jobs.sealing import PlainVault, Vault, unopenable
from proxy.jobs.store import StoreUnavailable

_T = TypeVar("_T")

WATCH_SECONDS = 0.2
"""How often waiters look whether another process has written."""

_SAMPLE = 200


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
        self._retention_seconds = retention_seconds
        self._vault = vault or PlainVault()
        self._file = SqliteFile(
            path, "job store", MIGRATIONS, busy_seconds=busy_seconds, max_file_bytes=max_file_bytes
        )
        self._watcher: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """See `JobStore`."""
        await self._file.open()

    async def close(self) -> None:
        """See `JobStore`."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        await self._file.close()

    async def warnings(self) -> tuple[str, ...]:
        """See `JobStore`."""
        beginnings = await self._look(lambda desk: cast(SqliteTables, desk.tables).beginnings(_SAMPLE))
        strange = unopenable(self._vault, beginnings)
        return () if strange is None else (strange,)

    async def _work(self, piece: Callable[[Desk], _T]) -> _T:
        return await self._at_desk(piece, is_reading=False)

    async def _look(self, piece: Callable[[Desk], _T]) -> _T:
        return await self._at_desk(piece, is_reading=True)

    async def _at_desk(self, piece: Callable[[Desk], _T], *, is_reading: bool) -> _T:
        def work(connection: sqlite3.Connection) -> tuple[Desk, _T]:
            desk = Desk(SqliteTables(connection, self._vault), self._clock.wall(), self._retention_seconds)
            return desk, piece(desk)

        def tell(done: tuple[Desk, _T]) -> None:
            self._tell(done[0])

        _, result = await self._file.do(work, is_reading=is_reading, on_done=tell)
        return result

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            loop = asyncio.get_running_loop()
            self._watcher = loop.create_task(self._look_for_writers(), name="weir-jobs-watch")

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
