from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import msgspec

from proxy.http.head import ResponseHead
from proxy.jobs.changes import JobChange
from proxy.jobs.model import Answer, Delivery, JobError, JobState, JobTier
from proxy.jobs.transitions import JobEvent
from proxy.policy.model import BatchPolicy, OnDisconnect
from tests.unit.lanes.batch.benches import AGAIN, ALICE, BODY, HOLD, LATE, LaneBench, ok, on_a_lane

TICKET = msgspec.structs.replace(HOLD, delivery=Delivery.TICKET, hold_seconds=None)
STREAM = BODY.replace(b"{", b'{"stream":true,', 1)


@on_a_lane
async def test_a_held_caller_gets_the_answer_of_its_job_and_nothing_before(bench: LaneBench) -> None:
    asked = bench.ask()
    job = await bench.job()
    await asyncio.sleep(0.05)
    assert asked.reply.events == []
    await bench.end(job, ok())
    reply = await bench.over(asked)
    assert reply.heads[0].status == 200
    assert json.loads(bytes(reply.body))["id"] == "chatcmpl-1"
    assert asked.heartbeats == []
    assert asked.exchange.deferred is not None
    assert (asked.exchange.deferred.job_id, asked.exchange.deferred.tier) == (job.id, "flex")
    assert bench.direct.calls == []


@on_a_lane
async def test_an_answer_counts_as_delivered_only_once_it_is_told(bench: LaneBench) -> None:
    asked = bench.ask()
    job = await bench.job()
    await bench.end(job, ok())
    await bench.over(asked)
    assert (await bench.ends(JobState.DELIVERED)).ended_as is JobState.SUCCEEDED


@on_a_lane
async def test_a_held_stream_is_kept_alive_and_told_as_events(bench: LaneBench) -> None:
    asked = bench.ask(body=STREAM)
    job = await bench.job()
    await bench.end(job, ok())
    reply = await bench.over(asked)
    assert asked.heartbeats
    assert asked.heartbeats[0] < 15
    assert reply.heads[0].fields[b"content-type"].startswith(b"text/event-stream")
    assert bytes(reply.body).endswith(b"data: [DONE]\n\n")
    assert b"stream" not in (await bench.store.bodies((job.id,)))[job.id]


@on_a_lane
async def test_a_refusal_of_the_provider_is_told_to_a_stream_as_an_error_event(bench: LaneBench) -> None:
    asked = bench.ask(body=STREAM)
    said = b'{"error":{"message":"no such thing","code":"bad_thing"}}'
    refusal = Answer(400, said, (("content-type", "application/json"),), "call:1")
    await bench.end(await bench.job(), refusal)
    reply = await bench.over(asked)
    assert reply.heads[0].fields[b"content-type"].startswith(b"text/event-stream")
    event = json.loads(bytes(reply.body).removeprefix(b"data: "))
    assert (event["error"]["message"], event["error"]["code"]) == ("no such thing", "bad_thing")
    assert asked.exchange.upstream_status == 400


@on_a_lane
async def test_a_retry_attaches_and_both_get_the_one_answer(bench: LaneBench) -> None:
    first = bench.ask()
    job = await bench.job()
    second = bench.ask(headers=AGAIN)
    await asyncio.sleep(0.02)
    await bench.end(job, ok())
    assert bytes((await bench.over(first)).body) == bytes((await bench.over(second)).body)
    assert await bench.job()


@on_a_lane
async def test_others_never_attach(bench: LaneBench) -> None:
    bench.ask(headers=((b"Authorization", b"Bearer sk-alice"),))
    bench.ask(headers=((b"Authorization", b"Bearer sk-bob"),))
    bench.ask(headers=((b"Authorization", b"Bearer sk-alice"), (b"OpenAI-Project", b"p2")))
    assert len({job.owner for job in await bench.jobs(3)}) == 3


# ---- the caller leaves


@on_a_lane
async def test_a_job_outlives_its_caller_for_a_moment_only(bench: LaneBench) -> None:
    asked = bench.ask()
    job = await bench.job()
    asked.call.cancel()
    await asyncio.sleep(0.01)
    assert (await bench.job()).is_live
    await bench.ends()
    assert bench.cancelled == [job.id]
    assert asked.reply.events == []


@on_a_lane
async def test_a_retry_within_the_moment_keeps_the_job(bench: LaneBench) -> None:
    asked = bench.ask()
    job = await bench.job()
    asked.call.cancel()
    again = bench.ask(headers=AGAIN)
    await asyncio.sleep(0.15)
    assert bench.cancelled == []
    await bench.end(job, ok())
    assert (await bench.over(again)).heads[0].status == 200


