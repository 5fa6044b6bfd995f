"""What the sqlite batch store does with its file: permissions, traces, fullness, and what is large."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from proxy.batch_server.model import BatchStatus, Progress
from proxy.batch_server.records import encode
from proxy.batch_server.sqlite_files import FileTable
from proxy.batch_server.sqlite_schema import MIGRATIONS
from proxy.batch_server.sqlite_store import SqliteBatchStore
from proxy.core.upstream import Secret
from proxy.jobs.sealing import PlainVault, SecretVault
from proxy.jobs.store import StoreUnavailable
from tests.support.batch_stores import DAY_SECONDS, Bench, new_batch, new_file, stored

MEBIBYTE = 1024 * 1024


async def opened(bench: Bench, **options: object) -> SqliteBatchStore:
    store = await bench.another(**options)
    assert isinstance(store, SqliteBatchStore)
    return store


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("sqlite", tmp_path, None)


def test_nobody_else_may_read_the_file(bench: Bench) -> None:
    async def test() -> None:
        await opened(bench)
        await stored(bench, b"x")
        modes = {stat.S_IMODE(os.stat(bench.folder / name).st_mode) for name in os.listdir(bench.folder)}
        assert modes == {0o600}
        await bench.close()

    asyncio.run(test())


def test_with_a_key_no_chunk_is_readable_in_the_file(bench: Bench) -> None:
    async def test() -> None:
        await opened(bench, vault=SecretVault([Secret("k" * 40)]))
        file = await stored(bench, b"the-secret-line")
        assert await bench.store.chunk(file.id, 0) == b"the-secret-line"
        await bench.close()

    asyncio.run(test())
    assert all(b"the-secret-line" not in file.read_bytes() for file in bench.folder.iterdir())


def test_what_is_deleted_is_overwritten(bench: Bench) -> None:
    async def test() -> None:
        await opened(bench)
        file = await stored(bench, b"the-secret-line" + b"." * 9000)
        await bench.store.delete_file(file.id)
        await bench.close()

    asyncio.run(test())
    assert all(b"the-secret-line" not in file.read_bytes() for file in bench.folder.iterdir())


def test_a_full_disk_loses_nothing_that_was_acknowledged(bench: Bench) -> None:
    async def test() -> None:
        store = await opened(bench, max_file_bytes=4 * MEBIBYTE)
        kept = await stored(bench, b"k" * MEBIBYTE)
        begun = new_file(bench)
        await store.create_file(begun)

        async def fill() -> None:
            for index in range(9):
                await store.append_chunk(begun.id, index, b"x" * MEBIBYTE)

        with pytest.raises(StoreUnavailable, match="free some space"):
            await fill()
        assert await store.chunk(kept.id, 0) == b"k" * MEBIBYTE
        assert await store.delete_file(begun.id)
        await stored(bench, b"y" * MEBIBYTE)
        await bench.close()

    asyncio.run(test())


def test_others_are_served_while_something_large_is_deleted(bench: Bench) -> None:
    async def test() -> None:
        store = await opened(bench)
        large = await stored(bench, *(40 * [b"x" * MEBIBYTE]))
        deleting = asyncio.get_running_loop().create_task(store.delete_file(large.id))
        served = 0
        while not deleting.done():
            await store.create_batch(new_batch(bench))
            assert await store.file(large.id) is None
            served += 1
        assert await deleting
        # Forty chunks go in three steps, with somebody else's turn before each but the first.
        assert served >= 2
        await bench.close()

    asyncio.run(test())


def test_a_deletion_that_a_crash_cut_short_is_finished_by_the_next_purge(bench: Bench) -> None:
    path = bench.folder / "jobs.db.batches"

    def chunks() -> int:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("SELECT count(*) FROM chunks").fetchone()[0])

    async def test() -> None:
        store = await opened(bench)
        file = await stored(bench, b"x", b"y")
        with closing(sqlite3.connect(path)) as connection, connection:
            FileTable(connection, PlainVault()).doom(file.id)
        assert await store.file(file.id) is None
        assert chunks() == 2
        assert await store.purge(bench.now) == 0
        assert chunks() == 0
        await bench.close()

    asyncio.run(test())


def test_a_file_of_very_many_chunks_is_deleted_whole(bench: Bench) -> None:
    async def test() -> None:
        store = await opened(bench)
        file = new_file(bench)
        await store.create_file(file)
        await asyncio.gather(*(store.append_chunk(file.id, index, b"x") for index in range(2001)))
        assert await store.purge(bench.now + DAY_SECONDS) == 1
        found = await asyncio.gather(*(store.chunk(file.id, index) for index in (0, 999, 1000, 2000)))
        assert found == [None] * 4
        await bench.close()

    asyncio.run(test())


def test_the_messages_name_the_batch_store_and_its_file(bench: Bench) -> None:
    async def test() -> None:
        store = SqliteBatchStore(bench.folder / "there" / "jobs.db.batches", bench.clock)
        with pytest.raises(StoreUnavailable, match=r"batch store .*jobs\.db\.batches.*folder"):
            await store.open()
        with pytest.raises(StoreUnavailable, match=r"the batch store .* is not open"):
            await store.file("x")

    asyncio.run(test())


def test_a_file_without_the_times_of_ends_is_brought_up_to_date(bench: Bench, tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "older.batches"
        told = new_batch(bench, webhook="ops", notice_due=bench.now, progress=Progress(BatchStatus.COMPLETED))
        live = new_batch(bench)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript(MIGRATIONS[0])
            connection.execute("PRAGMA user_version = 1")
            for batch in (told, live):
                columns = (
                    *(batch.id, batch.owner, batch.created, batch.progress.status.value, 0),
                    *(
                        batch.due if batch.is_live else batch.notice_due,
                        0.0,
                        0,
                        batch.purge_at,
                        encode(batch),
                    ),
                )
                connection.execute(f"INSERT INTO batches VALUES ({', '.join('?' * 10)})", columns)
        store = SqliteBatchStore(path, bench.clock)
        await store.open()
        (notice,) = await store.claim("w", 60.0, 9, only_ends=True)
        assert notice.id == told.id
        await store.ask_to_cancel(live.id, bench.now)
        (cancelled,) = await store.claim("w", 60.0, 9, only_ends=True)
        assert cancelled.id == live.id
        await store.close()

    asyncio.run(test())
