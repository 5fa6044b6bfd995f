"""Deferred requests that a provider's batches carry, when these go wrong (reports B82-B86)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.core.clock import SystemClock
from proxy.jobs.model import BookingKind, Job, JobState
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.worker.ports import RouteRules, Trouble
from proxy.sim.scenario import FaultMatch, FaultRule, Faults, LineRule, Scenario
from tests.support.deferring import deferring, poll
from tests.support.job_worker import FAST, Rig, rig, rig_at
from tests.support.killed_worker import Killing, nursery
from tests.support.raw_client import RawAnswer
from tests.support.weir import RunningWeir
from tests.unit.sim.running import running

ALICE = [("Authorization", "Bearer sk-alice"), ("x-stainless-retry-count", "0")]
TICKET = [*ALICE, ("Prefer", "respond-async")]


def with_batches(**fields: Any) -> Scenario:
    return replace(FAST, batches=replace(FAST.batches, **fields))


def ticket(proxy: RunningWeir, text: str) -> str:
    """Send a chat that is answered later; return where."""
    body = json.dumps({"model": "gpt-5-mini", "messages": [{"role": "user", "content": text}]}).encode()
    answer = proxy.client().request("POST", "/v1/chat/completions", body, TICKET)
    assert answer.status == 202
    return answer.header("location") or ""


def states(proxy: RunningWeir) -> list[str]:
    """Return the states of all jobs, by name."""
    jobs = json.loads(proxy.admin("/jobs")[1])["jobs"]
    return sorted(job["ended_as"] or job["state"] for job in jobs)


def answers(proxy: RunningWeir, places: Sequence[str]) -> list[RawAnswer]:
    return [poll(proxy, place, ALICE, 20.0) for place in places]


# B82
def test_a_completed_batch_that_has_an_error_file_alone_failed_each_job(tmp_path: Path) -> None:
    """Every caller gets what its own line says; none is told of success."""
    lines = tuple(LineRule(contains=f"number {n}", status=400, code=f"wrong_{n}") for n in range(9))
    with deferring(tmp_path, "batch", with_batches(lines=lines)) as (proxy, sim):
        places = [ticket(proxy, f"number {n}") for n in range(9)]
        found = answers(proxy, places)
        assert states(proxy) == ["failed"] * 9
        assert sim.stats()["executions_total"] == 0, "nobody asked again what was refused for good"
    assert [answer.status for answer in found] == [400] * 9
    assert [json.loads(answer.body)["error"]["code"] for answer in found] == [f"wrong_{n}" for n in range(9)]


# B83
def test_both_files_are_read_and_a_line_in_neither_is_noticed(tmp_path: Path) -> None:
    """Seven answers, two errors, and one line that got lost: it goes again, and nobody waits for ever."""
    lines = (
        LineRule(contains="wrong", status=400, code="invalid_value"),
        LineRule(contains="lost", missing=True, first=1),
    )
    texts = [*(f"good {n}" for n in range(7)), "wrong 1", "wrong 2", "lost"]
    with deferring(tmp_path, "batch", with_batches(lines=lines)) as (proxy, sim):
        found = answers(proxy, [ticket(proxy, text) for text in texts])
        troubles = proxy.metric("weir_job_trouble_total", kind="missing_line")
        assert states(proxy) == ["failed"] * 2 + ["succeeded"] * 8
        executions = sim.stats()["executions"]
    assert [answer.status for answer in found] == [200] * 7 + [400] * 2 + [200]
    assert len({answer.body for answer in found[:7]}) == 7, "each its own"
    assert troubles == 1
    assert set(executions.values()) == {1}


# B83
def test_a_line_that_is_always_missing_is_answered_by_a_call(tmp_path: Path) -> None:
    lines = (LineRule(contains="lost", missing=True),)
    with deferring(tmp_path, "batch", with_batches(lines=lines)) as (proxy, sim):
        (answer,) = answers(proxy, [ticket(proxy, "lost")])
        tiers = sim.stats()["executions_by_tier"]
    assert answer.status == 200
    assert tiers.keys() == {"default"}


def polled(said: dict[str, Any], times: int) -> Scenario:
    """Say something else of a batch from the fourth look at it on, so many times."""
    match = FaultMatch(path="/v1/batches/*", method="GET")
    return replace(
        with_batches(turnaround_seconds=0.5),
        faults=(FaultRule(do=Faults(**said), match=match, skip=3, first=times),),
    )


def carried(
    scenario: Scenario, rules: RouteRules | None = None, count: int = 3
) -> tuple[Rig, dict[str, Any]]:
    """Have jobs answered; return the rig with the counters of the provider."""

    async def run() -> tuple[Rig, dict[str, Any]]:
        async with rig(scenario, rules=rules) as r:
            jobs = [await r.accept() for _ in range(count)]
            for job in jobs:
                assert (await r.answer(job)).status == 200
            for job in jobs:
                kinds = [booking.kind for booking in (await r.booked(job)).values()]
                assert kinds.count(BookingKind.ANSWER) == 1
            return r, await r.stats()

    return asyncio.run(run())


# B84
def test_a_batch_that_is_gone_ends_and_its_jobs_go_again() -> None:
    r, stats = carried(polled({"status": 404, "error_code": "not_found"}, 1))
    assert Trouble.GONE in r.watch.troubles
    assert stats["batches_created"] == 2
    assert {booking.kind for booking in r.watch.bookings} == {BookingKind.ANSWER, BookingKind.FAILURE}


# B84
@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        ({"status": 500}, Trouble.PROVIDER),
        ({"status": 502, "error_html": True}, Trouble.PROVIDER),
        ({"status": 429, "retry_after": 0.05}, Trouble.RATE_LIMITED),
    ],
    ids=["500", "html", "429"],
)
def test_a_batch_of_which_nothing_can_be_learnt_for_a_while_is_asked_for_again(
    said: dict[str, Any], trouble: Trouble
) -> None:
    """It is neither given up nor made again, and whoever asks backs off."""
    r, stats = carried(polled(said, 4))
    assert r.watch.troubles == [trouble] * 4
    assert (stats["batches_created"], stats["executions_total"]) == (1, 3)


SMALL = {"max_lines": 50, "max_bytes": 200_000, "turnaround_seconds": 0.05}
UMLAUTS = "ü" * 45_000
"""90 KB in UTF-8: counted in characters, twice as many would fit."""


# B85
def test_a_provider_that_takes_less_than_we_thought_gets_smaller_files() -> None:
    """120 jobs, some of 90 KB, where 50 lines and 200 KB go; what fits no file is called directly."""

    async def run() -> None:
        async with rig(with_batches(**SMALL), rules=RouteRules(120, 0.2)) as r:
            jobs = [await r.accept(f"{UMLAUTS} {n}" if n % 30 == 0 else f"short {n}") for n in range(120)]
            alone = await r.accept(UMLAUTS * 3)
            for job in jobs:
                assert (await r.answer(job)).tier == "batch"
                assert await r.executions(job) == 1
            assert (await r.answer(alone)).tier == "default"
            stats = await r.stats()
            assert set(stats["batch_lines"].values()) == {1}
            assert stats["batches_created"] >= 3

    asyncio.run(run())


# ---- killed


# B86
@pytest.mark.parametrize(
    ("step", "when"),
    [
        ("pack", "after"),
        ("batch.upload", "before"),
        ("batch.create", "before"),
        ("batch.create", "after"),
        ("batch.settle", "before"),
    ],
    ids=["packed", "file sent, not noted", "batch created, not noted", "waiting", "results read"],
)
def test_a_killed_worker_leaves_each_job_to_be_done_once(tmp_path: Path, step: str, when: str) -> None:
    path = tmp_path / "jobs.db"

    async def accepted() -> list[Job]:
        store = SqliteStore(path, SystemClock())
        await store.open()
        async with rig_at(sim.address, store=store, is_running=False) as r:
            jobs = [await r.accept() for _ in range(3)]
            sent.update(r.sent)
        await store.close()
        return jobs

    async def taken_over(jobs: Sequence[Job]) -> None:
        store = SqliteStore(path, SystemClock())
        await store.open()
        async with rig_at(sim.address, store=store) as r:
            r.sent.update(sent)
            for job in jobs:
                assert (await r.ended(job)).ended_as is JobState.SUCCEEDED
                assert await r.executions(job) == 1
                kinds = [booking.kind for booking in (await r.booked(job)).values()]
                assert kinds == [BookingKind.ANSWER]
        await store.close()

    sent: dict[str, bytes] = {}
    with running(with_batches(turnaround_seconds=0.3)) as sim, nursery() as bear:
        jobs = asyncio.run(accepted())
        assert bear(Killing(f"sqlite:{path}", sim.address, step, when)) == -9
        asyncio.run(taken_over(jobs))
        stats = sim.stats()
    assert stats["batches_created"] == 1, "it was looked for before another was made"
    assert sorted(stats["batch_lines"].values()) == [1, 1, 1]
