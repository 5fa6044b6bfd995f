"""What workers may rely on: leases with fencing, one ending per job, bookings once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.core.clock import SystemClock
from proxy.jobs.changes import JobChange
from proxy.jobs.model import BookingKind, Job, JobError, JobState, JobTier
from proxy.jobs.store import MAX_COMPLETIONS, Conflict, LeaseLost
from proxy.jobs.transitions import JobEvent
from tests.support.jobs import Bench, accepted, answer, booking, held, on_every_store


async def claimed(bench: Bench, worker: str = "w1", **fields: object) -> Job:
    """Accept a job for a single call and claim it."""
    job = await accepted(bench, **({"tier": JobTier.FLEX, "due": bench.now} | fields))
    found = await bench.store.claim_job(job.id, worker, 60.0)
    assert found is not None
    return found


def change(job: Job, event: JobEvent, **fields: object) -> JobChange:
    return JobChange(event, (job.id,), **fields)  # type: ignore[arg-type]


@on_every_store
async def test_what_is_due_is_claimed_once_longest_due_first(bench: Bench) -> None:
    jobs = [await accepted(bench, tier=JobTier.FLEX, due=bench.now - number) for number in range(5)]
    await accepted(bench, tier=JobTier.FLEX, due=bench.now + 1)
    first = await bench.store.claim_jobs("w1", 60.0, 2)
    rest = await bench.store.claim_jobs("w2", 60.0, 10)
    assert [job.id for job in first + rest] == [job.id for job in reversed(jobs)]
    assert {held(job).worker for job in first} == {"w1"}
    assert await bench.store.claim_jobs("w3", 60.0, 10) == ()


@on_every_store
async def test_workers_that_claim_at_once_share_the_work(bench: Bench) -> None:
    stores = [bench.store, await bench.another(), await bench.another()]
    jobs = [await accepted(bench, tier=JobTier.FLEX, due=bench.now) for _ in range(30)]
    claims = await asyncio.gather(
        *(store.claim_jobs(f"w{number}", 60.0, 4) for number, store in enumerate(stores * 4))
    )
    ids = [job.id for claim in claims for job in claim]
    assert sorted(ids) == sorted(job.id for job in jobs)


@on_every_store
async def test_claims_can_be_narrowed_to_tiers(bench: Bench) -> None:
    flex = await accepted(bench, tier=JobTier.FLEX, due=bench.now)
    batch = await accepted(bench, tier=JobTier.BATCH, due=bench.now)
    none = await bench.store.claim_jobs("w1", 60.0, 10, frozenset({JobTier.DIRECT}))
    some = await bench.store.claim_jobs("w1", 60.0, 10, frozenset({JobTier.FLEX, JobTier.DIRECT}))
    rest = await bench.store.claim_jobs("w1", 60.0, 10)
    assert ([job.id for job in some], [job.id for job in rest], none) == ([flex.id], [batch.id], ())


@on_every_store
async def test_a_lease_that_ran_out_is_taken_over_and_the_late_worker_fenced_off(bench: Bench) -> None:
    job = await claimed(bench, "slow")
    assert await bench.store.claim_job(job.id, "w2", 60.0) is None
    bench.clock.advance(61)
    (taken,) = await bench.store.claim_jobs("w2", 60.0, 10)
    assert held(taken).token > held(job).token
    for late in (
        bench.store.commit_job(held(job), change(job, JobEvent.SUBMIT)),
        bench.store.renew(held(job), 60.0),
    ):
        with pytest.raises(LeaseLost):
            await late
    await bench.store.release(held(job), due=bench.now)
    assert await bench.store.claim_jobs("w3", 60.0, 10) == ()
    assert (await bench.store.commit_job(held(taken), change(job, JobEvent.SUBMIT))).attempts == 1


@on_every_store
async def test_a_worker_that_nobody_replaced_may_still_write(bench: Bench) -> None:
    job = await claimed(bench)
    bench.clock.advance(600)
    moved = await bench.store.commit_job(held(job), change(job, JobEvent.SUBMIT))
    assert moved.state is JobState.SUBMITTED


@on_every_store
async def test_renewing_keeps_others_away(bench: Bench) -> None:
    job = await claimed(bench)
    bench.clock.advance(50)
    longer = await bench.store.renew(held(job), 60.0)
    bench.clock.advance(50)
    assert longer.until == bench.now + 10
    assert await bench.store.claim_jobs("w2", 60.0, 10) == ()
    bench.clock.advance(11)
    assert len(await bench.store.claim_jobs("w2", 60.0, 10)) == 1


@on_every_store
async def test_what_is_given_back_is_due_when_it_says(bench: Bench) -> None:
    job = await claimed(bench)
    await bench.store.release(held(job), due=bench.now + 10)
    with pytest.raises(LeaseLost):
        await bench.store.renew(held(job), 60.0)
    assert await bench.store.claim_jobs("w2", 60.0, 10) == ()
    bench.clock.advance(10)
    (again,) = await bench.store.claim_jobs("w2", 60.0, 10)
    await bench.store.release(held(again))
    (third,) = await bench.store.claim_jobs("w2", 60.0, 10)
    assert held(job).token < held(again).token < held(third).token


@on_every_store
async def test_a_change_with_a_time_gives_the_job_back(bench: Bench) -> None:
    job = await claimed(bench, tiers=(JobTier.FLEX, JobTier.BATCH))
    await bench.store.commit_job(held(job), change(job, JobEvent.SUBMIT))
    polled = await bench.store.commit_job(
        held(job), change(job, JobEvent.PROGRESS, provider_id="resp_1", due=bench.now + 5)
    )
    assert (polled.state, polled.provider_id, polled.due) == (
        JobState.SUBMITTED,
        "resp_1",
        bench.now + 5,
    )
    with pytest.raises(LeaseLost):
        await bench.store.commit_job(held(job), change(job, JobEvent.PROGRESS))
    bench.clock.advance(5)
    (again,) = await bench.store.claim_jobs("w2", 60.0, 10)
    retried = await bench.store.commit_job(
        held(again),
        change(
            job,
            JobEvent.RETRY,
            tier=JobTier.BATCH,
            tiers=(JobTier.BATCH,),
            ready=bench.now + 3,
            due=bench.now + 60,
            error=JobError("resource_unavailable", "no capacity"),
        ),
    )
    assert (retried.state, retried.tier, retried.tiers) == (
        JobState.ACCEPTED,
        JobTier.BATCH,
        (JobTier.BATCH,),
    )
    assert (retried.provider_id, retried.attempts) == (None, 1)
    assert retried.error == JobError("resource_unavailable", "no capacity")
    (pool,) = await bench.store.pools()
    assert (pool.jobs, pool.oldest) == (1, bench.now + 3)


@on_every_store
async def test_the_first_answer_counts_and_the_second_is_told(bench: Bench) -> None:
    job = await claimed(bench)
    await bench.store.commit_job(held(job), change(job, JobEvent.SUBMIT))
    bench.clock.advance(61)
    rescuer = await bench.store.claim_job(job.id, "w2", 60.0)
    assert rescuer is not None
    done = await bench.store.commit_job(
        held(rescuer), change(job, JobEvent.RESCUE, answer=answer("rescue", b"first"))
    )
    assert (done.state, done.ended_as, done.answer_source) == (
        JobState.RESCUED,
        JobState.RESCUED,
        "rescue",
    )
    with pytest.raises(Conflict) as caught:
        await bench.store.commit_job(
            held(job),
            change(
                job, JobEvent.SUCCEED, answer=answer("call:1", b"second"), booking=booking(job.id, "call:1")
            ),
        )
    assert caught.value.state is JobState.RESCUED
    found = await bench.store.answer(job.id)
    assert found is not None
    assert found.body == b"first"
    assert await bench.store.bookings(job.id) == ()
    loser = booking(job.id, "call:1", BookingKind.LOSER)
    assert await bench.store.book(loser)
    assert not await bench.store.book(replace(loser, usd=9.0))
    assert await bench.store.bookings(job.id) == (loser,)


@on_every_store
async def test_the_same_answer_twice_is_no_conflict_and_one_booking(bench: Bench) -> None:
    job = await claimed(bench)
    await bench.store.commit_job(held(job), change(job, JobEvent.SUBMIT))
    ending = change(job, JobEvent.SUCCEED, answer=answer("call:1"), booking=booking(job.id, "call:1"))
    first = await bench.store.commit_job(held(job), ending)
    bench.clock.advance(5)
    assert await bench.store.commit_job(held(job), ending) == first
    assert await bench.store.bookings(job.id) == (booking(job.id, "call:1"),)


@on_every_store
async def test_an_ending_erases_the_credential_and_leaves_nothing_due(bench: Bench) -> None:
    job = await claimed(bench, credential=b"sealed", is_borrowing=True)
    failed = await bench.store.commit_job(
        held(job), change(job, JobEvent.FAIL, error=JobError("no_way", "none"), answer=answer("call:1"))
    )
    assert (failed.credential, failed.error) == (None, JobError("no_way", "none"))
    assert failed.purge_at == bench.now + 3600.0
    assert await bench.store.answer(job.id) == answer("call:1")
    bench.clock.advance(100_000)
    assert await bench.store.claim_jobs("w1", 60.0, 10) == ()
    assert await bench.store.claim_job(job.id, "w1", 60.0) is None


@on_every_store
async def test_moves_that_the_table_does_not_know_are_refused(bench: Bench) -> None:
    job = await claimed(bench)
    for event in (JobEvent.PROGRESS, JobEvent.SUCCEED, JobEvent.DELIVER, JobEvent.RESET):
        with pytest.raises(Conflict) as caught:
            await bench.store.commit_job(held(job), change(job, event))
        assert caught.value.state is JobState.ACCEPTED
    found = await bench.store.get(job.id)
    assert found == job


@on_every_store
async def test_a_cancelled_job_refuses_its_worker(bench: Bench) -> None:
    job = await claimed(bench)
    await bench.store.commit_job(held(job), change(job, JobEvent.SUBMIT))
    assert (await bench.store.cancel(job.id)).state is JobState.SUBMITTED
    with pytest.raises(Conflict) as caught:
        await bench.store.commit_job(held(job), change(job, JobEvent.SUCCEED, answer=answer("call:1")))
    assert caught.value.state is JobState.CANCELLED
    assert await bench.store.answer(job.id) is None


@on_every_store
async def test_a_deleted_job_refuses_its_worker(bench: Bench) -> None:
    job = await claimed(bench)
    await bench.store.delete(job.id)
    with pytest.raises(Conflict) as caught:
        await bench.store.commit_job(held(job), change(job, JobEvent.SUBMIT))
    assert caught.value.state is None
    assert not await bench.store.book(booking(job.id))


@on_every_store
async def test_one_worker_plays_a_role(bench: Bench) -> None:
    first = await bench.store.claim_role("packer", "w1", 60.0)
    assert first is not None
    assert await bench.store.claim_role("packer", "w2", 60.0) is None
    assert await bench.store.claim_role("janitor", "w2", 60.0) is not None
    bench.clock.advance(30)
    again = await bench.store.claim_role("packer", "w1", 60.0)
    assert again == replace(first, until=bench.now + 60.0)
    bench.clock.advance(61)
    taken = await bench.store.claim_role("packer", "w2", 60.0)
    assert taken is not None
    assert taken.token == first.token + 1
    with pytest.raises(LeaseLost):
        await bench.store.renew(first, 60.0)
    await bench.store.release(taken)
    assert await bench.store.claim_role("packer", "w1", 60.0) is not None


@on_every_store
async def test_observed_times_are_kept_newest_first_and_bounded(bench: Bench) -> None:
    for number in range(MAX_COMPLETIONS + 4):
        await bench.store.observe_completion("openai", "m", JobTier.FLEX, float(number))
    await bench.store.observe_completion("openai", "m", JobTier.BATCH, 0.5)
    seen = await bench.store.completions("openai", "m", JobTier.FLEX)
    assert len(seen) == MAX_COMPLETIONS
    assert seen[:2] == (float(MAX_COMPLETIONS + 3), float(MAX_COMPLETIONS + 2))
    assert await bench.store.completions("openai", "m", JobTier.BATCH) == (0.5,)
    assert await bench.store.completions("openai", "other", JobTier.FLEX) == ()


@on_every_store
async def test_the_census_counts_states_and_their_oldest(bench: Bench) -> None:
    await accepted(bench, created=bench.now - 9)
    await accepted(bench, created=bench.now - 4)
    job = await claimed(bench, created=bench.now - 2)
    await bench.store.commit_job(held(job), change(job, JobEvent.SUBMIT))
    census = await bench.store.census()
    assert census.jobs == {JobState.ACCEPTED: 2, JobState.SUBMITTED: 1}
    assert census.oldest == {JobState.ACCEPTED: bench.now - 9, JobState.SUBMITTED: bench.now - 2}
    assert census.batches == {}


@on_every_store
async def test_clocks_of_others_are_told_until_they_leave(bench: Bench) -> None:
    other = await bench.another()
    await bench.store.beats("w1")
    seen = await other.beats("w2")
    if "w1" in seen:
        assert seen == {"w1": bench.now}
        await bench.store.beats("w1", is_leaving=True)
        assert await other.beats("w2") == {}
    else:
        # The server's own clock, which is the machine's.
        (told,) = seen.values()
        assert abs(told - SystemClock.wall()) < 60.0