@on_a_lane
async def test_a_retry_in_another_process_keeps_the_job(bench: LaneBench) -> None:
    asked = bench.ask()
    job = await bench.job()
    asked.call.cancel()
    await bench.store.accept(replace(job, id="b" * 32), BODY)
    await asyncio.sleep(0.15)
    assert (await bench.job()).is_live
    assert bench.cancelled == []


@on_a_lane
async def test_a_ticket_for_a_held_job_is_kept_when_the_held_caller_leaves(bench: LaneBench) -> None:
    held = bench.ask()
    job = await bench.job()
    headers = ((b"Authorization", b"Bearer sk-alice"),)
    ticket = bench.ask(msgspec.structs.replace(TICKET, deadline_seconds=86_400.0), headers=headers)
    assert (await bench.over(ticket)).heads[0].status == 202
    held.call.cancel()
    await asyncio.sleep(0.15)
    seen = await bench.job()
    assert (seen.id, seen.is_live, seen.delivery) == (job.id, True, Delivery.TICKET)
    assert seen.deadline - job.deadline > 80_000
    assert (held.exchange.deferred and held.exchange.deferred.is_attached) is False
    assert ticket.exchange.deferred is not None
    assert ticket.exchange.deferred.is_attached


@on_a_lane
async def test_a_route_may_keep_the_jobs_of_callers_who_left(bench: LaneBench) -> None:
    asked = bench.ask(policy=BatchPolicy(on_disconnect=OnDisconnect.KEEP))
    await bench.job()
    asked.call.cancel()
    await asyncio.sleep(0.15)
    assert (await bench.job()).is_live


@on_a_lane
async def test_what_was_promised_goes_on_without_its_caller(bench: LaneBench) -> None:
    asked = bench.ask(TICKET)
    reply = await bench.over(asked)
    assert reply.heads[0].status == 202
    asked.call.cancel()
    await asyncio.sleep(0.15)
    assert (await bench.job()).is_live


# ---- never an error because of us


@on_a_lane
async def test_without_the_store_a_request_goes_direct_and_says_why(bench: LaneBench) -> None:
    bench.store.is_away = True
    asked = bench.ask()
    await bench.called_direct()
    assert asked.exchange.lane is not None
    assert asked.exchange.lane.value.value == "stream"
    assert asked.exchange.lane.reason == "job store unavailable (deferrable)"


@on_a_lane
async def test_what_a_store_may_have_taken_unheard_is_cancelled_later(bench: LaneBench) -> None:
    asked = bench.ask()
    job = await bench.job()
    asked.call.cancel()
    bench.lane.forget(job.id)
    await asyncio.sleep(0)
    await bench.lane.clean()
    assert not (await bench.job()).is_live


@on_a_lane
async def test_where_no_worker_is_the_request_goes_direct_in_time(bench: LaneBench) -> None:
    asked = bench.ask(LATE)
    job = await bench.job()
    await bench.called_direct()
    assert "no worker had taken the job up" in (asked.exchange.lane.reason if asked.exchange.lane else "")
    assert bench.cancelled == [job.id]
    asked.call.cancel()
    assert bench.direct.calls[0].is_cancelled


@on_a_lane
async def test_a_store_that_goes_away_does_not_take_its_callers_along(bench: LaneBench) -> None:
    asked = bench.ask(msgspec.structs.replace(LATE, deadline_seconds=0.3))
    await bench.job()
    bench.store.is_away = True
    await bench.called_direct()
    assert "job store unavailable" in (asked.exchange.lane.reason if asked.exchange.lane else "")


@on_a_lane
async def test_what_has_begun_without_a_coding_goes_on_without_one(bench: LaneBench) -> None:
    bench.ask(LATE, body=STREAM, headers=(*ALICE, (b"Accept-Encoding", b"gzip")))
    bench.ask(LATE, headers=(*ALICE, (b"Accept-Encoding", b"gzip")))
    await bench.called_direct(2)
    begun, silent = sorted(bench.direct.calls, key=lambda call: call.outgoing.body != STREAM)
    assert begun.outgoing.plan.replaced == {b"accept-encoding": b"identity"}
    assert silent.outgoing.plan.replaced == {}


@on_a_lane
async def test_a_job_that_failed_without_an_answer_is_asked_direct(bench: LaneBench) -> None:
    asked = bench.ask()
    await bench.end(await bench.job(), error=JobError("credential_unreadable", "another key"))
    await bench.called_direct()
    assert "credential_unreadable" in (asked.exchange.lane.reason if asked.exchange.lane else "")


