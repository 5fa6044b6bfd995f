"""The stream lane against a real upstream: what is sent again, what never is, and who is told what."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.clock import SystemClock
from proxy.core.exchange import Exchange
from proxy.core.upstream import Timeouts, Upstream
from proxy.http.deadlines import Deadlines
from proxy.http.head import RequestHead, ResponseHead
from proxy.http.limits import ClientLimits
from proxy.lanes.lane import Call, Outgoing, Rewrite
from proxy.lanes.stream import StreamLane, _retry_after_seconds
from proxy.upstream.pool import Pool
from proxy.upstream.refusals import Refusals
from proxy.upstream.request_head import BodyPlan
from proxy.upstream.target import make_target
from tests.support.raw_upstream import Call as UpstreamCall
from tests.support.raw_upstream import RawUpstream, Script
from tests.support.replies import Reply

BODY = b'{"model":"m","max_tokens":9}'
PLAIN = b'{"model":"m"}'
MUCH = b"u" * 1_000_000


def ok(call: UpstreamCall) -> None:
    call.json(b"{}")


class Bench:
    """A lane with one pool, and what went through it."""

    def __init__(self, upstream: RawUpstream, loop: asyncio.AbstractEventLoop, described: Upstream) -> None:
        self.upstream = upstream
        self.clock = SystemClock()
        self.deadlines = Deadlines(loop, self.clock, 0.01)
        self.refusals = Refusals(self.clock)
        self.pool = Pool(make_target(described, {}), loop, self.deadlines, ClientLimits())
        self.lane = StreamLane(loop, self.clock, self.refusals)
        self.exchange = Exchange("id", self.clock.monotonic())

    def carry(
        self,
        body: bytes | None = BODY,
        rewrite: Rewrite | None = None,
        plan: BodyPlan | None = None,
        patience_seconds: float = 60.0,
    ) -> tuple[Call, Reply]:
        """Send one request."""
        length = len(body) if body is not None else None
        head = RequestHead(b"POST", b"/v1/x", "1.1", [(b"host", b"Host", b"weir")])
        outgoing = Outgoing(head, self.pool, body, plan or BodyPlan(length), rewrite, patience_seconds)
        reply = Reply()
        self.exchange = Exchange("id", self.clock.monotonic())
        return self.lane.carry(outgoing, self.exchange, reply), reply

    async def answered(self, body: bytes | None = BODY, rewrite: Rewrite | None = None) -> Reply:
        """Send one request and wait for its end."""
        _, reply = self.carry(body, rewrite)
        await until(lambda: reply.is_over)
        assert reply.faults == []
        return reply

    @property
    def bodies(self) -> list[bytes]:
        """What the upstream received."""
        return [call.body for call in self.upstream.calls]


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@asynccontextmanager
async def bench(script: Script, reads_body: bool = True, **described: Any) -> AsyncIterator[Bench]:
    with RawUpstream(script, reads_body=reads_body) as upstream:
        loop = asyncio.get_running_loop()
        up = Upstream("up", upstream.url, timeouts=Timeouts(1.0, 2.0, 2.0), **described)
        made = Bench(upstream, loop, up)
        made.deadlines.start()
        try:
            yield made
        finally:
            made.pool.close()
            await until(lambda: made.pool.open_connections == 0)
            assert len(made.deadlines) == 0
            made.deadlines.stop()


def run(test: Coroutine[Any, Any, None]) -> None:
    uvloop.run(test)


# --- connections --------------------------------------------------------------------------------------------


def test_requests_one_after_another_use_one_connection() -> None:
    async def test() -> None:
        async with bench(ok) as on:
            for _ in range(5):
                reply = await on.answered()
                assert reply.body == b"{}"
            assert on.upstream.connections == 1
            assert on.exchange.connect_seconds == 0.0

    run(test())


def test_waiting_for_a_connection_is_queueing_and_making_one_is_connecting() -> None:
    def slow(call: UpstreamCall) -> None:
        time.sleep(0.05)
        call.json(b"{}")

    async def test() -> None:
        async with bench(slow, max_connections=1) as on:
            _, reply_of_first = on.carry()
            first = on.exchange
            _, reply_of_second = on.carry()
            second = on.exchange
            await until(lambda: reply_of_first.is_over and reply_of_second.is_over)
            assert first.connect_seconds > 0
            assert first.queue_seconds == 0
            assert second.queue_seconds > 0.03
            assert second.connect_seconds == 0

    run(test())


def test_a_body_that_cannot_be_sent_twice_gets_a_connection_of_its_own() -> None:
    async def test() -> None:
        async with bench(ok) as on:
            await on.answered()
            call, reply = on.carry(None, plan=BodyPlan(5))
            call.send_body(b"hel")
            call.send_body(b"lo")
            call.end_body()
            await until(lambda: reply.is_over)
            assert on.bodies[-1] == b"hello"
            assert on.upstream.connections == 2

    run(test())


# --- sending again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_connection_that_was_closed_unnoticed_harms_nobody(end: str) -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def script(call: UpstreamCall) -> None:
        call.json(b"{}")
        if call.number == 0:
            may_end.wait(5)
            call.close() if end == "close" else call.reset()
            has_ended.set()

    async def test() -> None:
        async with bench(script) as on:
            await on.answered()
            may_end.set()
            assert has_ended.wait(5)  # blocks the event loop, which therefore hears nothing of it
            reply = await on.answered()
            assert reply.body == b"{}"
            assert reply.events == ["head", "body", "ended"]
            assert on.exchange.retries == 1
            assert on.bodies == [BODY, BODY]

    run(test())


def test_what_dies_on_a_fresh_connection_is_never_sent_again() -> None:
    async def test() -> None:
        async with bench(lambda call: call.reset(), retries=3, retry_statuses=(503,)) as on:
            reply = await on.answered()
            assert reply.events == ["failed upstream_closed"]
            assert len(on.upstream.calls) == 1
            assert on.exchange.retries == 0

    run(test())


def test_a_refused_connection_is_tried_again_as_often_as_the_policy_says() -> None:
    async def test() -> None:
        with RawUpstream(ok) as gone:
            url = gone.url
        described = Upstream("up", url, retries=1)
        on = Bench(gone, asyncio.get_running_loop(), described)
        begin = time.monotonic()
        reply = await on.answered()
        assert reply.events == ["failed upstream_connect_failed"]
        assert on.exchange.retries == 1
        assert time.monotonic() - begin >= 0.5
        assert on.exchange.queue_seconds == 0.5

    run(test())


def scripted(*answers: tuple[bytes, bytes]) -> Script:
    """Answer the `n`th request with the `n`th (status, headers)."""

    def script(call: UpstreamCall) -> None:
        status, headers = answers[min(call.number, len(answers) - 1)]
        call.json(b'{"n":%d}' % call.number, status, headers)

    return script


BUSY = (b"503 Busy", b"Retry-After: 0\r\n")


@pytest.mark.parametrize(("retries", "seen"), [(0, b'{"n":0}'), (1, b'{"n":1}'), (5, b'{"n":2}')])
def test_a_listed_status_is_tried_again_as_often_as_the_policy_says(retries: int, seen: bytes) -> None:
    async def test() -> None:
        script = scripted(BUSY, BUSY, (b"200 OK", b""))
        async with bench(script, retries=retries, retry_statuses=(503,)) as on:
            reply = await on.answered()
            assert reply.body == seen
            assert on.exchange.retries == min(retries, 2)

    run(test())


def test_a_status_is_not_tried_again_when_the_caller_would_be_gone() -> None:
    async def test() -> None:
        script = scripted((b"429 Slow down", b"Retry-After: 20\r\n"), (b"200 OK", b""))
        async with bench(script, retries=5, retry_statuses=(429,)) as on:
            _, reply = on.carry(patience_seconds=10)
            await until(lambda: reply.is_over)
            assert reply.heads[0].status == 429
            assert len(on.upstream.calls) == 1

    run(test())


@given(st.binary(max_size=12))
def test_whatever_a_retry_header_says_is_a_sane_wait_or_none(value: bytes) -> None:
    head = ResponseHead(503, b"", [(b"retry-after", b"Retry-After", value)])
    seconds = _retry_after_seconds(head)
    assert seconds is None or 0 <= seconds < float("inf")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"3", 3.0),
        (b"0", 0.0),
        (b"-1", None),
        (b"nan", None),
        (b"inf", None),
        (b"1e400", None),
        (b"soon", None),
    ],
)
def test_seconds_are_read_and_nonsense_is_not(value: bytes, seconds: float | None) -> None:
    head = ResponseHead(503, b"", [(b"retry-after", b"Retry-After", value)])
    assert _retry_after_seconds(head) == seconds


def test_milliseconds_win_over_seconds() -> None:
    fields = [(b"retry-after", b"Retry-After", b"3"), (b"retry-after-ms", b"retry-after-ms", b"250")]
    assert _retry_after_seconds(ResponseHead(503, b"", fields)) == 0.25


# --- what a policy changed and the upstream refuses ---------------------------------------------------------

REFUSAL = b'{"error":{"message":"Unsupported parameter: max_tokens","param":"max_tokens","code":"%b"}}'
UNSUPPORTED = REFUSAL % b"unsupported_parameter"


def refusing(body: bytes, times: int = 1) -> Script:
    def script(call: UpstreamCall) -> None:
        if call.number < times:
            call.json(body, b"400 Bad Request")
        else:
            call.json(b"{}")

    return script


def rewrite(original: bytes | None = PLAIN) -> Rewrite:
    return Rewrite(
        "m",
        frozenset({"max_tokens"}),
        lambda params: b'{"without":"%b"}' % " ".join(params).encode(),
        original,
    )


def test_a_parameter_that_was_added_and_is_refused_is_taken_out_once() -> None:
    async def test() -> None:
        async with bench(refusing(UNSUPPORTED)) as on:
            reply = await on.answered(rewrite=rewrite())
            assert reply.events.count("head") == 1
            assert reply.heads[0].status == 200
            assert on.bodies == [BODY, b'{"without":"max_tokens"}']
            assert on.refusals.known("up", "m") == {"max_tokens"}
            assert on.exchange.retries == 1

    run(test())


def test_another_refusal_is_answered_with_what_the_caller_wrote() -> None:
    async def test() -> None:
        async with bench(refusing(b'{"error":{"message":"bad messages"}}')) as on:
            reply = await on.answered(rewrite=rewrite())
            assert reply.heads[0].status == 200
            assert on.bodies == [BODY, PLAIN]
            assert on.refusals.known("up", "m") == frozenset()

    run(test())


def test_what_did_not_help_is_followed_by_what_the_caller_wrote() -> None:
    async def test() -> None:
        async with bench(refusing(UNSUPPORTED, times=3)) as on:
            reply = await on.answered(rewrite=rewrite())
            assert reply.heads[0].status == 400
            assert reply.body == UNSUPPORTED, "the refusal of that is the caller's to see"
            assert on.bodies == [BODY, b'{"without":"max_tokens"}', PLAIN]
            assert on.refusals.known("up", "m") == frozenset(), "it did not help"

    run(test())


def test_a_refusal_passes_whole_where_nothing_may_be_undone() -> None:
    async def test() -> None:
        said = b'{"error":{"message":"bad messages"}}'
        async with bench(refusing(said)) as on:
            reply = await on.answered(rewrite=rewrite(None))
            assert reply.heads[0].status == 400
            assert reply.body == said
            assert reply.events == ["head", "body", "ended"]

    run(test())


def test_a_long_refusal_passes_whole_too() -> None:
    async def test() -> None:
        said = b'{"error":{"message":"%b"}}' % (b"x" * 300_000)
        async with bench(refusing(said)) as on:
            reply = await on.answered(rewrite=rewrite())
            assert reply.heads[0].status == 400
            assert reply.body == said
            assert on.bodies == [BODY]

    run(test())


def test_a_refusal_that_breaks_off_is_a_failure() -> None:
    def script(call: UpstreamCall) -> None:
        call.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n{")
        call.close()

    async def test() -> None:
        async with bench(script) as on:
            reply = await on.answered(rewrite=rewrite())
            assert reply.events == ["failed upstream_closed"]
            assert len(on.bodies) == 1

    run(test())


# --- uploads ------------------------------------------------------------------------------------------------


def test_an_upload_waits_for_its_connection_and_is_sent_in_order() -> None:
    async def test() -> None:
        async with bench(ok) as on:
            call, reply = on.carry(None, plan=BodyPlan(None, is_chunked=True))
            for number in range(10):
                call.send_body(b"%d," % number)
            assert set(reply.events) == {"writable False"}, "the caller was not told to wait"
            call.end_body()
            await until(lambda: reply.is_over)
            assert on.bodies == [b"0,1,2,3,4,5,6,7,8,9,"]
            assert "writable True" in reply.events

    run(test())


def test_an_upload_that_the_upstream_does_not_take_keeps_its_caller_waiting() -> None:
    def deaf(call: UpstreamCall) -> None:
        time.sleep(1.0)
        call.close()

    async def test() -> None:
        async with bench(deaf, reads_body=False) as on:
            call, reply = on.carry(None, plan=BodyPlan(20 * len(MUCH)))
            for _ in range(20):
                call.send_body(MUCH)  # more than any kernel takes
            await until(lambda: len(on.upstream.calls) == 1)
            await asyncio.sleep(0.05)
            assert reply.events[-1] == "writable False", "the caller was told to go on, without bound"
            call.cancel()

    run(test())


# --- giving up ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["connecting", "queued", "waiting to retry", "sent", "refused", "relayed"])
def test_a_cancelled_request_leaves_nothing_and_says_nothing_more(phase: str) -> None:
    def script(call: UpstreamCall) -> None:
        match phase:
            case "waiting to retry":
                call.json(b"{}", b"503 Busy", b"Retry-After: 30\r\n")
            case "refused":
                call.send(b"HTTP/1.1 400 Bad\r\nContent-Length: 99\r\n\r\n{")
                call.wait_for_close(5)
            case "relayed":
                call.stream_head()
                call.wait_for_close(5)
            case _:
                call.wait_for_close(5)

    async def test() -> None:
        limit = 1 if phase == "queued" else 0
        async with bench(script, max_connections=limit, retries=1, retry_statuses=(503,)) as on:
            holder = on.carry()[0] if phase == "queued" else None
            call, reply = on.carry(rewrite=rewrite() if phase == "refused" else None)
            if phase != "connecting":
                await until(lambda: len(on.upstream.calls) == 1)
                await until(lambda: phase != "relayed" or bool(reply.heads))
                await asyncio.sleep(0.02)
            events = list(reply.events)
            call.cancel()
            call.cancel()
            if holder is not None:
                holder.cancel()
            await until(lambda: on.pool.in_use == 0)
            await asyncio.sleep(0.02)
            assert reply.events == events
            assert len(on.upstream.calls) <= 1

    run(test())


def test_a_caller_that_reads_too_slowly_stops_the_answer_from_its_first_byte_on() -> None:
    def flood(call: UpstreamCall) -> None:
        time.sleep(0.05)
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (20 * len(MUCH)))
        for _ in range(20):
            call.send(MUCH)

    async def test() -> None:
        async with bench(flood) as on:
            call, reply = on.carry()
            await until(lambda: len(on.upstream.calls) == 1)
            call.pause()
            await until(lambda: bool(reply.heads))
            await asyncio.sleep(0.1)
            assert len(reply.body) < 2 * len(MUCH), "read without a taker"
            call.resume()
            await until(lambda: reply.is_over)
            assert len(reply.body) == 20 * len(MUCH)

    run(test())
