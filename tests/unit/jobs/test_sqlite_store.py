"""What the sqlite store does with its file: permissions, damage, fullness, other processes, old schemas."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from proxy.core.upstream import Secret
from proxy.jobs.breaker import GuardedStore
from proxy.jobs.local.sqlite_schema import MIGRATIONS
from proxy.jobs.sealing import SecretVault
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.store import StoreUnavailable
from tests.support.jobs import BODY, Bench, answer, new_job


async def opened(path: Path, **options: object) -> SqliteStore:
    store = SqliteStore(path, **options)  # type: ignore[arg-type]
    await store.open()
    return store


def test_nobody_else_may_read_the_file(tmp_path: Path) -> None:
    async def test() -> None:
        store = await opened(tmp_path / "jobs.db")
        await store.accept(new_job(Bench("sqlite", tmp_path, None)), BODY)
        modes = {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in os.listdir(tmp_path)}
        assert modes == {0o600}
        await store.close()

    asyncio.run(test())


def test_jobs_are_there_after_closing_and_opening(tmp_path: Path) -> None:
    async def test() -> None:
        store = await opened(tmp_path / "jobs.db")
        job = (await store.accept(new_job(Bench("sqlite", tmp_path, None)), BODY)).job
        salt = await store.salt()
        await store.close()
        again = await opened(tmp_path / "jobs.db")
        assert await again.get(job.id) == job
        assert await again.salt() == salt
        await again.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"this is a text file, not a database " * 200, "something else"), (None, "folder")],
)
def test_a_file_that_cannot_be_used_is_named_with_the_remedy(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "there" / "jobs.db"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)

    async def test() -> None:
        with pytest.raises(StoreUnavailable, match=said) as caught:
            await opened(path)
        assert str(path) in str(caught.value)

    asyncio.run(test())


def test_damage_is_told_and_does_not_kill_the_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def fill() -> None:
        store = await opened(path)
        for _ in range(200):
            await store.accept(new_job(Bench("sqlite", tmp_path, None)), BODY * 20)
        await store.close()

    async def look() -> None:
        store = await opened(path)
        with pytest.raises(StoreUnavailable, match="damaged"):
            await store.census()
        with pytest.raises(StoreUnavailable):
            await store.census()
        await store.close()

    asyncio.run(fill())
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(8192)
        file.write(b"\xff" * (size - 8192))
    asyncio.run(look())


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async def test() -> None:
        store = await opened(tmp_path / "jobs.db", max_file_bytes=400_000)
        bench = Bench("sqlite", tmp_path, None)
        acknowledged: list[str] = []

        async def fill() -> None:
            while len(acknowledged) < 1000:
                acknowledged.append((await store.accept(new_job(bench), b"x" * 20_000)).job.id)

        with pytest.raises(StoreUnavailable, match="free some space"):
            await fill()
        assert acknowledged
        assert set(await store.bodies(acknowledged)) == set(acknowledged)
        for job_id in acknowledged[:5]:
            await store.delete(job_id)
        assert (await store.accept(new_job(bench), b"y" * 20_000)).is_new
        await store.close()

    asyncio.run(test())


def test_a_later_release_is_not_written_over(tmp_path: Path) -> None:
    async def test() -> None:
        store = await opened(tmp_path / "jobs.db")
        await store.close()
        with sqlite3.connect(tmp_path / "jobs.db") as connection:
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        connection.close()
        with pytest.raises(StoreUnavailable, match="later release"):
            await opened(tmp_path / "jobs.db")

    asyncio.run(test())


def test_a_writer_that_does_not_finish_is_not_waited_for_forever(tmp_path: Path) -> None:
    async def test() -> None:
        store = await opened(tmp_path / "jobs.db", busy_seconds=0.05)
        other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        bench = Bench("sqlite", tmp_path, None)
        with pytest.raises(StoreUnavailable, match="another process"):
            await store.accept(new_job(bench), BODY)
        assert (await store.census()).jobs == {}
        other.execute("ROLLBACK")
        other.close()
        assert (await store.accept(new_job(bench), BODY)).is_new
        await store.close()

    asyncio.run(test())


def test_many_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        stores = await asyncio.gather(*(opened(tmp_path / "jobs.db") for _ in range(6)))
        salts = await asyncio.gather(*(store.salt() for store in stores))
        assert len(set(salts)) == 1
        for store in stores:
            await store.close()

    asyncio.run(test())


def test_one_bad_piece_of_work_does_not_spoil_those_beside_it(tmp_path: Path) -> None:
    async def test() -> None:
        store = await opened(tmp_path / "jobs.db")
        bench = Bench("sqlite", tmp_path, None)
        bad = new_job(bench, model="\ud800")
        results = await asyncio.gather(
            *(store.accept(job, BODY) for job in (new_job(bench), bad, new_job(bench))),
            return_exceptions=True,
        )
        assert [isinstance(result, Exception) for result in results] == [False, True, False]
        assert len(await store.jobs([bad.id])) == 0
        assert sum((await store.census()).jobs.values()) == 2
        await store.close()

    asyncio.run(test())


def test_with_a_key_nothing_readable_is_in_the_file(tmp_path: Path) -> None:
    vault = SecretVault([Secret("k" * 40)])

    async def test() -> None:
        store = await opened(tmp_path / "jobs.db", vault=vault)
        job = new_job(Bench("sqlite", tmp_path, None))
        await store.accept(job, b"the-secret-prompt")
        assert await store.bodies([job.id]) == {job.id: b"the-secret-prompt"}
        await store.close()

    asyncio.run(test())
    assert all(b"the-secret-prompt" not in file.read_bytes() for file in tmp_path.iterdir())


def test_what_is_deleted_is_overwritten(tmp_path: Path) -> None:
    async def test() -> None:
        store = await opened(tmp_path / "jobs.db")
        job = new_job(Bench("sqlite", tmp_path, None))
        await store.accept(job, b"the-secret-prompt" + b"." * 9000)
        await store.delete(job.id)
        await store.close()

    asyncio.run(test())
    assert all(b"the-secret-prompt" not in file.read_bytes() for file in tmp_path.iterdir())


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        store = await opened(tmp_path / "jobs.db")
        await store.close()
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.get("x")
        await store.close()
        assert answer().source == "batch:1"

    asyncio.run(test())


def test_a_write_that_its_caller_gave_up_is_never_done(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "jobs.db"
        store = GuardedStore(await opened(path), caller_seconds=0.1)
        bench = Bench("sqlite", tmp_path, None)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        job = new_job(bench)
        with pytest.raises(StoreUnavailable):
            await store.accept(job, BODY)
        holder.execute("COMMIT")
        holder.close()
        inner = await opened(path)
        await asyncio.sleep(0.2)
        assert await inner.get(job.id) is None
        await inner.close()
        await store.close()

    asyncio.run(test())


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_gone_is_noticed_before_anything_is_acknowledged(
    tmp_path: Path, is_replaced: bool
) -> None:
    async def test() -> None:
        path, away = tmp_path / "jobs.db", tmp_path / "away.db"
        store = await opened(path)
        bench = Bench("sqlite", tmp_path, None)
        kept = (await store.accept(new_job(bench), BODY)).job
        path.rename(away)
        if is_replaced:
            path.touch()
        with pytest.raises(StoreUnavailable, match="replaced" if is_replaced else "deleted"):
            await store.accept(new_job(bench), BODY)
        with pytest.raises(StoreUnavailable):
            await store.get(kept.id)
        away.rename(path)
        assert await store.get(kept.id) == kept
        await store.close()

    asyncio.run(test())
