from __future__ import annotations

import asyncio
import json

from proxy.core.clock import SystemClock
from proxy.core.exchange import Exchange
from proxy.dialects.responses import RESPONSES
from proxy.http.head import Header, RequestHead
from proxy.jobs.model import Job
from proxy.jobs.response_ids import response_id
from proxy.lanes.batch.parents import Parents
from proxy.lanes.batch.task import OpenTasks
from proxy.lanes.lane import Outgoing
from tests.support.direct_lane import outgoing, pool
from tests.support.replies import Reply
from tests.unit.lanes.batch.benches import ALICE, HOLD, LaneBench, ok, on_a_lane

REQUEST = b'{"model":"gpt-5-mini", "input":"And why?","previous_response_id":"%b"}'


def ask(bench: LaneBench, job: Job, headers: tuple[tuple[bytes, bytes], ...] = ALICE) -> Reply:
    loop = asyncio.get_running_loop()
    lane = Parents(loop, SystemClock(), bench.store, bench.direct, lambda: bench.lane.salt, OpenTasks())
    body = REQUEST % response_id(job.id).encode()
    planned = outgoing(pool(loop, bench.direct.clock), body, RESPONSES)
    lines: list[Header] = [(name.lower(), name, value) for name, value in headers]
    head = RequestHead(b"POST", b"/v1/responses", "1.1", lines)
    reply = Reply()
    lane.carry(Outgoing(head, planned.pool, body, planned.plan), Exchange("r", 0.0), reply)
    return reply


def parent_sent(bench: LaneBench) -> tuple[str, int | None]:
    sent = bench.direct.calls[0].outgoing
    return json.loads(sent.body or b"")["previous_response_id"], sent.plan.length_bytes


@on_a_lane
async def test_waits_for_the_response_and_goes_on_under_the_providers_id(bench: LaneBench) -> None:
    bench.ask(HOLD)
    job = await bench.job()
    ask(bench, job)
    await asyncio.sleep(0.05)
    assert bench.direct.calls == []
    await bench.end(job, ok(b'{"id":"resp_of_the_provider"}'))
    await bench.called_direct()
    parent, length = parent_sent(bench)
    assert parent == "resp_of_the_provider"
    assert length == len(bench.direct.calls[0].outgoing.body or b"")


@on_a_lane
async def test_anothers_response_is_the_upstreams_business(bench: LaneBench) -> None:
    bench.ask(HOLD)
    job = await bench.job()
    ask(bench, job, headers=((b"Authorization", b"Bearer sk-bob"),))
    await bench.called_direct()
    assert parent_sent(bench)[0] == response_id(job.id)


@on_a_lane
async def test_a_caller_is_told_when_its_patience_is_over(bench: LaneBench) -> None:
    bench.ask(HOLD)
    reply = ask(bench, await bench.job(), headers=(*ALICE, (b"x-stainless-read-timeout", b"5")))
    for _ in range(200):
        if reply.is_over:
            break
        await asyncio.sleep(0.01)
    assert reply.error is not None
    assert reply.error.kind.code == "job_pending"


@on_a_lane
async def test_without_the_store_the_request_goes_as_it_is(bench: LaneBench) -> None:
    bench.ask(HOLD)
    job = await bench.job()
    bench.store.is_away = True
    ask(bench, job)
    await bench.called_direct()
    assert parent_sent(bench)[0] == response_id(job.id)
