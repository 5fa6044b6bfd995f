"""What workers may rely on with batches: packing, one step for a batch and its jobs, splitting."""

from __future__ import annotations

import asyncio

import pytest

from proxy.jobs.changes import BatchMove, JobChange
from proxy.jobs.model import Batch, BatchState, JobState, JobTier
from proxy.jobs.stepping import STEP_JOBS
from proxy.jobs.store import Conflict, LeaseLost
from proxy.jobs.transitions import BatchEvent, JobEvent
from tests.support.jobs import (
    RETENTION_SECONDS,
    Bench,
    accepted,
    answer,
    booking,
    held,
    new_batch,
    on_every_store,
    on_stores,
    packed,
)


async def created(bench: Bench, count: int = 2) -> tuple[Batch, tuple[str, ...]]:
    """Pack some jobs and say that the provider accepted the batch; the lease is kept."""
    batch, ids = await packed(bench, count)
    done = await bench.store.commit_batch(
        held(batch),
        BatchMove(BatchEvent.CREATE, provider_id="batch_1", submitted=bench.now),
        [JobChange(JobEvent.SUBMIT, ids)],
    )
    return done.batch, ids


@on_every_store
async def test_pools_tell_what_waits_by_group(bench: Bench) -> None:
    first = await accepted(bench, ready=bench.now - 5, input_tokens=7)
    await accepted(bench, ready=bench.now + 5, input_tokens=5)
    other = await accepted(bench, model="other")
    await accepted(bench, tier=JobTier.FLEX)
    pools = {pool.group: pool for pool in await bench.store.pools()}
    assert set(pools) == {first.group, other.group}
    pool = pools[first.group]
    assert (pool.jobs, pool.body_bytes, pool.input_tokens, pool.oldest) == (
        2,
        2 * first.body_bytes,
        12,
        bench.now - 5,
    )


@on_every_store
async def test_candidates_are_ready_and_nobody_works_on_them(bench: Bench) -> None:
    late = await accepted(bench, ready=bench.now - 1)
    early = await accepted(bench, ready=bench.now - 2)
    await accepted(bench, ready=bench.now + 1)
    worked_on = await accepted(bench, ready=bench.now - 3)
    await bench.store.claim_job(worked_on.id, "w1", 60.0)
    found = await bench.store.candidates(late.group, 10)
    assert [job.id for job in found] == [early.id, late.id]
    assert [job.id for job in await bench.store.candidates(late.group, 1)] == [early.id]
    batch = await bench.store.pack(new_batch(bench, late.group), [worked_on.id], "w2", 60.0)
    assert batch is None


@on_every_store
async def test_packing_takes_jobs_out_of_the_pool_in_order(bench: Bench) -> None:
    jobs = [await accepted(bench) for _ in range(4)]
    ids = [jobs[number].id for number in (2, 0, 3)]
    mine = new_batch(bench, jobs[0].group, credential=b"\x00\xffsealed", due=bench.now)
    batch = await bench.store.pack(mine, ids, "w1", 60.0)
    assert batch is not None
    assert (batch.state, batch.job_count, batch.input_tokens) == (BatchState.INTENT, 3, 30)
    assert batch.input_bytes == 3 * jobs[0].body_bytes
    assert batch.credential == b"\x00\xffsealed"
    assert await bench.store.batch(batch.id) == batch
    assert await bench.store.batch_job_ids(batch.id) == tuple(ids)
    assert await bench.store.batch_job_ids(batch.id, only_open=True) == tuple(ids)
    (pool,) = await bench.store.pools()
    assert pool.jobs == 1
    states = {job.id: (job.state, job.batch_id) for job in await bench.store.jobs(ids)}
    assert set(states.values()) == {(JobState.PACKED, batch.id)}


@on_every_store
async def test_a_job_is_packed_once_however_many_try(bench: Bench) -> None:
    stores = [bench.store, await bench.another()]
    jobs = [await accepted(bench) for _ in range(10)]
    ids = [job.id for job in jobs]
    made = await asyncio.gather(
        *(
            stores[number % 2].pack(new_batch(bench, jobs[0].group), ids, f"w{number}", 60.0)
            for number in range(6)
        )
    )
    batches = [batch for batch in made if batch is not None]
    assert len(batches) == 1
    assert batches[0].job_count == 10