@on_a_lane
async def test_a_direct_call_that_a_worker_makes_is_not_made_twice(bench: LaneBench) -> None:
    asked = bench.ask(LATE)
    held = await bench.store.claim_job((await bench.job()).id, "worker", 30.0)
    assert held is not None
    assert held.lease is not None
    moved = JobChange(JobEvent.SUBMIT, (held.id,), tier=JobTier.DIRECT)
    await bench.store.commit_job(held.lease, moved)
    await asyncio.sleep(0.3)
    assert bench.direct.calls == []
    await bench.store.commit_job(held.lease, JobChange(JobEvent.SUCCEED, (held.id,), answer=ok()))
    assert (await bench.over(asked)).heads[0].status == 200


@on_a_lane
async def test_a_body_that_is_no_utf8_goes_direct(bench: LaneBench) -> None:
    bench.ask(body=BODY.replace(b"hi", b"\xff"))
    await bench.called_direct()
    assert bench.direct.calls[0].outgoing.body == BODY.replace(b"hi", b"\xff")


@on_a_lane
async def test_a_caller_whose_time_is_over_is_told_to_come_again(bench: LaneBench) -> None:
    asked = bench.ask(msgspec.structs.replace(HOLD, hold_seconds=0.1))
    await bench.job()
    reply = await bench.over(asked)
    assert reply.error is not None
    assert (reply.error.kind.code, reply.error.retry_after_seconds) == ("job_pending", 5)
    assert (await bench.job()).is_live


@on_a_lane
async def test_held_callers_are_let_go_when_the_process_ends_and_their_jobs_stay(bench: LaneBench) -> None:
    asked = bench.ask()
    await bench.job()
    await asyncio.sleep(0.02)
    bench.lane.release()
    reply = await bench.over(asked)
    assert reply.error is not None
    assert (reply.error.kind.code, reply.error.retry_after_seconds) == ("shutting_down", 5)
    await asyncio.sleep(0.15)
    assert (await bench.job()).is_live


@on_a_lane
async def test_an_operators_cancellation_is_told(bench: LaneBench) -> None:
    asked = bench.ask()
    await bench.store.cancel((await bench.job()).id)
    reply = await bench.over(asked)
    assert reply.error is not None
    assert reply.error.kind.code == "job_cancelled"


@on_a_lane
async def test_a_job_that_expired_while_its_caller_has_time_is_asked_direct(bench: LaneBench) -> None:
    """Workers that do not know its upstream any more let it expire; the caller's own request may reach it."""
    asked = bench.ask()
    held = await bench.store.claim_job((await bench.job()).id, "worker", 30.0)
    assert held is not None
    assert held.lease is not None
    await bench.store.commit_job(held.lease, JobChange(JobEvent.EXPIRE, (held.id,)))
    await bench.called_direct()
    assert asked.exchange.lane is not None
    assert asked.exchange.lane.reason.startswith("the job expired without an answer")


@on_a_lane
async def test_a_job_that_expired_too_late_for_a_call_is_told_so(bench: LaneBench) -> None:
    asked = bench.ask(msgspec.structs.replace(HOLD, direct_seconds=61.0, deadline_seconds=600.0))
    held = await bench.store.claim_job((await bench.job()).id, "worker", 30.0)
    assert held is not None
    assert held.lease is not None
    await bench.store.commit_job(held.lease, JobChange(JobEvent.EXPIRE, (held.id,)))
    reply = await bench.over(asked)
    assert reply.events == ["failed job_expired"]
    assert bench.direct.calls == []


@on_a_lane
async def test_a_stream_that_was_opened_and_then_refused_reads_the_providers_words(bench: LaneBench) -> None:
    asked = bench.ask(LATE, body=STREAM)
    await bench.called_direct()
    refusal = b'{"error":{"message":"No such model.","code":"model_not_found"}}'
    provider = bench.direct.calls[0].reply
    provider.head_received(ResponseHead(404, b"Not Found", [(b"content-type", b"", b"application/json")]))
    provider.flush()
    provider.body_received(refusal[:9])
    assert asked.reply.heads == []
    provider.body_received(refusal[9:])
    provider.response_ended()
    reply = await bench.over(asked)
    assert reply.heads[0].status == 200
    error = json.loads(bytes(reply.body).removeprefix(b"data: "))["error"]
    assert (error["message"], error["code"]) == ("No such model.", "model_not_found")


@on_a_lane
async def test_a_stream_that_was_opened_and_then_begins_passes_as_it_comes(bench: LaneBench) -> None:
    asked = bench.ask(LATE, body=STREAM)
    await bench.called_direct()
    provider = bench.direct.calls[0].reply
    head = ResponseHead(200, b"OK", [(b"content-type", b"Content-Type", b"text/event-stream")])
    provider.head_received(head)
    provider.body_received(b"data: 1")
    provider.flush()
    assert asked.reply.heads == [head]
    assert asked.reply.events == ["head", "body", "flush"]
    provider.response_ended()
    assert bytes((await bench.over(asked)).body) == b"data: 1"
