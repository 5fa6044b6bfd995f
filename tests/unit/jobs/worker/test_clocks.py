"""A clock that is far ahead of others expires and deletes nothing; after a long stop one is believed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.core.clock import Clock, SystemClock
from proxy.jobs.model import JobState, JobTier
from proxy.jobs.sealing import PlainVault
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.worker.clocks import Clocks
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.loop import Worker
from proxy.jobs.worker.ports import Trouble
from proxy.jobs.worker.providers import Providers
from tests.support.job_worker import QUICK, Counting, Policies, Table, new_job, rig

DAY = 90_000.0
BEATING = replace(QUICK, beat_seconds=0.05, purge_every_seconds=0.05)


class Ahead(SystemClock):
    """A clock that shows tomorrow's time."""

    @staticmethod
    def wall() -> float:
        return SystemClock.wall() + DAY


@asynccontextmanager
async def working(path: Path, clock: Clock, policies: Policies) -> AsyncIterator[Counting]:
    """Run a worker with a clock of its own over a file."""
    watch = Counting()
    store = SqliteStore(path, clock, retention_seconds=3600.0)
    await store.open()
    settings = replace(BEATING, name="worker-ahead")
    providers = Providers(policies, {}, PlainVault())
    kit = Kit(store, clock, settings, policies, providers, Table(), watch, lambda: 0.5)
    worker = Worker(kit)
    task = asyncio.get_running_loop().create_task(worker.run())
    yield watch
    await worker.stop()
    await task
    await providers.close()
    await store.close()


def test_a_worker_a_day_ahead_leaves_everybodys_jobs_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        path = tmp_path / "jobs.db"
        store = SqliteStore(path, retention_seconds=3600.0)
        await store.open()
        async with rig(store=store, settings=BEATING) as r:
            done = await r.accept(tier=JobTier.DIRECT)
            answered = await r.answer(done)
            waiting = await r.accept(tier=JobTier.BATCH, ready=SystemClock.wall() + 600, seconds=900.0)
            async with working(path, Ahead(), r.policies) as watch:
                await asyncio.sleep(0.6)
                assert await store.answer(done.id) == answered
                seen = await store.get(waiting.id)
                assert seen is not None
                assert (seen.state, seen.lease) == (JobState.ACCEPTED, None)
                assert Trouble.CLOCK_AHEAD in watch.troubles
                assert watch.endings == []
            assert Trouble.CLOCK_AHEAD not in r.watch.troubles
        await store.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert sum("ahead of others" in record.message for record in caplog.records) == 1


def test_after_a_long_stop_jobs_come_to_their_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "jobs.db"
        store = SqliteStore(path, retention_seconds=3600.0)
        await store.open()
        await store.beats("killed yesterday")
        job = new_job()
        await store.accept(job, b"{}")
        async with working(path, Ahead(), Policies(None)) as watch:
            until = SystemClock.monotonic() + 5.0
            # Expired or deleted, whichever turn comes first.
            while (seen := await store.get(job.id)) is not None and seen.is_live:
                assert SystemClock.monotonic() < until
                await asyncio.sleep(0.02)
            assert Trouble.CLOCK_AHEAD not in watch.troubles
        assert "worker-ahead" not in await store.beats("anybody")
        await store.close()

    asyncio.run(scenario())


def test_small_differences_and_clocks_behind_count_for_nothing() -> None:
    clocks = Clocks(1.0)
    for tick in range(3):
        clocks.look({"a": 1000.0 + tick, "b": 5000.0 + tick}, 1299.0 + tick, float(tick))
        assert clocks.may_work
    assert clocks.ahead_seconds == 0.0


def test_a_note_that_moves_contradicts_until_it_is_silent() -> None:
    clocks = Clocks(1.0)
    clocks.look({"a": 1000.0}, 9000.0, 0.0)
    assert (clocks.may_work, clocks.is_contradicted) == (False, False)
    clocks.look({"a": 1001.0}, 9001.0, 1.0)
    assert (clocks.may_work, clocks.is_contradicted) == (False, True)
    assert clocks.ahead_seconds == 8000.0
    clocks.look({"a": 1001.0}, 9005.5, 5.5)
    assert (clocks.may_work, clocks.is_contradicted) == (True, False)


def test_a_clock_that_was_set_is_compared_anew() -> None:
    clocks = Clocks(1.0)
    assert not clocks.is_fresh(0.0, 0.0)
    clocks.look({}, 1000.0, 0.0)
    assert clocks.is_fresh(1010.0, 10.0)
    assert not clocks.is_fresh(1100.0, 10.0)
    assert not clocks.is_fresh(900.0, 10.0)
