"""What callers and operators may rely on, whichever store keeps the jobs."""

from __future__ import annotations

import asyncio

import pytest

from proxy.jobs.changes import JobChange, JobQuery
from proxy.jobs.model import NEVER, Delivery, Job, JobError, JobState, JobTier
from proxy.jobs.store import Conflict
from proxy.jobs.transitions import JobEvent
from tests.support.jobs import (
    BODY,
    RETENTION_SECONDS,
    Bench,
    accepted,
    answer,
    booking,
    held,
    new_job,
    on_every_store,
)


async def ended(bench: Bench, event: JobEvent = JobEvent.SUCCEED, **fields: object) -> Job:
    """Accept a job and end it."""
    job = await accepted(bench, **fields)
    claimed = await bench.store.claim_job(job.id, "w1", 60.0)
    assert claimed is not None
    await bench.store.commit_job(held(claimed), JobChange(JobEvent.SUBMIT, (job.id,), tier=JobTier.FLEX))
    change = JobChange(event, (job.id,), error=JobError("gone_wrong", "it went wrong"))
    if event is JobEvent.SUCCEED:
        change = JobChange(event, (job.id,), answer=answer("call:1"), booking=booking(job.id, "call:1"))
    return await bench.store.commit_job(held(claimed), change)


@on_every_store
async def test_a_job_is_kept_as_it_was_given(bench: Bench) -> None:
    job = new_job(
        bench,
        headers=(("x-beta", "a"), ("x-beta", "b")),
        credential=b"\x00\xffsealed",
        is_borrowing=True,
        model='m"\\ü',
        tiers=(JobTier.FLEX, JobTier.BATCH),
        created=bench.now + 0.123456789,
    )
    result = await bench.store.accept(job, BODY)
    found = await bench.store.get(job.id)
    assert result.is_new
    assert found == result.job
    assert found is not None
    assert found.credential == b"\x00\xffsealed"
    assert (found.created, found.headers, found.tiers) == (job.created, job.headers, job.tiers)
    assert (found.model, found.group, found.body_bytes) == (job.model, job.group, len(BODY))
    assert found.purge_at == job.deadline + RETENTION_SECONDS
    assert await bench.store.bodies([job.id, "unknown"]) == {job.id: BODY}


@on_every_store
async def test_a_body_is_kept_byte_for_byte(bench: Bench) -> None:
    body = bytes(range(256)) * 300
    job = new_job(bench)
    await bench.store.accept(job, body)
    assert await bench.store.bodies([job.id]) == {job.id: body}


@on_every_store
async def test_a_retry_attaches_to_its_job_and_makes_no_second(bench: Bench) -> None:
    first = await accepted(bench, attach_key="same")
    again = await bench.store.accept(new_job(bench, attach_key="same"), BODY)
    assert (again.job.id, again.is_new) == (first.id, False)
    assert (await bench.store.census()).jobs == {JobState.ACCEPTED: 1}


@on_every_store
async def test_many_retries_at_once_make_one_job(bench: Bench) -> None:
    other = await bench.another()
    stores = (bench.store, other)
    results = await asyncio.gather(
        *(stores[number % 2].accept(new_job(bench, attach_key="same"), BODY) for number in range(20))
    )
    assert len({result.job.id for result in results}) == 1
    assert sum(result.is_new for result in results) == 1


@on_every_store
async def test_the_same_acceptance_twice_is_one_job_and_new_both_times(bench: Bench) -> None:
    job = new_job(bench)
    first = await bench.store.accept(job, BODY)
    second = await bench.store.accept(job, BODY)
    assert first.is_new
    assert second == first
    assert (await bench.store.pools())[0].jobs == 1


@on_every_store
async def test_a_retry_after_the_end_meets_the_answer(bench: Bench) -> None:
    job = await ended(bench, attach_key="same")
    await bench.store.deliver(job.id)
    again = await bench.store.accept(new_job(bench, attach_key="same"), BODY)
    assert (again.job.id, again.is_new) == (job.id, False)
    assert await bench.store.bodies([job.id]) == {job.id: BODY}


@on_every_store
async def test_a_failed_job_gives_its_key_away(bench: Bench) -> None:
    job = await ended(bench, JobEvent.FAIL, attach_key="same")
    await bench.store.deliver(job.id)
    again = await bench.store.accept(new_job(bench, attach_key="same"), BODY)
    assert again.is_new
    third = await bench.store.accept(new_job(bench, attach_key="same"), BODY)
    assert third.job.id == again.job.id


