"""Jobs to work with, and job stores of every kind to work on: each test runs on all of them.

@on_every_store
async def test_keeps_a_job(bench: Bench) -> None:
    await bench.store.accept(new_job(bench), b"{}")
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from proxy.core.clock import ManualClock
from proxy.jobs.memory_store import MemoryStore
from proxy.jobs.model import Answer, Batch, Booking, BookingKind, Group, Job, JobTier, Lease
from proxy.jobs.redis_store import RedisStore
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.store import JobStore
from tests.support.redis_server import RedisServer

RETENTION_SECONDS = 3600.0
BODY = b'{"model":"gpt-4o-mini","messages":[{"role":"user","content":"hi"}]}'

_REDIS = ("redis",) if shutil.which("redis-server") or os.environ.get("CI") else ()
KINDS = ("memory", "sqlite", "valkey", "cluster", *_REDIS)
"""What a store may be: the last three differ in their servers only. CI has to have Debian's Redis; where a
developer has none, Valkey stands for it (the report's head says so)."""

DURABLE_KINDS = KINDS[1:]


@dataclass
class Bench:
    """One store, its clock, and further instances over the same data, as other processes have them."""

    kind: str
    folder: Path
    server: RedisServer | None
    clock: ManualClock = field(default_factory=ManualClock)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    opened: list[JobStore] = field(default_factory=list)

    @property
    def store(self) -> JobStore:
        """The store that the test began with."""
        return self.opened[0]

    @property
    def now(self) -> float:
        """What the clock says."""
        return self.clock.wall()

    async def another(self, **options: Any) -> JobStore:
        """Open a further instance over the same data; the memory store has but one."""
        if self.kind == "memory" and self.opened:
            return self.store
        store = self._make(options)
        await store.open()
        self.opened.append(store)
        return store

    def _make(self, options: Mapping[str, Any]) -> JobStore:
        options = {"retention_seconds": RETENTION_SECONDS, **options}
        if self.kind == "memory":
            return MemoryStore(self.clock, RETENTION_SECONDS)
        if self.kind == "sqlite":
            return SqliteStore(self.folder / "jobs.db", self.clock, **options)
        assert self.server is not None
        return RedisStore(self.server.url, self.clock, namespace=self.name, **options)

    async def close(self) -> None:
        """Close everything that was opened."""
        for store in self.opened:
            await store.close()


StoreTest = Callable[[Bench], Awaitable[None]]
PytestTest = Callable[[str, Path, Callable[[str], RedisServer]], None]


def on_stores(*kinds: str) -> Callable[[StoreTest], PytestTest]:
    """Run a test on stores of these kinds."""

    def decorate(test: StoreTest) -> PytestTest:
        def run(kind: str, tmp_path: Path, redis_server: Callable[[str], RedisServer]) -> None:
            server = redis_server(kind) if kind in ("valkey", "cluster", "redis") else None
            asyncio.run(_run(test, Bench(kind, tmp_path, server)))

        run.__name__ = getattr(test, "__name__", "test")
        run.__doc__ = test.__doc__
        run.__module__ = test.__module__
        return pytest.mark.parametrize("kind", kinds)(run)

    return decorate


on_every_store = on_stores(*KINDS)
on_durable_stores = on_stores(*DURABLE_KINDS)


async def _run(test: StoreTest, bench: Bench) -> None:
    await bench.another()
    try:
        await test(bench)
    finally:
        await bench.close()


def new_job(bench: Bench, **fields: Any) -> Job:
    """Return a job that is due at its deadline, in an hour."""
    job_id = uuid.uuid4().hex
    values: dict[str, Any] = {
        "id": job_id,
        "attach_key": f"attach-{job_id}",
        "owner": "owner-a",
        "upstream": "openai",
        "endpoint": "/v1/chat/completions",
        "model": "gpt-4o-mini",
        "account": "account-a",
        "created": bench.now,
        "deadline": bench.now + 3600.0,
        "due": bench.now + 3600.0,
        "tiers": (JobTier.BATCH,),
        "body_bytes": len(BODY),
        "input_tokens": 10,
    }
    return Job(**(values | fields))


async def accepted(bench: Bench, **fields: Any) -> Job:
    """Accept a new job with a body of its own."""
    return (await bench.store.accept(new_job(bench, **fields), BODY)).job


def new_batch(bench: Bench, group: Group, **fields: Any) -> Batch:
    """Return a batch to pack."""
    return replace(Batch(uuid.uuid4().hex, group, bench.now), **fields)


def new_batch_of(group: Group) -> Batch:
    """Return a batch to pack that is due at once, whatever the time."""
    return Batch(uuid.uuid4().hex, group, 0.0)


async def packed(bench: Bench, count: int = 2, worker: str = "w1") -> tuple[Batch, tuple[str, ...]]:
    """Accept some jobs and pack them; the batch is leased to the worker for a minute."""
    jobs = [await accepted(bench) for _ in range(count)]
    ids = tuple(job.id for job in jobs)
    batch = await bench.store.pack(new_batch(bench, jobs[0].group), ids, worker, 60.0)
    assert batch is not None
    return batch, ids


def held(subject: Batch | Job) -> Lease:
    """Return the lease that a claim gave."""
    assert subject.lease is not None
    return subject.lease


def answer(source: str = "batch:1", body: bytes = b'{"id":"x"}', status: int = 200) -> Answer:
    """Return an answer."""
    return Answer(status, body, (("content-type", "application/json"),), source, "batch")


def booking(job_id: str, key: str = "batch:1", kind: BookingKind = BookingKind.ANSWER) -> Booking:
    """Return a booking."""
    return Booking(job_id, key, kind, "batch", 10, 0, 0, 5, 0.001, 0.002)
