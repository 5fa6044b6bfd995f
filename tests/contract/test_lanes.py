"""What every lane does, whatever else it does with a request: one answer, whole, once, to whoever waits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import cast

import pytest

from proxy.core.decision import ClosedBy, StepReport, StepStatus, Strategy, Urgency
from proxy.http.head import ResponseHead
from proxy.lanes.coalesce.lane import CoalesceLane
from proxy.lanes.lane import Rewrite
from tests.support.carried import Kind, carrying, run, until
from tests.support.lane_kinds import KINDS, serve
from tests.support.raw_upstream import Call
from tests.support.replies import Reply

MUCH = b"m" * 4_000_000
LATE_SECONDS = 0.03


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


class Gate:
    """A script that answers like `serve` once it is open; until then it shows who has come."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.gone: list[bool] = []

    def __call__(self, call: Call) -> None:
        if call.number == 0:
            assert self._opened.wait(5)
        serve(call)

    def open(self) -> None:
        self._opened.set()


# --- one request --------------------------------------------------------------------------------------------


def test_a_request_alone_is_sent_and_answered_byte_for_byte(kind: Kind) -> None:
    odd = b'{ "model" : "gpt-4o", "x": 1.0,  ' + kind.body[1:].replace(b'"model":"gpt-4o",', b"")
    raw = b'{ "usage": null, "odd": "\\u00e4", "data": [1.0] }'

    def script(call: Call) -> None:
        call.json(raw, headers=b"X-Odd: a\r\nx-ratelimit-limit: 3\r\nX-Odd: b\r\n")

    async def test() -> None:
        async with carrying(kind, script) as on:
            lines = [("X-Mine", " a"), ("traceparent", "00-1"), ("X-Request-Id", "7"), ("X-Mine", "b")]
            sent = on.carry(odd, lines)
            await on.over()
            (call,) = on.upstream.calls
            assert call.body == odd
            assert [
                header for header in call.headers if header[0] in (b"X-Mine", b"traceparent", b"X-Request-Id")
            ] == [(name.encode(), value.strip().encode()) for name, value in lines]
            (head,) = sent.reply.heads
            names = [name for _, name, _ in head.headers]
            assert names == [b"Content-Type", b"X-Odd", b"x-ratelimit-limit", b"X-Odd", b"Content-Length"]
            assert sent.body == raw

    run(test())


def test_a_request_says_how_it_was_carried_and_when_it_was_sent(kind: Kind) -> None:
    async def test() -> None:
        async with carrying(kind, serve) as on:
            sent = on.carry()
            await on.over()
            assert sent.status == 200
            exchange = sent.exchange
            assert exchange.sent_at >= exchange.started_at
            assert exchange.queue_seconds < 0.5
            if kind.strategy is None:
                assert exchange.pooled is None
            else:
                assert exchange.pooled is not None
                assert (exchange.pooled.strategy, exchange.pooled.size) == (kind.strategy, 1)
                assert exchange.pooled.closed_by is ClosedBy.IDLE
                assert exchange.pooled.is_leader

    run(test())


@pytest.mark.parametrize("status", [b"400 Bad Request", b"429 Too Many Requests", b"500 Oops", b"302 Found"])
def test_an_error_of_the_upstream_is_relayed_once_with_its_headers(kind: Kind, status: bytes) -> None:
    raw = b'{"error":{"message":"no"}}'

    async def test() -> None:
        async with carrying(kind, lambda call: call.json(raw, status, b"Retry-After: 7\r\n")) as on:
            sent = on.carry()
            await on.over()
            assert sent.status == int(status[:3])
            assert sent.reply.heads[0].fields[b"retry-after"] == b"7"
            assert sent.body == raw
            await asyncio.sleep(LATE_SECONDS)
            assert len(on.upstream.calls) == 1
            assert sent.reply.faults == []

    run(test())


def test_a_connection_that_breaks_is_told_once(kind: Kind) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        call.reset()

    async def test() -> None:
        async with carrying(kind, script) as on:
            sent = on.carry()
            await on.over()
            assert sent.reply.error is not None
            assert sent.reply.error.kind.code == "upstream_closed"
            await asyncio.sleep(LATE_SECONDS)
            assert len(on.upstream.calls) == 1

    run(test())


