"""Both stores give the same answers to the same calls, whatever callers and workers do in whichever order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.batch_server.model import (
    BatchLease,
    BatchStatus,
    FilePurpose,
    Progress,
    ServedBatch,
    StoredFile,
)
from proxy.batch_server.store import BatchStore, FileQuery
from proxy.jobs.store import StoreError
from tests.support.batch_stores import Bench, new_batch, new_file, results
from tests.support.redis_server import ServerOf

STEPS = 400
Call = Callable[[BatchStore], Awaitable[Any]]


class World:
    """What callers and workers know, stale as it may be, and what they do next."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self._chance = random.Random(seed)
        self.batches: list[ServedBatch] = []
        self.leases: list[BatchLease] = []
        self.files: list[StoredFile] = []

    def call(self) -> Call:
        """Return a call that somebody makes."""
        makers = [self._create, self._claim, self._for_lease, self._for_lease, self._for_batch, self._look]
        makers += [self._begin, self._for_file, self._purge]
        return self._chance.choice(makers)()

    def pause(self) -> float:
        """Return how many seconds pass until the next call."""
        return self._chance.choice((0.0, 0.0, 1.0, 8.0))

    def _create(self) -> Call:
        due = self.bench.now + self._chance.choice((-5.0, 0.0, 20.0))
        batch = new_batch(
            self.bench,
            owner=self._chance.choice(("owner-a", "owner-b")),
            due=due,
            credential=self._chance.choice((None, b"\x00\xff")),
            purge_at=self.bench.now + self._chance.choice((50.0, 5000.0)),
        )
        if self._chance.random() < 0.2 and self.batches:
            batch = self._chance.choice(self.batches)
        self.batches.append(batch)
        return lambda store: store.create_batch(batch)

    def _claim(self) -> Call:
        worker = self._chance.choice(("w1", "w2"))
        return lambda store: _sorted(store.claim(worker, 30.0, 1000))

    def _for_lease(self) -> Call:
        if not self.leases:
            return self._claim()
        lease = self._chance.choice(self.leases[-8:])
        now, choice = self.bench.now, self._chance.randrange(6)
        total = self._chance.randrange(9)
        progress = Progress(BatchStatus.IN_PROGRESS, total, min(total, 2), model="é", in_progress_at=now)
        notice_due = self._chance.choice((None, now, now + 10.0))
        if choice == 0:
            return lambda store: store.renew(lease, 45.0)
        if choice == 1:
            return lambda store: store.release(lease, now + 3.0)
        if choice == 2:
            return lambda store: store.save(lease, progress)
        if choice == 3:
            lines = tuple(self._chance.sample(range(40), 3))
            return lambda store: _recorded(store, lease, lines)
        if choice == 4:
            ended = replace(progress, status=BatchStatus.COMPLETED)
            return lambda store: _finished(store, lease, ended, notice_due, self.bench)
        return lambda store: store.noted(lease, notice_due)

    def _for_batch(self) -> Call:
        if not self.batches:
            return self._create()
        batch, now = self._chance.choice(self.batches), self.bench.now
        choice = self._chance.randrange(4)
        if choice == 0:
            return lambda store: store.ask_to_cancel(batch.id, now)
        if choice == 1:
            return lambda store: _sorted_numbers(store.recorded_lines(batch.id))
        if choice == 2:
            return lambda store: _content(store, batch.output_file_id)
        return lambda store: store.batch(batch.id)

    def _look(self) -> Call:
        after = self._chance.choice((None, *(batch.id for batch in self.batches[-4:])))
        choice = self._chance.randrange(3)
        if choice == 0:
            return lambda store: store.census()
        if choice == 1:
            return lambda store: store.list_batches("owner-a", 3, after)
        purpose = self._chance.choice((None, FilePurpose.BATCH))
        after = self._chance.choice((None, *(file.id for file in self.files[-4:])))
        query = FileQuery("owner-a", purpose, 3, after, self._chance.random() < 0.5)
        return lambda store: store.list_files(query)

    def _begin(self) -> Call:
        expires = self.bench.now + self._chance.choice((30.0, 9000.0))
        file = new_file(self.bench, owner=self._chance.choice(("owner-a", "owner-b")), expires=expires)
        self.files.append(file)
        return lambda store: store.create_file(file)

    def _for_file(self) -> Call:
        if not self.files:
            return self._begin()
        file, choice = self._chance.choice(self.files), self._chance.randrange(5)
        if choice == 0:
            return lambda store: store.append_chunk(file.id, 0, b"x" * 9)
        if choice == 1:
            return lambda store: store.complete_file(file)
        if choice == 2:
            return lambda store: store.delete_file(file.id)
        if choice == 3:
            return lambda store: _content(store, file.id)
        return lambda store: store.file(file.id)

    def _purge(self) -> Call:
        now = self.bench.now
        return lambda store: store.purge(now)


async def _sorted(claiming: Awaitable[tuple[ServedBatch, ...]]) -> list[ServedBatch]:
    return sorted(await claiming, key=lambda batch: batch.id)


async def _sorted_numbers(asking: Awaitable[Any]) -> list[int]:
    return sorted(await asking)


async def _recorded(store: BatchStore, lease: BatchLease, lines: tuple[int, ...]) -> ServedBatch:
    batch = await store.batch(lease.batch_id)
    before = Progress() if batch is None else batch.progress
    return await store.record(lease, results(before, lines, b"%d\n" % lines[0]))


async def _finished(
    store: BatchStore, lease: BatchLease, progress: Progress, notice_due: float | None, bench: Bench
) -> ServedBatch:
    batch = await store.batch(lease.batch_id)
    files = () if batch is None else (new_file(bench, id=batch.output_file_id, owner=batch.owner),)
    return await store.finish(lease, progress, files, notice_due)


async def _content(store: BatchStore, file_id: str) -> list[bytes | None]:
    return [await store.chunk(file_id, index) for index in range(3)]


async def _answer(call: Call, store: BatchStore) -> Any:
    try:
        return await call(store)
    except (StoreError, ValueError) as error:
        return type(error), str(error)


async def agree(world: World, stores: tuple[BatchStore, BatchStore]) -> None:
    seen: set[str] = set()
    for _ in range(STEPS):
        call = world.call()
        one, other = [await _answer(call, store) for store in stores]
        assert one == other
        found = one if isinstance(one, list) else [one]
        world.leases += [each.lease for each in found if isinstance(each, ServedBatch) and each.lease]
        seen |= {type(each).__name__ for each in found}
        world.bench.clock.advance(world.pause())
    assert seen >= {"ServedBatch", "BatchLease", "StoredFile", "Census", "tuple"}


@pytest.mark.parametrize("seed", range(6))
def test_the_stores_agree(seed: int, tmp_path: Path, redis_server: ServerOf) -> None:
    async def test() -> None:
        sqlite = Bench("sqlite", tmp_path, None)
        valkey = Bench("valkey", tmp_path, redis_server("valkey"), clock=sqlite.clock)
        try:
            await agree(World(sqlite, seed), (await sqlite.another(), await valkey.another()))
        finally:
            for bench in (sqlite, valkey):
                await bench.close()

    asyncio.run(test())
