"""Whose end is told: the notice becomes due in the very step that ends the job, is claimed once, noted."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.jobs.changes import BatchMove, JobChange
from proxy.jobs.model import Delivery, Job, JobError, JobState, JobTier
from proxy.jobs.store import LeaseLost
from proxy.jobs.transitions import BatchEvent, JobEvent
from tests.support.jobs import (
    BODY,
    DURABLE_KINDS,
    RETENTION_SECONDS,
    Bench,
    accepted,
    answer,
    held,
    new_batch,
    new_job,
    on_every_store,
    on_stores,
)


async def ended(bench: Bench, event: JobEvent = JobEvent.SUCCEED, **fields: Any) -> Job:
    """Accept a job that wishes a notice and end it."""
    job = await accepted(bench, **({"tier": JobTier.DIRECT, "due": bench.now, "webhook": "ops"} | fields))
    claim = await bench.store.claim_job(job.id, "w1", 60.0)
    assert claim is not None
    await bench.store.commit_job(held(claim), JobChange(JobEvent.SUBMIT, (job.id,)))
    reply = answer("call:1") if event in (JobEvent.SUCCEED, JobEvent.RESCUE) else None
    error = None if reply is not None else JobError("code", "message")
    return await bench.store.commit_job(held(claim), JobChange(event, (job.id,), answer=reply, error=error))


async def claim_one(bench: Bench, worker: str = "w9", lease_seconds: float = 60.0) -> Job:
    (job,) = await bench.store.claim_notices(worker, lease_seconds, 10)
    return job


@on_every_store
async def test_every_ending_of_a_promised_answer_is_to_be_told(bench: Bench) -> None:
    endings = (JobEvent.SUCCEED, JobEvent.RESCUE, JobEvent.FAIL, JobEvent.EXPIRE, JobEvent.CANCEL)
    for delivery in (Delivery.TICKET, Delivery.BACKGROUND):
        for event in endings:
            job = await ended(bench, event, delivery=delivery)
            assert (job.notice_due, job.webhook) == (bench.now, "ops"), (delivery, event)
            told = await claim_one(bench)
            assert (told.id, told.ended_as) == (job.id, job.state)


@on_every_store
async def test_a_job_that_its_owner_cancels_is_told(bench: Bench) -> None:
    job = await accepted(bench, webhook="ops")
    await bench.store.cancel(job.id)
    assert (await claim_one(bench)).id == job.id


@on_every_store
async def test_jobs_that_end_with_a_batch_are_told(bench: Bench) -> None:
    jobs = [await accepted(bench, webhook=name) for name in ("ops", "")]
    ids = tuple(job.id for job in jobs)
    batch = await bench.store.pack(new_batch(bench, jobs[0].group), ids, "w1", 60.0)
    assert batch is not None
    changes = [
        JobChange(JobEvent.SUBMIT, ids),
    ]
    await bench.store.commit_batch(held(batch), BatchMove(BatchEvent.CREATE), changes)
    await bench.store.commit_batch(
        held(batch), None, [JobChange(JobEvent.SUCCEED, (each,), answer=answer()) for each in ids]
    )
    assert (await claim_one(bench)).id == jobs[0].id


@on_every_store
async def test_held_calls_and_jobs_without_a_webhook_are_not_told(bench: Bench) -> None:
    await ended(bench, delivery=Delivery.HOLD)
    await ended(bench, webhook="")
    await accepted(bench, webhook="ops")
    bench.clock.advance(10)
    assert await bench.store.claim_notices("w9", 60.0, 10) == ()


@on_every_store
async def test_a_notice_is_claimed_once_and_again_when_its_lease_is_over(bench: Bench) -> None:
    job = await ended(bench)
    first = await claim_one(bench, "w1", 30.0)
    assert await bench.store.claim_notices("w2", 30.0, 10) == ()
    bench.clock.advance(31)
    second = await claim_one(bench, "w2", 30.0)
    assert (first.id, second.id, held(second).token > held(first).token) == (job.id, job.id, True)
    await bench.store.noted(held(first), None, "told", is_try=False)
    assert (await bench.store.get(job.id)) == second
    with pytest.raises(LeaseLost):
        await bench.store.renew(held(first), 30.0)


@on_every_store
async def test_a_lease_that_is_renewed_keeps_others_away(bench: Bench) -> None:
    await ended(bench)
    job = await claim_one(bench, "w1", 30.0)
    bench.clock.advance(20)
    await bench.store.renew(held(job), 30.0)
    bench.clock.advance(20)
    assert await bench.store.claim_notices("w2", 30.0, 10) == ()
    await bench.store.release(held(job))
    assert (await claim_one(bench, "w2")).id == job.id


@on_every_store
async def test_what_is_told_is_told_no_more(bench: Bench) -> None:
    job = await ended(bench)
    await bench.store.noted(held(await claim_one(bench)), None, "told", is_try=False)
    bench.clock.advance(1000)
    assert await bench.store.claim_notices("w9", 60.0, 10) == ()
    seen = await bench.store.get(job.id)
    assert seen is not None
    assert (seen.notice_due, seen.notice_tries, seen.notice_note) == (None, 0, "told")


@on_every_store
async def test_a_failed_try_is_counted_and_due_again(bench: Bench) -> None:
    job = await ended(bench)
    due = bench.now + 300.0
    await bench.store.noted(held(await claim_one(bench)), due, "it answered 500", is_try=True)
    assert await bench.store.claim_notices("w9", 60.0, 10) == ()
    bench.clock.advance(301)
    again = await claim_one(bench)
    assert (again.id, again.notice_due, again.notice_tries) == (job.id, due, 1)
    await bench.store.noted(held(again), bench.now + 5.0, "the webhook is disabled", is_try=False)
    seen = await bench.store.get(job.id)
    assert seen is not None
    assert (seen.notice_tries, seen.notice_note) == (1, "the webhook is disabled")


@on_every_store
async def test_busy_webhooks_are_left_alone_and_the_longest_due_comes_first(bench: Bench) -> None:
    jobs = []
    for name in ("one", "two", "three"):
        jobs.append(await ended(bench, webhook=name))
        bench.clock.advance(1)
    claimed = await bench.store.claim_notices("w9", 60.0, 10, frozenset({"two"}))
    assert [job.id for job in claimed] == [jobs[0].id, jobs[2].id]
    assert [job.id for job in await bench.store.claim_notices("w9", 60.0, 10)] == [jobs[1].id]


@on_every_store
async def test_delivery_does_not_take_a_notice_back(bench: Bench) -> None:
    job = await ended(bench)
    await bench.store.deliver(job.id)
    assert (await claim_one(bench)).state is JobState.DELIVERED


@on_every_store
async def test_ended_jobs_with_a_notice_are_not_claimed_as_work(bench: Bench) -> None:
    await ended(bench)
    job = await claim_one(bench)
    await bench.store.release(held(job))
    bench.clock.advance(10_000)
    assert await bench.store.claim_jobs("w1", 60.0, 10) == ()


@on_every_store
async def test_a_job_that_is_tried_again_has_a_new_notice_at_its_new_end(bench: Bench) -> None:
    job = await ended(bench, JobEvent.FAIL)
    claim = await claim_one(bench)
    await bench.store.reset(job.id, tier=JobTier.DIRECT, due=bench.now, deadline=bench.now + 60)
    await bench.store.noted(held(claim), bench.now + 5.0, "it answered 500", is_try=True)
    bench.clock.advance(61)
    assert await bench.store.claim_notices("w9", 60.0, 10) == ()
    await bench.store.cancel(job.id)
    again = await claim_one(bench)
    assert (again.notice_tries, again.notice_note, again.notice_due) == (0, "", bench.now)


@on_every_store
async def test_a_ticket_that_joins_an_ended_held_job_is_told(bench: Bench) -> None:
    job = await ended(bench, delivery=Delivery.HOLD, attach_key="same")
    bench.clock.advance(5)
    joining = new_job(bench, attach_key="same", delivery=Delivery.TICKET, webhook="ops")
    joined = await bench.store.accept(joining, BODY)
    assert (joined.is_new, joined.job.id, joined.job.notice_due) == (False, job.id, bench.now)
    await bench.store.noted(held(await claim_one(bench)), None, "told", is_try=False)
    again = new_job(bench, attach_key="same", delivery=Delivery.TICKET, webhook="ops")
    assert (await bench.store.accept(again, BODY)).job.id == job.id
    assert await bench.store.claim_notices("w9", 60.0, 10) == ()


@on_every_store
async def test_a_ticket_that_joins_a_live_held_job_has_its_end_told(bench: Bench) -> None:
    job = await accepted(bench, delivery=Delivery.HOLD, attach_key="same", webhook="ops")
    await bench.store.accept(new_job(bench, attach_key="same", webhook="ops"), BODY)
    await bench.store.cancel(job.id)
    assert (await claim_one(bench)).id == job.id


@on_every_store
async def test_a_deleted_or_purged_job_is_told_no_more(bench: Bench) -> None:
    deleted, purged = await ended(bench), await ended(bench)
    await bench.store.delete(deleted.id)
    claim = await claim_one(bench)
    assert claim.id == purged.id
    bench.clock.advance(RETENTION_SECONDS + 1)
    await bench.store.purge()
    await bench.store.noted(held(claim), bench.now, "it answered 500", is_try=True)
    assert await bench.store.claim_notices("w9", 60.0, 10) == ()
    assert await bench.store.get(purged.id) is None


@on_every_store
async def test_somebody_who_waits_for_work_hears_of_a_notice(bench: Bench) -> None:
    job = await accepted(bench, webhook="ops")
    other = await bench.another()
    await bench.store.cancel(job.id)
    assert [each.id for each in await other.claim_notices("w2", 60.0, 10)] == [job.id]


@on_stores(*DURABLE_KINDS)
async def test_a_notice_is_still_there_for_the_next_process(bench: Bench) -> None:
    job = await ended(bench)
    await claim_one(bench, "killed", 30.0)
    later = await bench.another()
    bench.clock.advance(31)
    assert [each.id for each in await later.claim_notices("w2", 30.0, 10)] == [job.id]