@on_every_store
async def test_packing_twice_with_one_id_is_one_batch(bench: Bench) -> None:
    job = await accepted(bench)
    mine = new_batch(bench, job.group)
    first = await bench.store.pack(mine, [job.id, job.id], "w1", 60.0)
    second = await bench.store.pack(mine, [job.id], "w1", 60.0)
    assert first == second
    assert first is not None
    assert first.job_count == 1


@on_every_store
async def test_jobs_of_another_group_tier_or_ending_are_not_packed(bench: Bench) -> None:
    job = await accepted(bench)
    others = [
        await accepted(bench, account="other"),
        await accepted(bench, endpoint="/v1/embeddings"),
        await accepted(bench, tier=JobTier.FLEX),
        await accepted(bench),
    ]
    await bench.store.cancel(others[-1].id)
    ids = [job.id, *(other.id for other in others), "unknown"]
    batch = await bench.store.pack(new_batch(bench, job.group), ids, "w1", 60.0)
    assert batch is not None
    assert await bench.store.batch_job_ids(batch.id) == (job.id,)


@on_every_store
async def test_a_batch_and_its_jobs_move_in_one_step(bench: Bench) -> None:
    batch, ids = await packed(bench)
    uploaded = await bench.store.commit_batch(
        held(batch), BatchMove(BatchEvent.UPLOAD, input_file_id="file-1", input_bytes=99)
    )
    assert (uploaded.batch.state, uploaded.batch.input_file_id) == (BatchState.UPLOADED, "file-1")
    assert uploaded.batch.input_bytes == 99
    done = await bench.store.commit_batch(
        held(batch),
        BatchMove(BatchEvent.CREATE, provider_id="batch_1", submitted=bench.now, due=bench.now + 30),
        [JobChange(JobEvent.SUBMIT, ids)],
    )
    assert (done.batch.state, done.applied, done.refused) == (BatchState.CREATED, ids, {})
    assert {(job.state, job.attempts) for job in await bench.store.jobs(ids)} == {(JobState.SUBMITTED, 1)}
    assert await bench.store.batch(batch.id) == done.batch
    with pytest.raises(LeaseLost):
        await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.END))
    assert await bench.store.claim_batches("w2", 60.0, 10) == ()
    bench.clock.advance(30)
    (again,) = await bench.store.claim_batches("w2", 60.0, 10)
    assert (again.provider_id, again.due) == ("batch_1", bench.now)
    assert held(again).token > held(batch).token


@on_every_store
async def test_settling_ends_every_job_with_its_own_outcome(bench: Bench) -> None:
    batch, ids = await created(bench, 4)
    await bench.store.cancel(ids[3])
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.END, ending="completed"))
    source = f"batch:{batch.id}"
    settled = await bench.store.commit_batch(
        held(batch),
        BatchMove(BatchEvent.SETTLE, due=bench.now),
        [
            JobChange(JobEvent.SUCCEED, ids[:1], answer=answer(source), booking=booking(ids[0], source)),
            JobChange(JobEvent.RETRY, ids[1:2], due=bench.now + 50, ready=bench.now + 5),
            JobChange(JobEvent.EXPIRE, ids[2:3]),
            JobChange(JobEvent.SUCCEED, ids[3:], answer=answer(source), booking=booking(ids[3], source)),
        ],
    )
    assert settled.batch.state is BatchState.SETTLED
    assert settled.applied == ids[:3]
    assert settled.refused == {ids[3]: JobState.CANCELLED}
    states = {job.id: (job.state, job.batch_id) for job in await bench.store.jobs(ids)}
    assert states == {
        ids[0]: (JobState.SUCCEEDED, None),
        ids[1]: (JobState.ACCEPTED, None),
        ids[2]: (JobState.EXPIRED, None),
        ids[3]: (JobState.CANCELLED, None),
    }
    assert await bench.store.answer(ids[0]) == answer(source)
    assert await bench.store.answer(ids[3]) is None
    assert await bench.store.bookings(ids[0]) == (booking(ids[0], source),)
    assert await bench.store.bookings(ids[3]) == ()
    assert await bench.store.batch_job_ids(batch.id) == ids
    assert await bench.store.batch_job_ids(batch.id, only_open=True) == ()