def test_an_upstream_that_is_not_there_is_told_once(kind: Kind) -> None:
    async def test() -> None:
        async with carrying(kind, serve, url="http://127.0.0.1:1/v1") as on:
            sent = on.carry()
            await on.over()
            assert sent.reply.error is not None
            assert sent.reply.error.kind.code == "upstream_connect_failed"
            assert sent.reply.heads == []

    run(test())


def test_a_policys_parameter_that_is_refused_is_taken_back(kind: Kind) -> None:
    def script(call: Call) -> None:
        if b'"added"' in call.body:
            call.json(b'{"error":{"message":"Unsupported parameter","param":"added"}}', b"400 Bad Request")
        else:
            serve(call)

    def without(params: Iterable[str]) -> bytes:
        assert tuple(params) == ("added",)
        return kind.body

    async def test() -> None:
        async with carrying(kind, script) as on:
            rewrite = Rewrite("m", frozenset({"added"}), without, None)
            sent = on.carry(b'{"added":1,' + kind.body[1:], rewrite=rewrite)
            sent.exchange.steps = (StepReport("adds", StepStatus.APPLIED, added=("added",)),)
            await on.over()
            assert sent.status == 200
            assert sent.exchange.taken_back == ("added",)
            assert on.upstream.calls[-1].body == kind.body

    run(test())


# --- leaving ------------------------------------------------------------------------------------------------


def test_leaving_before_anything_was_sent_ends_it(kind: Kind) -> None:
    async def test() -> None:
        async with carrying(kind, serve) as on:
            sent = on.carry()
            sent.call.cancel()
            sent.call.cancel()
            await asyncio.sleep(LATE_SECONDS)
            assert sent.reply.events == []
            again = on.carry()
            await on.over(again)
            assert again.status == 200

    run(test())


@pytest.mark.parametrize("sends_half", [False, True], ids=["before the answer", "within the answer"])
def test_leaving_closes_the_upstreams_connection(kind: Kind, sends_half: bool) -> None:
    closed = threading.Event()

    def script(call: Call) -> None:
        if call.number:
            serve(call)
            return
        if sends_half and kind.is_stream:
            call.stream_head()
            call.chunk(b": here\n\n")
        elif sends_half:
            call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
        if call.wait_for_close(2.0):
            closed.set()

    async def test() -> None:
        async with carrying(kind, script) as on:
            sent = on.carry()
            await until(lambda: bool(on.upstream.calls))
            if sends_half:
                await until(lambda: bool(sent.reply.heads))
            sent.call.cancel()
            told = list(sent.reply.events)
            await until(closed.is_set, 1.0)
            assert sent.reply.events == told
            again = on.carry()
            await on.over(again)
            assert again.status == 200

    run(test())


def test_leaving_after_the_end_changes_nothing(kind: Kind) -> None:
    async def test() -> None:
        async with carrying(kind, serve) as on:
            first = on.carry()
            await on.over()
            first.call.cancel()
            first.call.pause()
            first.call.resume()
            again = on.carry()
            await on.over()
            assert again.body == first.body
            assert on.upstream.connections == 1

    run(test())


def test_a_caller_may_leave_while_it_is_told(kind: Kind) -> None:
    async def test() -> None:
        async with carrying(kind, serve) as on:
            reply = Reply()
            sent = on.carry(reply=reply)
            reply.on_head = sent.call.cancel
            await until(lambda: bool(reply.heads))
            await asyncio.sleep(LATE_SECONDS)
            assert reply.events == ["head"]
            again = on.carry()
            await on.over(again)
            assert again.status == 200

    run(test())


# --- pace of reading ----------------------------------------------------------------------------------------


def test_a_paused_answer_stops_and_goes_on_whole(kind: Kind) -> None:
    def script(call: Call) -> None:
        if kind.is_stream:
            call.stream_head()
            for start in range(0, len(MUCH), 100_000):
                call.chunk(b": " + MUCH[start : start + 100_000] + b"\n\n")
            call.end_chunks()
        else:
            call.json(MUCH)

    async def test() -> None:
        async with carrying(kind, script) as on:
            reply = Reply()
            sent = on.carry(reply=reply)
            reply.on_head = sent.call.pause
            await until(lambda: bool(reply.heads))
            await asyncio.sleep(LATE_SECONDS)
            before = len(reply.body)
            await asyncio.sleep(LATE_SECONDS)
            assert len(reply.body) == before
            assert before < len(MUCH) / 2
            sent.call.resume()
            await on.over()
            assert sent.body.count(b"m") == len(MUCH)

    run(test())