@on_every_store
async def test_who_wants_no_attachment_gets_a_new_job(bench: Bench) -> None:
    first = await accepted(bench, attach_key="same")
    again = await bench.store.accept(new_job(bench, attach_key="same"), BODY, attach=False)
    assert again.is_new
    assert again.job.id != first.id


@on_every_store
async def test_the_retries_of_several_alike_find_several_whoever_died(bench: Bench) -> None:
    jobs = {(await bench.store.accept(new_job(bench, attach_key="same"), BODY, attach=False)).job.id}
    for _ in range(3):
        jobs.add((await bench.store.accept(new_job(bench, attach_key="same"), BODY, attach=False)).job.id)
    other = await bench.another()
    for round_number in (2, 3):
        found = [await other.accept(new_job(bench, attach_key="same"), BODY) for _ in range(4)]
        assert {result.job.id for result in found} == jobs
        assert {result.job.waiting for result in found} == {round_number}


@on_every_store
async def test_a_retry_takes_the_job_that_somebody_left_and_one_that_somebody_has_last(bench: Bench) -> None:
    had = await ended(bench, attach_key="same")
    await bench.store.deliver(had.id)
    waited, left = [
        (await bench.store.accept(new_job(bench, attach_key="same"), BODY, attach=False)).job
        for _ in range(2)
    ]
    await bench.store.leave(left.id)

    async def taken() -> str:
        return (await bench.store.accept(new_job(bench, attach_key="same"), BODY)).job.id

    assert await taken() == left.id
    await bench.store.cancel(left.id)
    assert await taken() == waited.id
    await bench.store.cancel(waited.id)
    assert await taken() == had.id


@on_every_store
async def test_who_is_promised_an_answer_makes_a_held_job_promised_and_gives_it_time(
    bench: Bench,
) -> None:
    holder = await accepted(
        bench, attach_key="same", delivery=Delivery.HOLD, deadline=bench.now + 600, due=bench.now + 540
    )
    ticket = new_job(bench, attach_key="same", delivery=Delivery.TICKET, deadline=bench.now + 86_400)
    joined = (await bench.store.accept(ticket, BODY)).job
    assert (joined.id, joined.delivery, joined.deadline) == (holder.id, Delivery.TICKET, ticket.deadline)
    assert (joined.wanted_by, joined.due) == (holder.deadline, holder.due)
    assert joined.purge_at == ticket.deadline + RETENTION_SECONDS
    assert await bench.store.get(holder.id) == joined
    await bench.store.leave(holder.id)
    with pytest.raises(Conflict) as caught:
        await bench.store.cancel(holder.id, if_unwanted=True)
    assert caught.value.state is JobState.ACCEPTED


@on_every_store
async def test_who_has_less_time_is_rescued_sooner_and_breaks_no_promise(bench: Bench) -> None:
    promised = await accepted(
        bench, attach_key="same", delivery=Delivery.TICKET, deadline=bench.now + 7200, due=bench.now + 7000
    )
    hurried = new_job(bench, attach_key="same", delivery=Delivery.HOLD, deadline=bench.now + 600)
    joined = (await bench.store.accept(hurried, BODY)).job
    assert (joined.delivery, joined.deadline) == (Delivery.TICKET, promised.deadline)
    assert (joined.wanted_by, joined.due) == (bench.now + 600, bench.now + 400)
    assert await bench.store.claim_jobs("w1", 60.0, 10) == ()
    bench.clock.advance(400)
    assert [job.id for job in await bench.store.claim_jobs("w1", 60.0, 10)] == [promised.id]


@on_every_store
async def test_a_job_is_cancelled_for_want_of_callers_only_where_none_is_left(bench: Bench) -> None:
    job = await accepted(bench, attach_key="same", delivery=Delivery.HOLD)
    other = await bench.another()
    again = new_job(bench, attach_key="same", delivery=Delivery.HOLD)
    await bench.store.leave(job.id)
    assert (await other.accept(again, BODY)).job.id == job.id
    with pytest.raises(Conflict) as caught:
        await bench.store.cancel(job.id, if_unwanted=True)
    assert caught.value.state is JobState.ACCEPTED
    await other.leave(job.id)
    assert (await bench.store.cancel(job.id, if_unwanted=True)).id == job.id
    await bench.store.leave("unknown")