@on_every_store
async def test_a_batch_that_holds_jobs_cannot_be_settled(bench: Bench) -> None:
    batch, ids = await created(bench)
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.END))
    with pytest.raises(Conflict) as caught:
        await bench.store.commit_batch(
            held(batch),
            BatchMove(BatchEvent.SETTLE),
            [JobChange(JobEvent.SUCCEED, ids[:1], answer=answer())],
        )
    assert caught.value.state is BatchState.ENDED
    assert {job.state for job in await bench.store.jobs(ids)} == {JobState.SUBMITTED}
    assert await bench.store.answer(ids[0]) is None


@on_every_store
async def test_results_may_come_in_parts(bench: Bench) -> None:
    batch, ids = await created(bench, 3)
    source = f"batch:{batch.id}"
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.END))
    part = [JobChange(JobEvent.SUCCEED, ids[:1], answer=answer(source), booking=booking(ids[0], source))]
    first = await bench.store.commit_batch(held(batch), None, part)
    again = await bench.store.commit_batch(held(batch), None, part)
    assert first.applied == again.applied == ids[:1]
    assert again.batch.state is BatchState.ENDED
    assert await bench.store.batch_job_ids(batch.id, only_open=True) == ids[1:]
    rest = await bench.store.commit_batch(
        held(batch), BatchMove(BatchEvent.SETTLE), [JobChange(JobEvent.RETRY, ids[1:], due=bench.now)]
    )
    assert rest.applied == ids[1:]


@on_every_store
async def test_moves_that_the_table_does_not_know_write_nothing(bench: Bench) -> None:
    batch, ids = await packed(bench)
    for event in (BatchEvent.END, BatchEvent.SETTLE, BatchEvent.CLEAN):
        with pytest.raises(Conflict) as caught:
            await bench.store.commit_batch(
                held(batch), BatchMove(event, note="never"), [JobChange(JobEvent.SUBMIT, ids)]
            )
        assert caught.value.state is BatchState.INTENT
    assert await bench.store.batch(batch.id) == batch
    assert {job.state for job in await bench.store.jobs(ids)} == {JobState.PACKED}


@on_every_store
async def test_a_stalled_worker_cannot_write_over_its_successor(bench: Bench) -> None:
    batch, ids = await packed(bench)
    bench.clock.advance(61)
    (taken,) = await bench.store.claim_batches("w2", 60.0, 10)
    late = BatchMove(BatchEvent.CREATE, provider_id="batch_late")
    with pytest.raises(LeaseLost):
        await bench.store.commit_batch(held(batch), late, [JobChange(JobEvent.SUBMIT, ids)])
    with pytest.raises(LeaseLost):
        await bench.store.split(held(batch), [])
    assert await bench.store.batch(batch.id) == taken
    assert {job.state for job in await bench.store.jobs(ids)} == {JobState.PACKED}
    await bench.store.commit_batch(held(taken), BatchMove(BatchEvent.CREATE, provider_id="batch_1"))


@on_every_store
async def test_an_abandoned_batch_gives_its_jobs_back(bench: Bench) -> None:
    batch, ids = await packed(bench)
    with pytest.raises(Conflict):
        await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.ABANDON))
    done = await bench.store.commit_batch(
        held(batch), BatchMove(BatchEvent.ABANDON), [JobChange(JobEvent.RETURN, ids, ready=bench.now + 1)]
    )
    assert done.batch.state is BatchState.ABANDONED
    assert {(job.state, job.attempts) for job in await bench.store.jobs(ids)} == {(JobState.ACCEPTED, 0)}
    (pool,) = await bench.store.pools()
    assert (pool.jobs, pool.oldest) == (2, bench.now + 1)


