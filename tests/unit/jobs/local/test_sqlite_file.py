"""How pieces of work share the thread and the transactions of one sqlite file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from proxy.jobs.local.sqlite_file import SqliteFile
from proxy.jobs.store import StoreUnavailable

MIGRATIONS = ("CREATE TABLE numbers (number INTEGER PRIMARY KEY)",)


def put(connection: sqlite3.Connection, number: int) -> int:
    connection.execute("INSERT INTO numbers VALUES (?)", (number,))
    return number


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM numbers").fetchone()[0])


def test_what_was_done_is_told_though_whoever_asked_is_gone(tmp_path: Path) -> None:
    async def test() -> None:
        file = SqliteFile(tmp_path / "numbers.db", "number store", MIGRATIONS)
        await file.open()
        has_begun, may_end, told = threading.Event(), threading.Event(), list[int]()

        def slow(connection: sqlite3.Connection) -> int:
            has_begun.set()
            may_end.wait(5.0)
            return put(connection, 7)

        asking = asyncio.get_running_loop().create_task(file.do(slow, on_done=told.append))
        await asyncio.to_thread(has_begun.wait, 5.0)
        asking.cancel()
        may_end.set()
        assert await file.do(count) == 1
        assert told == [7]
        await file.close()

    asyncio.run(test())


def test_a_piece_that_raises_leaves_nothing_and_those_beside_it_are_done(tmp_path: Path) -> None:
    async def test() -> None:
        file = SqliteFile(tmp_path / "numbers.db", "number store", MIGRATIONS, most_together=2)
        await file.open()

        def broken(connection: sqlite3.Connection) -> int:
            put(connection, 99)
            raise ValueError("not today")

        pieces = [lambda connection, number=number: put(connection, number) for number in range(5)]
        found = await asyncio.gather(
            *map(file.do, [*pieces[:2], broken, *pieces[2:]]), return_exceptions=True
        )
        assert [one for one in found if not isinstance(one, Exception)] == [0, 1, 2, 3, 4]
        assert isinstance(found[2], ValueError)
        assert await file.do(count, is_reading=True) == 5
        await file.close()

    asyncio.run(test())


def test_the_messages_say_what_the_file_is(tmp_path: Path) -> None:
    async def test() -> None:
        file = SqliteFile(tmp_path / "missing" / "numbers.db", "number store", MIGRATIONS)
        with pytest.raises(StoreUnavailable, match=r"the number store .*numbers\.db.*make the folder first"):
            await file.open()
        with pytest.raises(StoreUnavailable, match="not open"):
            await file.do(count)

    asyncio.run(test())