@on_every_store
async def test_only_the_owner_sees_a_job(bench: Bench) -> None:
    job = await accepted(bench, owner="owner-a")
    assert await bench.store.get(job.id, "owner-a") == job
    assert await bench.store.get(job.id, "owner-b") is None
    assert (await bench.store.list_jobs(JobQuery(owner="owner-b"))).jobs == ()


@on_every_store
async def test_unknown_things_are_nothing(bench: Bench) -> None:
    store = bench.store
    assert await store.get("unknown") is None
    assert await store.jobs(["unknown"]) == ()
    assert await store.answer("unknown") is None
    assert await store.batch("unknown") is None
    assert await store.batch_job_ids("unknown") == ()
    assert await store.bookings("unknown") == ()
    assert await store.wait("unknown", 0.0) is None
    assert await store.claim_job("unknown", "w1", 1.0) is None
    assert not await store.delete("unknown")
    for refused in (store.cancel("unknown"), store.deliver("unknown")):
        with pytest.raises(Conflict) as caught:
            await refused
        assert caught.value.state is None


@on_every_store
async def test_pages_follow_each_other_without_gap_or_repetition(bench: Bench) -> None:
    jobs = [await accepted(bench, created=bench.now + number // 3) for number in range(10)]
    expected = sorted(jobs, key=lambda job: (job.created, job.id), reverse=True)
    found: list[str] = []
    cursor = None
    while True:
        page = await bench.store.list_jobs(JobQuery(limit=4, cursor=cursor))
        found += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
        await accepted(bench, created=bench.now + 100)
    assert found == [job.id for job in expected]


@on_every_store
async def test_lists_can_be_narrowed(bench: Bench) -> None:
    old = await accepted(bench, created=bench.now - 50, upstream="azure")
    done = await ended(bench)
    live = await accepted(bench)

    async def ids(**wanted: object) -> set[str]:
        return {job.id for job in (await bench.store.list_jobs(JobQuery(**wanted))).jobs}  # type: ignore[arg-type]

    assert await ids() == {old.id, done.id, live.id}
    assert await ids(states=frozenset({JobState.SUCCEEDED})) == {done.id}
    assert await ids(states=frozenset({JobState.SUCCEEDED, JobState.ACCEPTED}), upstream="openai") == {
        done.id,
        live.id,
    }
    assert await ids(created_before=bench.now - 10) == {old.id}
    assert await ids(upstream="nobody") == set()


@on_every_store
async def test_cancelling_ends_a_job_and_tells_what_it_was(bench: Bench) -> None:
    job = await accepted(bench, credential=b"sealed", is_borrowing=True)
    before = await bench.store.cancel(job.id)
    after = await bench.store.get(job.id)
    assert before.state is JobState.ACCEPTED
    assert after is not None
    assert (after.state, after.ended_as) == (JobState.CANCELLED, JobState.CANCELLED)
    assert (after.credential, after.due, after.ended) == (None, NEVER, bench.now)
    assert await bench.store.pools() == ()
    with pytest.raises(Conflict) as caught:
        await bench.store.cancel(job.id)
    assert caught.value.state is JobState.CANCELLED


@on_every_store
async def test_what_is_delivered_remembers_how_it_ended(bench: Bench) -> None:
    job = await ended(bench)
    for _ in range(2):
        delivered = await bench.store.deliver(job.id)
        assert (delivered.state, delivered.ended_as) == (JobState.DELIVERED, JobState.SUCCEEDED)
    assert await bench.store.answer(job.id) == answer("call:1")
    live = await accepted(bench)
    with pytest.raises(Conflict) as caught:
        await bench.store.deliver(live.id)
    assert caught.value.state is JobState.ACCEPTED


@on_every_store
async def test_a_failed_job_can_be_tried_again(bench: Bench) -> None:
    job = await ended(bench, JobEvent.FAIL)
    deadline = bench.now + 7200
    fresh = await bench.store.reset(job.id, tier=JobTier.BATCH, due=deadline, deadline=deadline)
    assert (fresh.state, fresh.deadline, fresh.due, fresh.error) == (
        JobState.ACCEPTED,
        deadline,
        deadline,
        None,
    )
    assert (fresh.ended, fresh.ended_as, fresh.attempts) == (None, None, 1)
    assert (await bench.store.pools())[0].jobs == 1
    assert await bench.store.get(job.id) == fresh


@on_every_store
async def test_what_succeeded_or_lost_its_credential_is_not_tried_again(bench: Bench) -> None:
    good = await ended(bench)
    borrowing = await ended(bench, JobEvent.EXPIRE, is_borrowing=True, credential=b"sealed")
    for job in (good, borrowing):
        with pytest.raises(Conflict) as caught:
            await bench.store.reset(job.id, tier=JobTier.BATCH, due=0.0, deadline=bench.now)
        assert caught.value.state is job.state


@on_every_store
async def test_deletion_leaves_no_trace(bench: Bench) -> None:
    job = await ended(bench, attach_key="same")
    assert await bench.store.delete(job.id)
    assert not await bench.store.delete(job.id)
    assert await bench.store.get(job.id) is None
    assert await bench.store.bodies([job.id]) == {}
    assert await bench.store.answer(job.id) is None
    assert await bench.store.bookings(job.id) == ()
    assert (await bench.store.list_jobs(JobQuery())).jobs == ()
    assert (await bench.store.census()).jobs == {}
    assert (await bench.store.accept(new_job(bench, attach_key="same"), BODY)).is_new


@on_every_store
async def test_a_live_job_can_be_deleted(bench: Bench) -> None:
    job = await accepted(bench)
    assert await bench.store.delete(job.id)
    assert await bench.store.pools() == ()
    bench.clock.advance(7200)
    assert await bench.store.claim_jobs("w1", 60.0, 10) == ()


@on_every_store
async def test_retention_is_over_when_it_says_so(bench: Bench) -> None:
    job = await ended(bench)
    bench.clock.advance(RETENTION_SECONDS - 1)
    kept = await accepted(bench)
    assert await bench.store.purge() == 0
    bench.clock.advance(1)
    assert await bench.store.purge() == 1
    assert await bench.store.get(job.id) is None
    assert await bench.store.answer(job.id) is None
    assert await bench.store.get(kept.id) == kept


@on_every_store
async def test_purging_takes_no_more_than_it_is_told(bench: Bench) -> None:
    for _ in range(5):
        await ended(bench)
    bench.clock.advance(RETENTION_SECONDS)
    assert await bench.store.purge(limit=3) == 3
    assert await bench.store.purge(limit=3) == 2
    assert (await bench.store.census()).jobs == {}


@on_every_store
async def test_waiting_ends_with_the_job_in_this_process_and_in_another(bench: Bench) -> None:
    other = await bench.another()
    job = await accepted(bench)
    waits = [asyncio.ensure_future(store.wait(job.id, 10.0)) for store in (bench.store, other)]
    await asyncio.sleep(0.05)
    await bench.store.cancel(job.id)
    for found in await asyncio.wait_for(asyncio.gather(*waits), 3.0):
        assert found is not None
        assert found.state is JobState.CANCELLED


@on_every_store
async def test_waiting_ends_when_the_job_is_deleted(bench: Bench) -> None:
    job = await accepted(bench)
    wait = asyncio.ensure_future(bench.store.wait(job.id, 10.0))
    await asyncio.sleep(0.02)
    await bench.store.delete(job.id)
    assert await asyncio.wait_for(wait, 3.0) is None


@on_every_store
async def test_impatient_waiters_see_how_it_stands(bench: Bench) -> None:
    job = await accepted(bench)
    assert await bench.store.wait(job.id, 0.02) == job
    done = await ended(bench)
    assert await bench.store.wait(done.id, 10.0) == done


@on_every_store
async def test_a_wait_that_is_cancelled_ends_in_whichever_moment_that_is(bench: Bench) -> None:
    job = await accepted(bench)
    for turns in range(60):
        wait = asyncio.ensure_future(bench.store.wait(job.id, 10.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(wait, 1.0)


@on_every_store
async def test_a_cancelled_wait_leaves_nothing_behind(bench: Bench) -> None:
    job = await accepted(bench)
    wait = asyncio.ensure_future(bench.store.wait(job.id, 10.0))
    await asyncio.sleep(0.01)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    await bench.store.cancel(job.id)


@on_every_store
async def test_acceptance_is_word_of_work_here_and_elsewhere(bench: Bench) -> None:
    other = await bench.another()
    assert not await bench.store.wait_for_work(0.3)
    waits = [asyncio.ensure_future(store.wait_for_work(10.0)) for store in (bench.store, other)]
    await asyncio.sleep(0.3)
    await accepted(bench)
    assert await asyncio.wait_for(asyncio.gather(*waits), 3.0) == [True, True]


@on_every_store
async def test_the_salt_is_one_for_all(bench: Bench) -> None:
    other = await bench.another()
    first, second = await asyncio.gather(bench.store.salt(), other.salt())
    assert first == second == await bench.store.salt()
    assert len(first) == 32
