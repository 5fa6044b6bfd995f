from __future__ import annotations

import asyncio
import logging
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.core.clock import SystemClock
from proxy.core.upstream import ServedBatchApi, Upstream
from proxy.deferred_work import DeferredWork, Keeping, PolicyDirectory, deferred_work, keeping
from proxy.jobs.opening import DEFAULT
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.worker.ports import RouteRules
from proxy.observe.metrics import Metrics
from proxy.policy.model import BatchPolicy, Match, PolicySet, Route
from proxy.settings import Settings
from proxy.upstream.providers.prices import load_prices
from tests.support.job_worker import body_of, new_job

UPSTREAM = Upstream("openai", "https://api.example/v1")
PLAIN = Route("plain", Match())
NIGHTLY = Route("nightly", Match(), batch=BatchPolicy(flush_jobs=7, flush_after_seconds=3.0, min_jobs=2))


def policies(*routes: Route) -> PolicySet:
    return PolicySet("v", {"openai": UPSTREAM}, "openai", routes)


def test_a_file_is_used_only_where_a_route_defers() -> None:
    assert keeping(Settings(), policies(PLAIN)) is None
    kept = keeping(Settings(), policies(PLAIN, NIGHTLY))
    assert kept is not None
    assert (kept.setting, kept.vault, kept.is_given) == (DEFAULT, None, False)


def test_an_operator_decides_otherwise() -> None:
    assert keeping(Settings(store="off"), policies(NIGHTLY)) is None
    kept = keeping(Settings(store="redis://h:1", secret_key="k" * 40), policies(PLAIN))
    assert kept is not None
    assert kept.is_given
    assert kept.vault is not None


def test_a_key_that_could_be_guessed_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="shorter than") as refusal:
        keeping(Settings(store="sqlite:x", secret_key="hunter2"), policies())
    assert "hunter2" not in str(refusal.value)
    assert "hunter2" not in repr(Settings(secret_key="hunter2"))


def test_the_worker_hears_of_the_policies_in_force() -> None:
    now = [policies(NIGHTLY)]
    directory = PolicyDirectory(lambda: now[0])
    assert directory.upstream("openai") is UPSTREAM
    assert directory.rules("nightly") == RouteRules(7, 3.0, 2)
    now[0] = policies(PLAIN)
    assert directory.rules("nightly") == RouteRules()
    assert directory.upstream("gone") is None


def _begun(kept: str, served: ServedBatchApi | None) -> DeferredWork | None:
    upstream = replace(UPSTREAM, batch_api=served)
    started_with = PolicySet("v", {"local": upstream}, "local", ())
    measured = (SystemClock(), Metrics(), load_prices())
    return deferred_work(Settings(store=kept), {}, started_with, lambda: pytest.fail("not asked"), *measured)


def test_files_and_batches_that_pass_for_want_of_a_store_are_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "weir")
    assert _begun("off", None) is None
    assert caplog.messages == []
    assert _begun("off", ServedBatchApi()) is None
    assert caplog.messages == ["files and batches are not served but pass: with --store off nothing is kept"]


async def _said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    for _ in range(1000):
        if words in caplog.text:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{words!r} was not logged: {caplog.text}")


def test_an_emptied_store_and_a_removed_upstream_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        file = tmp_path / "jobs.db"
        now = [policies(NIGHTLY)]
        kept = Keeping(f"sqlite:{file}", None, True)
        work = DeferredWork(kept, Settings(), {}, SystemClock(), Metrics(), load_prices(), lambda: now[0])
        work.works = False
        await work.open()
        job = new_job()
        await work.store.accept(job, body_of(job))
        for _ in range(500):
            if work.pace.live_jobs:
                break
            await asyncio.sleep(0.01)
        now[0] = PolicySet("v", {}, "", ())
        with sqlite3.connect(file) as other:
            other.execute("UPDATE facts SET value = ? WHERE name = 'salt'", (b"s" * 32,))
        other.close()
        await _said(caplog, "no upstream openai any more, and 1 live jobs")
        await _said(caplog, "emptied or replaced")
        await work.close()

    asyncio.run(scenario())


def test_deciding_knows_how_many_jobs_there_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "jobs.db"
        before = SqliteStore(file)
        await before.open()
        jobs = [new_job() for _ in range(3)]
        for job in jobs:
            await before.accept(job, body_of(job))
        await before.cancel(jobs[0].id)
        await before.close()
        kept = Keeping(f"sqlite:{file}", None, True)
        work = DeferredWork(
            kept, Settings(), {}, SystemClock(), Metrics(), load_prices(), lambda: policies(NIGHTLY)
        )
        work.works = False
        await work.open()
        for _ in range(500):
            if work.pace.live_jobs:
                break
            await asyncio.sleep(0.01)
        await work.close()
        assert work.pace.live_jobs == 2

    asyncio.run(scenario())
