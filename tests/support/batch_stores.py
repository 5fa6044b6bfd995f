"""Files and batches to work with, and batch stores of every kind to work on: each test runs on all of them.

@on_every_store
async def test_keeps_a_batch(bench: Bench) -> None:
    await bench.store.create_batch(new_batch(bench))
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from proxy.batch_server.model import BatchLease, FilePurpose, Progress, Recorded, ServedBatch, StoredFile
from proxy.batch_server.redis_store import RedisBatchStore
from proxy.batch_server.sqlite_store import SqliteBatchStore
from proxy.batch_server.store import BatchStore
from proxy.core.clock import ManualClock
from tests.support.jobs import DURABLE_KINDS
from tests.support.redis_server import RedisServer, ServerOf

DAY_SECONDS = 86_400.0


@dataclass
class Bench:
    """One store, its clock, and further instances over the same data, as other processes have them."""

    kind: str
    folder: Path
    server: RedisServer | None
    clock: ManualClock = field(default_factory=ManualClock)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    opened: list[BatchStore] = field(default_factory=list)

    @property
    def store(self) -> BatchStore:
        """The store that the test began with."""
        return self.opened[0]

    @property
    def now(self) -> float:
        """What the clock says."""
        return self.clock.wall()

    async def another(self, **options: Any) -> BatchStore:
        """Open a further instance over the same data."""
        store: BatchStore
        if self.server is None:
            store = SqliteBatchStore(self.folder / "jobs.db.batches", self.clock, **options)
        else:
            store = RedisBatchStore(self.server.url, self.clock, namespace=self.name, **options)
        await store.open()
        self.opened.append(store)
        return store

    async def close(self) -> None:
        """Close everything that was opened."""
        for store in self.opened:
            await store.close()


StoreTest = Callable[[Bench], Awaitable[None]]
PytestTest = Callable[[str, Path, ServerOf], None]


def on_every_store(test: StoreTest) -> PytestTest:
    """Run a test on stores of every kind."""

    def run(kind: str, tmp_path: Path, redis_server: ServerOf) -> None:
        server = None if kind == "sqlite" else redis_server(kind)
        asyncio.run(_run(test, Bench(kind, tmp_path, server)))

    run.__name__ = getattr(test, "__name__", "test")
    run.__doc__ = test.__doc__
    run.__module__ = test.__module__
    return pytest.mark.parametrize("kind", DURABLE_KINDS)(run)


async def _run(test: StoreTest, bench: Bench) -> None:
    await bench.another()
    try:
        await test(bench)
    finally:
        await bench.close()


def new_file(bench: Bench, **fields: Any) -> StoredFile:
    """Return a file that stays for a day."""
    values: dict[str, Any] = {
        "id": f"file-{uuid.uuid4().hex}",
        "owner": "owner-a",
        "purpose": FilePurpose.BATCH,
        "filename": "lines.jsonl",
        "created": bench.now,
        "expires": bench.now + DAY_SECONDS,
    }
    return StoredFile(**(values | fields))


async def stored(bench: Bench, *chunks: bytes, **fields: Any) -> StoredFile:
    """Keep a complete file."""
    begun = new_file(bench, **fields)
    file = replace(begun, size_bytes=sum(map(len, chunks)), chunk_count=len(chunks), is_complete=True)
    await bench.store.create_file(begun)
    for index, data in enumerate(chunks):
        await bench.store.append_chunk(file.id, index, data)
    await bench.store.complete_file(file)
    return file


def new_batch(bench: Bench, **fields: Any) -> ServedBatch:
    """Return a batch that is due at once, has a day, and is purged two days later."""
    values: dict[str, Any] = {
        "id": f"batch_{uuid.uuid4().hex}",
        "owner": "owner-a",
        "upstream": "local",
        "endpoint": "/v1/chat/completions",
        "input_file_id": f"file-{uuid.uuid4().hex}",
        "window": "24h",
        "created": bench.now,
        "expires": bench.now + DAY_SECONDS,
        "output_file_id": f"file-{uuid.uuid4().hex}",
        "error_file_id": f"file-{uuid.uuid4().hex}",
        "output_seconds": 2 * DAY_SECONDS,
        "purge_at": bench.now + 3 * DAY_SECONDS,
        "metadata": (("team", "é"),),
        "headers": (("x-team", "a"), ("x-team", "b")),
        "due": bench.now,
    }
    return ServedBatch(**(values | fields))


async def created(bench: Bench, **fields: Any) -> ServedBatch:
    """Keep a batch."""
    batch = new_batch(bench, **fields)
    await bench.store.create_batch(batch)
    return batch


async def claimed(bench: Bench, worker: str = "w1", **fields: Any) -> ServedBatch:
    """Keep a batch and claim it for a minute."""
    batch = await created(bench, **fields)
    (found,) = await bench.store.claim(worker, 60.0, 1)
    assert found.id == batch.id
    return found


def held(batch: ServedBatch) -> BatchLease:
    """Return the lease that a claim gave."""
    assert batch.lease is not None
    return batch.lease


def results(before: Progress, lines: tuple[int, ...], output: bytes = b"", errors: bytes = b"") -> Recorded:
    """Return lines with results, and the progress that follows."""
    after = replace(
        before,
        completed=before.completed + (len(lines) if output else 0),
        failed=before.failed + (0 if output else len(lines)),
        output_bytes=before.output_bytes + len(output),
        output_chunks=before.output_chunks + bool(output),
        error_bytes=before.error_bytes + len(errors),
        error_chunks=before.error_chunks + bool(errors),
    )
    return Recorded(lines, output, errors, after)