@on_every_store
async def test_a_refused_batch_is_split_in_one_step(bench: Bench) -> None:
    batch, ids = await created(bench, 5)
    await bench.store.cancel(ids[1])
    halves = [
        (new_batch(bench, batch.group, due=bench.now + 20), ids[:2]),
        (new_batch(bench, batch.group, due=bench.now + 20), ids[2:4]),
        (new_batch(bench, batch.group), ids[1:2]),
    ]
    made = await bench.store.split(held(batch), halves)
    assert [part.id for part in made] == [half.id for half, _ in halves[:2]]
    assert [part.job_count for part in made] == [1, 2]
    assert {part.parent_id for part in made} == {batch.id}
    assert {part.state for part in made} == {BatchState.INTENT}
    old = await bench.store.batch(batch.id)
    assert old is not None
    assert old.state is BatchState.REFUSED
    states = [(job.state, job.batch_id) for job in await bench.store.jobs(ids)]
    assert states == [
        (JobState.PACKED, made[0].id),
        (JobState.CANCELLED, None),
        (JobState.PACKED, made[1].id),
        (JobState.PACKED, made[1].id),
        (JobState.ACCEPTED, None),
    ]
    (claim,) = await bench.store.claim_batches("w2", 60.0, 10)
    assert claim.id == batch.id
    bench.clock.advance(20)
    claims = await bench.store.claim_batches("w2", 60.0, 10)
    assert {part.id for part in claims} == {part.id for part in made}


@on_every_store
async def test_what_is_settled_cannot_be_split(bench: Bench) -> None:
    batch, ids = await created(bench, 1)
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.END))
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.SETTLE), [JobChange(JobEvent.FAIL, ids)])
    with pytest.raises(Conflict) as caught:
        await bench.store.split(held(batch), [(new_batch(bench, batch.group), ids)])
    assert caught.value.state is BatchState.SETTLED


@on_every_store
async def test_a_job_that_a_batch_holds_can_be_rescued_beside_it(bench: Bench) -> None:
    batch, ids = await created(bench)
    rescued = await bench.store.claim_job(ids[0], "w2", 60.0)
    assert rescued is not None
    begun = await bench.store.commit_job(held(rescued), JobChange(JobEvent.BEGIN_RESCUE, ids[:1]))
    assert (begun.state, begun.rescue_begun, begun.batch_id) == (
        JobState.SUBMITTED,
        bench.now,
        batch.id,
    )
    await bench.store.commit_job(held(rescued), JobChange(JobEvent.RESCUE, ids[:1], answer=answer("rescue")))
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.END))
    done = await bench.store.commit_batch(
        held(batch),
        BatchMove(BatchEvent.SETTLE),
        [JobChange(JobEvent.SUCCEED, (job_id,), answer=answer("batch:x")) for job_id in ids],
    )
    assert done.refused == {ids[0]: JobState.RESCUED}
    found = await bench.store.answer(ids[0])
    assert found is not None
    assert found.source == "rescue"


@on_every_store
async def test_a_batch_leaves_the_lease_of_a_rescuer_alone(bench: Bench) -> None:
    batch, ids = await created(bench, 1)
    rescuer = await bench.store.claim_job(ids[0], "w2", 60.0)
    assert rescuer is not None
    await bench.store.commit_batch(
        held(batch), None, [JobChange(JobEvent.RETRY, ids, due=bench.now, ready=bench.now)]
    )
    assert await bench.store.candidates(batch.group, 10) == ()
    assert await bench.store.claim_jobs("w3", 60.0, 10) == ()
    done = await bench.store.commit_job(
        held(rescuer), JobChange(JobEvent.RESCUE, ids, answer=answer("rescue"))
    )
    assert done.state is JobState.RESCUED
    assert await bench.store.pools() == ()


@on_every_store
async def test_a_job_in_another_batch_by_now_is_refused(bench: Bench) -> None:
    batch, ids = await created(bench, 1)
    await bench.store.commit_batch(held(batch), None, [JobChange(JobEvent.RETRY, ids)])
    second = await bench.store.pack(new_batch(bench, batch.group), ids, "w2", 60.0)
    assert second is not None
    late = await bench.store.commit_batch(
        held(batch), None, [JobChange(JobEvent.EXPIRE, ids), JobChange(JobEvent.FAIL, ("unknown",))]
    )
    assert late.refused == {ids[0]: JobState.PACKED, "unknown": None}


