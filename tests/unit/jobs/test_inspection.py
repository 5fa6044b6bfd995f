from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.jobs.changes import JobChange
from proxy.jobs.inspection import Inspector, NoSuchJob
from proxy.jobs.model import Answer, Booking, BookingKind, JobError, JobState, JobTier
from proxy.jobs.store import Conflict
from proxy.jobs.transitions import JobEvent
from tests.support.jobs import Bench, accepted

Test = Callable[[Bench, Inspector], Awaitable[None]]


def on_memory(test: Test) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def main() -> None:
            bench = Bench("memory", tmp_path, None)
            await bench.another()
            await test(bench, Inspector(bench.store, bench.clock.wall))
            await bench.close()

        asyncio.run(main())

    run.__name__ = getattr(test, "__name__", "test")
    return run


async def ended(bench: Bench, job_id: str, change: JobChange) -> None:
    held = await bench.store.claim_job(job_id, "w", 30.0)
    assert held is not None
    assert held.lease is not None
    await bench.store.commit_job(held.lease, JobChange(JobEvent.SUBMIT, (job_id,)))
    await bench.store.commit_job(held.lease, change)


@on_memory
async def test_lists_jobs_and_counts_all(bench: Bench, jobs: Inspector) -> None:
    first = await accepted(bench, tier=JobTier.FLEX)
    bench.clock.advance(5)
    await accepted(bench)
    await bench.store.cancel(first.id)
    told = await jobs.listed(states=frozenset({JobState.ACCEPTED}), limit=1)
    (shown,) = told["jobs"]
    assert (shown["state"], shown["tier"], shown["age_seconds"]) == ("accepted", "batch", 0.0)
    assert told["by_state"] == {"accepted": 1, "cancelled": 1}
    json.dumps(told)


@on_memory
async def test_shows_what_was_paid_and_no_secret(bench: Bench, jobs: Inspector) -> None:
    job = await accepted(bench, tier=JobTier.FLEX, credential=b"sealed")
    booking = Booking(job.id, "call:1", BookingKind.ANSWER, "flex", 10, usd=0.5, standard_usd=1.0)
    answer = Answer(200, b'{"secret":"text"}', (), "call:1", "flex")
    await ended(bench, job.id, JobChange(JobEvent.SUCCEED, (job.id,), answer=answer, booking=booking))
    told = await jobs.shown(job.id)
    assert told["answer"] == {"status": 200, "bytes": 17, "tier": "flex"}
    assert told["bookings"][0]["usd"] == 0.5
    for hidden in ("secret", "sealed", job.owner, job.attach_key, job.account):
        assert hidden not in json.dumps(told)


@on_memory
async def test_what_is_unknown_is_no_zero_and_sums_have_no_dust(bench: Bench, jobs: Inspector) -> None:
    job = await accepted(bench)
    await bench.store.book(Booking(job.id, "call:1", BookingKind.FAILURE, "unknown"))
    usd = 1.2524999999999998e-05
    await bench.store.book(Booking(job.id, "call:2", BookingKind.LOSER, "flex", 0, usd=usd, standard_usd=0.0))
    unknown, free = (await jobs.shown(job.id))["bookings"]
    tokens = ("input_tokens", "cached_tokens", "output_tokens", "usd", "standard_usd")
    assert [unknown[name] for name in tokens] == [None] * 5
    assert [free[name] for name in tokens] == [0, 0, 0, 1.2525e-05, 0.0]


@on_memory
async def test_cancelling_again_is_no_harm(bench: Bench, jobs: Inspector) -> None:
    job = await accepted(bench)
    assert [(await jobs.cancelled(job.id))["state"] for _ in range(2)] == ["cancelled", "cancelled"]


@on_memory
async def test_retries_what_failed_with_as_much_time_as_it_had(bench: Bench, jobs: Inspector) -> None:
    job = await accepted(bench, tier=JobTier.FLEX)
    bench.clock.advance(100)
    change = JobChange(JobEvent.FAIL, (job.id,), error=JobError("x", "y"))
    await ended(bench, job.id, change)
    told = await jobs.retried(job.id)
    assert (told["state"], told["margin_seconds"]) == ("accepted", 3600.0)
    (again,) = await bench.store.claim_jobs("w", 30.0, 5)
    assert (again.id, again.tier) == (job.id, JobTier.DIRECT)


@on_memory
async def test_what_ended_well_is_not_tried_again(bench: Bench, jobs: Inspector) -> None:
    job = await accepted(bench, tier=JobTier.FLEX)
    await ended(bench, job.id, JobChange(JobEvent.SUCCEED, (job.id,), answer=Answer(200, b"{}")))
    with pytest.raises(Conflict):
        await jobs.retried(job.id)


@on_memory
async def test_erases_live_jobs_too(bench: Bench, jobs: Inspector) -> None:
    job = await accepted(bench)
    assert await jobs.deleted(job.id)
    assert not await jobs.deleted(job.id)
    for act in (jobs.shown, jobs.cancelled, jobs.retried):
        with pytest.raises(NoSuchJob):
            await act(job.id)


def test_odd_text_can_be_shown(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench("memory", tmp_path, None)
        await bench.another()
        job = await accepted(bench, model="odd \ud800")
        told = await Inspector(bench.store, bench.clock.wall).shown(job.id)
        json.dumps(told).encode()
        assert replace(job, model="x").model == "x"
        await bench.close()

    asyncio.run(main())