# --- several requests ---------------------------------------------------------------------------------------


def test_many_at_once_get_one_answer_each(kind: Kind) -> None:
    gate = Gate()

    async def test() -> None:
        async with carrying(kind, gate) as on:
            for _ in range(20):
                on.carry()
            gate.open()
            await on.over()
            assert {sent.status for sent in on.sent} == {200}
            if kind.is_stream:
                texts = [
                    b"".join(line for line in each.body.split(b"\n") if b"to " in line) for each in on.sent
                ]
                assert all(text.count(b'"to ') == 1 for text in texts)
                assert all(each.body.endswith(b"data: [DONE]\n\n") for each in on.sent)
            else:
                counts = {len(each.json.get("data") or each.json["choices"]) for each in on.sent}
                assert counts == {json.loads(kind.body).get("n", 1)}
            if kind.strategy is not None:
                pooled = [sent.exchange.pooled for sent in on.sent]
                assert all(each is not None and each.strategy is kind.strategy for each in pooled)
                leaders = sum(1 for each in pooled if each is not None and each.is_leader)
                assert leaders <= len(on.upstream.calls)

    run(test())


def test_the_first_ones_departure_changes_nothing_for_the_others(kind: Kind) -> None:
    gate = Gate()

    async def test() -> None:
        async with carrying(kind, gate) as on:
            first, *others = [on.carry() for _ in range(5)]
            await until(lambda: bool(on.upstream.calls))
            first.call.cancel()
            gate.open()
            await on.over(*others)
            assert {sent.status for sent in others} == {200}
            assert first.reply.events == []

    run(test())


def test_a_failing_upstream_fails_each_caller_once_and_is_not_asked_more_often_than_there_are_callers(
    kind: Kind,
) -> None:
    async def test() -> None:
        async with carrying(kind, lambda call: call.json(b"{}", b"503 Service Unavailable")) as on:
            for _ in range(8):
                on.carry()
            await on.over()
            assert {sent.status for sent in on.sent} == {503}
            await asyncio.sleep(LATE_SECONDS)
            assert len(on.upstream.calls) <= 8

    run(test())


def test_one_callers_relay_that_raises_harms_no_other(kind: Kind) -> None:
    gate = Gate()

    def broken() -> None:
        raise RuntimeError("a relay of ours has a fault")

    async def test() -> None:
        async with carrying(kind, gate) as on:
            good = [on.carry() for _ in range(2)]
            bad = on.carry(reply=Reply(on_head=broken))
            good += [on.carry() for _ in range(2)]
            gate.open()
            await on.over(*good)
            await until(lambda: bad.reply.is_over)
            assert {sent.status for sent in good} == {200}
            assert bad.reply.error is not None
            assert bad.reply.error.kind.code == "internal_error"

    run(test())


def test_interactive_requests_are_answered_like_others(kind: Kind) -> None:
    async def test() -> None:
        async with carrying(kind, serve) as on:
            for _ in range(5):
                on.carry(urgency=Urgency.INTERACTIVE)
            await on.over()
            assert {sent.status for sent in on.sent} == {200}

    run(test())


def test_before_the_end_of_the_process_all_that_waits_is_sent_and_nothing_waits_any_more(kind: Kind) -> None:
    if kind.strategy is None:
        return
    gate = Gate()

    async def test() -> None:
        async with carrying(kind, gate) as on:
            for _ in range(4):
                on.carry()
            await until(lambda: bool(on.upstream.calls))
            cast(CoalesceLane, on.lane).flush()
            on.carry()
            # What is shared is not sent a second time; everything else is on its way before `max_wait`.
            calls = 1 if kind.strategy is Strategy.SHARE else 2
            await until(lambda: len(on.upstream.calls) >= calls, kind.policy.max_wait_seconds / 2)
            gate.open()
            await on.over()
            assert {sent.status for sent in on.sent} == {200}

    run(test())


def test_the_upstreams_head_is_told_before_its_body(kind: Kind) -> None:
    async def test() -> None:
        async with carrying(kind, serve) as on:
            for _ in range(3):
                on.carry()
            await on.over()
            for sent in on.sent:
                assert isinstance(sent.reply.heads[0], ResponseHead)
                told = [event for event in sent.reply.events if not event.startswith(("writable", "flush"))]
                assert told[0] == "head"
                assert told.count("head") == told.count("ended") == 1

    run(test())