@on_every_store
async def test_a_deleted_job_does_not_keep_its_batch(bench: Bench) -> None:
    batch, ids = await created(bench)
    await bench.store.delete(ids[0])
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.END))
    done = await bench.store.commit_batch(
        held(batch),
        BatchMove(BatchEvent.SETTLE),
        [JobChange(JobEvent.SUCCEED, (job_id,), answer=answer()) for job_id in ids],
    )
    assert (done.applied, done.refused) == (ids[1:], {ids[0]: None})


@on_every_store
async def test_two_changes_of_one_job_are_a_mistake(bench: Bench) -> None:
    batch, ids = await created(bench)
    with pytest.raises(ValueError, match="two changes"):
        await bench.store.commit_batch(
            held(batch), None, [JobChange(JobEvent.FAIL, ids), JobChange(JobEvent.EXPIRE, ids[:1])]
        )
    assert {job.state for job in await bench.store.jobs(ids)} == {JobState.SUBMITTED}


@on_every_store
async def test_a_cleaned_batch_has_no_credential_and_goes_after_its_time(bench: Bench) -> None:
    job = await accepted(bench)
    batch = await bench.store.pack(new_batch(bench, job.group, credential=b"sealed"), [job.id], "w1", 60.0)
    assert batch is not None
    await bench.store.commit_batch(
        held(batch), BatchMove(BatchEvent.ABANDON), [JobChange(JobEvent.FAIL, (job.id,))]
    )
    clean = await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.CLEAN))
    assert (clean.batch.state, clean.batch.credential) == (BatchState.CLEANED, None)
    assert (await bench.store.census()).batches == {BatchState.CLEANED: 1}
    bench.clock.advance(RETENTION_SECONDS)
    assert await bench.store.claim_batches("w1", 60.0, 10) == ()
    assert await bench.store.purge() == 2
    assert await bench.store.batch(batch.id) is None
    assert (await bench.store.census()).batches == {}


@on_every_store
async def test_a_batch_is_renewed_and_given_back_like_a_job(bench: Bench) -> None:
    batch, _ = await packed(bench)
    bench.clock.advance(50)
    await bench.store.renew(held(batch), 60.0)
    bench.clock.advance(50)
    assert await bench.store.claim_batches("w2", 60.0, 10) == ()
    await bench.store.release(held(batch), due=bench.now + 5)
    assert await bench.store.claim_batches("w2", 60.0, 10) == ()
    bench.clock.advance(5)
    assert len(await bench.store.claim_batches("w2", 60.0, 10)) == 1
    assert await bench.store.claim_batches("w3", 60.0, 10) == ()


@on_stores("memory", "sqlite", "valkey")
async def test_more_jobs_than_one_step_moves_make_one_batch(bench: Bench) -> None:
    jobs = []
    for _ in range(10):
        jobs += await asyncio.gather(*(accepted(bench) for _ in range(STEP_JOBS // 10 + 1)))
    ids = tuple(job.id for job in jobs)
    assert len(ids) > STEP_JOBS
    batch = await bench.store.pack(new_batch(bench, jobs[0].group), ids, "w1", 60.0)
    assert batch is not None
    assert (batch.job_count, batch.input_tokens) == (len(ids), 10 * len(ids))
    assert batch.input_bytes == sum(job.body_bytes for job in jobs)
    assert await bench.store.batch_job_ids(batch.id, only_open=True) == ids
    done = await bench.store.commit_batch(
        held(batch), BatchMove(BatchEvent.CREATE), [JobChange(JobEvent.SUBMIT, (*ids, "unknown"))]
    )
    assert (done.batch.state, done.applied, done.refused) == (BatchState.CREATED, ids, {"unknown": None})
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.END))
    done = await bench.store.commit_batch(
        held(batch), BatchMove(BatchEvent.SETTLE), [JobChange(JobEvent.EXPIRE, ids)]
    )
    assert done.batch.state is BatchState.SETTLED
    assert (await bench.store.census()).jobs == {JobState.EXPIRED: len(ids)}
