"""The upstream's connection over a wire in memory: answers, limits, reuse, and one end for every request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.http.client import ClientConnection, WaitLimits
from proxy.http.deadlines import Deadlines
from proxy.http.limits import ClientLimits
from proxy.http.memory import MemoryTransport, connect
from tests.support.replies import Reply
from tests.unit.http.messages import Message, cuts, every_cut, responses
from tests.unit.http.serving import settle

LIMITS = ClientLimits()
WAIT = WaitLimits(first_byte=10.0, idle=20.0, total=100.0)
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal"
MUCH = b"x" * 1_000_000


class Upstream(asyncio.Protocol):
    """The other end: what it received, and whether the connection still stands."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(MemoryTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class Owner:
    """Who keeps connections: counts what comes back and what is lost."""

    def __init__(self) -> None:
        self.released_count = 0
        self.lost_count = 0

    def released(self, connection: ClientConnection) -> None:
        assert not connection.is_closed
        self.released_count += 1

    def lost(self, connection: ClientConnection) -> None:
        self.lost_count += 1


class Wire:
    """A connection of ours to an upstream that the test plays."""

    def __init__(self, read_bytes: int | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.clock = ManualClock()
        self.deadlines = Deadlines(loop, self.clock, interval_seconds=0.001)
        self.owner = Owner()
        self.connection = ClientConnection(self.owner, LIMITS, self.deadlines)
        self.upstream = Upstream()
        connect(loop, self.connection, self.upstream, read_bytes)

    def ask(self, method: bytes = b"GET", wait: WaitLimits = WAIT, sends: bytes | None = REQUEST) -> Reply:
        """Send a request; without `sends` it stays unfinished."""
        reply = Reply()
        self.connection.start(reply, method, wait)
        if sends is not None:
            self.connection.write(sends)
            self.connection.request_sent()
        return reply

    async def answer(self, *pieces: bytes) -> None:
        """Send each piece as a read of its own."""
        for piece in pieces:
            self.upstream.transport.write(piece)
        await settle(len(pieces) + 5)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.deadlines.sweep()
        await settle(10)

    @property
    def is_over(self) -> bool:
        """Whether nothing of the connection is left, on either side."""
        return (
            self.connection.is_closed
            and self.owner.lost_count == 1
            and len(self.deadlines) == 0
            and self.upstream.is_lost
        )


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


# --- answers ------------------------------------------------------------------------------------------------


@given(st.lists(responses(), min_size=1, max_size=4), st.data())
def test_any_cut_of_one_answer_after_another_on_one_connection_is_relayed_the_same(
    messages: list[Message], data: st.DataObject
) -> None:
    all_pieces = [data.draw(cuts(message.raw)) for message in messages]

    async def test() -> None:
        wire = Wire()
        for count, (message, pieces) in enumerate(zip(messages, all_pieces, strict=True), start=1):
            reply = wire.ask()
            await wire.answer(*pieces)
            (head,) = reply.heads
            assert (b"%d" % head.status, head.reason) == message.start
            assert tuple((name, value) for _, name, value in head.headers) == message.headers
            assert reply.body == message.body
            assert reply.events[-1] == "ended"
            assert reply.faults == []
            assert wire.owner.released_count == count
        assert wire.connection.is_reused
        assert wire.upstream.received == REQUEST * len(messages)

    run(test())


def test_a_head_that_came_alone_is_flushed_and_one_with_a_body_is_not() -> None:
    async def test() -> None:
        for pieces in every_cut(OK):
            wire = Wire()
            reply = wire.ask()
            await wire.answer(*pieces)
            alone = any(b"".join(pieces[:count]) == OK[:-2] for count in range(len(pieces)))
            assert ("flush" in reply.events) is alone

    run(test())


@pytest.mark.parametrize(
    ("raw", "may_reuse"),
    [
        (OK, True),
        (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), False),
        (OK.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (
            OK.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"),
            True,
        ),
        (OK + b"more", False),
        (OK + OK, False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n", True),
    ],
)
def test_a_connection_is_kept_only_when_both_sides_are_in_step(raw: bytes, may_reuse: bool) -> None:
    async def test() -> None:
        wire = Wire()
        reply = wire.ask()
        await wire.answer(raw)
        assert reply.events[-1] == "ended"
        assert wire.owner.released_count == may_reuse
        assert wire.is_over is not may_reuse

    run(test())


def test_a_body_that_only_its_connection_ends_is_whole_after_an_end_and_not_after_a_reset() -> None:
    async def test() -> None:
        for end in ("close", "reset"):
            wire = Wire()
            reply = wire.ask()
            await wire.answer(b"HTTP/1.1 200 OK\r\n\r\n", b"all of it")
            transport = wire.upstream.transport
            transport.close() if end == "close" else transport.abort()
            await settle(10)
            assert reply.body == b"all of it"
            assert reply.events[-1] == ("ended" if end == "close" else "failed upstream_closed")
            assert wire.is_over
            assert wire.owner.released_count == 0

    run(test())


def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    async def test() -> None:
        for said in (OK, b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n", b"x"):
            wire = Wire()
            wire.ask()
            await wire.answer(OK)
            await wire.answer(said)
            assert wire.is_over

    run(test())


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize(
    ("sent", "is_retryable"),
    [(b"", True), (b"HTTP/1.1 200 OK\r\nContent-Le", True), (HALF, False), (HALF[:-3], False)],
    ids=["nothing", "half a head", "half a body", "head"],
)
@pytest.mark.parametrize("is_reused", [True, False])
def test_a_request_may_go_again_only_if_a_kept_connection_died_before_its_answer(
    is_reused: bool, sent: bytes, is_retryable: bool, end: str
) -> None:
    async def test() -> None:
        wire = Wire()
        if is_reused:
            wire.ask()
            await wire.answer(OK)
        reply = wire.ask()
        if sent:
            await wire.answer(sent)
        wire.upstream.transport.close() if end == "close" else wire.upstream.transport.abort()
        await settle(10)
        assert reply.error is not None
        assert reply.error.kind.code == "upstream_closed"
        assert reply.error.retryable is (is_reused and is_retryable and sent == b"")
        assert wire.is_over
        assert reply.faults == []

    run(test())


def test_an_answer_that_is_no_http_is_a_failure_and_ends_the_connection() -> None:
    async def test() -> None:
        for pieces in every_cut(b"SSH-2.0-x\r\n"):
            wire = Wire()
            reply = wire.ask()
            await wire.answer(*pieces)
            assert reply.events == ["failed upstream_protocol_error"]
            assert wire.is_over

    run(test())


def test_what_came_of_a_broken_body_is_handed_on_before_the_failure() -> None:
    async def test() -> None:
        wire = Wire()
        reply = wire.ask()
        await wire.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense")
        assert reply.events == ["head", "body", "failed upstream_protocol_error"]
        assert reply.body == b"hello"

    run(test())


def test_a_handler_that_raises_is_told_of_a_failure() -> None:
    def explode() -> None:
        raise LookupError("a bug")

    async def test() -> None:
        wire = Wire()
        reply = wire.ask()
        reply.on_head = explode
        await wire.answer(OK)
        assert reply.events == ["head", "failed internal_error"]
        assert wire.is_over

    run(test())


def test_a_cancelled_request_says_nothing_more() -> None:
    async def test() -> None:
        for sent in (b"", HALF[:20], HALF):
            wire = Wire()
            reply = wire.ask()
            if sent:
                await wire.answer(sent)
            events = list(reply.events)
            wire.connection.cancel()
            await settle(10)
            assert wire.is_over
            assert reply.events == events

    run(test())


def test_a_request_cancelled_at_its_head_says_nothing_more() -> None:
    async def test() -> None:
        wire = Wire()
        reply = wire.ask()
        reply.on_head = wire.connection.cancel
        await wire.answer(OK)
        assert reply.events == ["head"]
        assert wire.is_over

    run(test())


# --- limits -------------------------------------------------------------------------------------------------


def test_the_first_byte_is_due_once_the_request_is_sent_and_the_next_ones_after_each_other() -> None:
    async def test() -> None:
        wire = Wire()
        reply = wire.ask(sends=None)
        await wire.pass_time(50)
        assert reply.events == [], "nothing is due before the request is complete"
        wire.connection.request_sent()
        await wire.pass_time(9)
        assert reply.events == []
        await wire.pass_time(2)
        assert reply.events == ["failed upstream_first_byte_timeout"]
        assert wire.is_over

    run(test())


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_half_a_head_and_interim_answers_do_not_extend_the_first_byte(sent: bytes) -> None:
    async def test() -> None:
        wire = Wire()
        reply = wire.ask()
        await wire.pass_time(8)
        if sent:
            await wire.answer(sent)
        await wire.pass_time(3)
        assert reply.events == ["failed upstream_first_byte_timeout"]

    run(test())


def test_a_stream_may_be_slow_but_not_stall() -> None:
    async def test() -> None:
        wire = Wire()
        reply = wire.ask(wait=replace(WAIT, total=float("inf")))
        await wire.answer(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(10):
            await wire.pass_time(19)
            await wire.answer(b"x")
        await wire.pass_time(0)  # the sweep that notes the last byte
        await wire.pass_time(19)
        assert reply.error is None
        await wire.pass_time(2)
        assert reply.events[-1] == "failed upstream_idle_timeout"
        assert reply.body == b"x" * 10
        assert wire.is_over

    run(test())


def test_an_answer_that_the_caller_does_not_take_is_no_stall_but_has_its_total() -> None:
    async def test() -> None:
        wire = Wire()
        reply = wire.ask()
        await wire.answer(HALF)
        wire.connection.pause()
        await wire.pass_time(60)
        assert reply.error is None
        wire.connection.resume()
        await wire.pass_time(19)
        assert reply.error is None
        wire.connection.pause()
        await wire.pass_time(30)
        assert reply.events[-1] == "failed upstream_total_timeout"

    run(test())


def test_a_paused_answer_is_not_read_without_bound_and_comes_whole_afterwards() -> None:
    async def test() -> None:
        wire = Wire(read_bytes=10_000)
        reply = wire.ask()
        await wire.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        wire.connection.pause()
        await wire.answer(MUCH)
        assert reply.body == b""
        wire.connection.resume()
        await settle(200)
        assert reply.body == MUCH
        assert reply.events[-1] == "ended"

    run(test())


def test_a_connection_kept_after_a_paused_answer_reads_again() -> None:
    async def test() -> None:
        wire = Wire()
        first = wire.ask()
        first.on_head = wire.connection.pause
        await wire.answer(OK)
        assert first.events[-1] == "ended"
        second = wire.ask()
        await wire.answer(OK)
        assert second.body == b"ok"

    run(test())


def test_no_limit_of_a_request_outlives_it() -> None:
    async def test() -> None:
        wire = Wire()
        wire.ask()
        await wire.answer(OK)
        await wire.pass_time(1_000_000)
        assert not wire.is_over, "how long it stays is the pool's to say"

    run(test())


# --- uploads ------------------------------------------------------------------------------------------------


def test_an_upload_that_the_upstream_does_not_take_is_told_and_ends_in_time() -> None:
    async def test() -> None:
        wire = Wire()
        wire.upstream.transport.pause_reading()
        reply = wire.ask(sends=None)
        wire.connection.write(MUCH)
        assert reply.events == ["writable False"]
        await wire.pass_time(9)
        wire.upstream.transport.resume_reading()
        await settle(10)
        assert reply.events == ["writable False", "writable True"]
        await wire.pass_time(50)
        assert reply.error is None, "it was taken, and the rest is the caller's to send"
        wire.upstream.transport.pause_reading()
        wire.connection.write(MUCH)
        await wire.pass_time(11)
        assert reply.events[-1] == "failed upstream_first_byte_timeout"
        assert wire.is_over

    run(test())


@pytest.mark.parametrize("has_sent_all", [True, False])
def test_an_answer_before_the_upload_was_taken_frees_the_connection(has_sent_all: bool) -> None:
    async def test() -> None:
        wire = Wire()
        wire.upstream.transport.pause_reading()
        reply = wire.ask(sends=None)
        wire.connection.write(MUCH)
        if has_sent_all:
            wire.connection.request_sent()
        await wire.answer(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert reply.events[-1] == "ended"
        await wire.pass_time(1)
        assert wire.is_over, "an upstream that reads no more would hold its slot for ever"

    run(test())


def test_a_connection_whose_request_is_not_all_sent_is_not_used_again() -> None:
    async def test() -> None:
        wire = Wire()
        wire.ask(sends=None)
        wire.connection.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n")
        await wire.answer(OK)
        assert wire.owner.released_count == 0
        assert wire.is_over

    run(test())


# --- other protocols ----------------------------------------------------------------------------------------


def test_after_a_switch_of_protocols_the_transport_is_given_away_with_what_followed() -> None:
    async def test() -> None:
        wire = Wire()
        reply = wire.ask()
        given_away: list[tuple[asyncio.Transport, bytes]] = []
        reply.on_head = lambda: given_away.append(wire.connection.detach())
        await wire.answer(
            b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81frame"
        )
        assert reply.events == ["head"]
        assert given_away == [(wire.connection.transport, b"\x81frame")]
        assert wire.owner.lost_count == 1
        assert len(wire.deadlines) == 0
        assert not wire.upstream.is_lost

    run(test())


# --- anything at any time -----------------------------------------------------------------------------------

ACTIONS = ["ask", "upload", "sent", "answer", "pause", "resume", "slow", "fast", "time", "cancel"]


@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 60)), max_size=25),
    st.sampled_from(["reset", "close", "half close", "silence"]),
    st.lists(responses(), max_size=3),
    st.binary(max_size=20),
)
def test_whatever_happens_every_request_ends_once_and_nothing_is_left(
    actions: list[tuple[str, int]], end: str, messages: list[Message], noise: bytes
) -> None:
    stream = b"".join(message.raw for message in messages) + noise
    replies: list[Reply] = []
    cancelled: list[Reply] = []

    async def act(wire: Wire, action: str, number: int) -> None:
        nonlocal stream
        connection, transport = wire.connection, wire.upstream.transport
        is_busy = connection.handler is not None
        match action:
            case "ask" if not is_busy and not connection.transport.is_closing():
                replies.append(wire.ask(sends=REQUEST if number % 2 else None))
            case "upload" if is_busy:
                connection.write(b"x" * number * 5_000)
            case "sent" if is_busy:
                connection.request_sent()
            case "answer" if not transport.is_closing():
                piece, stream = stream[: number * 2 + 1], stream[number * 2 + 1 :]
                transport.write(piece)
            case "pause" if is_busy:
                connection.pause()
            case "resume":
                connection.resume()
            case "slow":
                transport.pause_reading()
            case "fast":
                transport.resume_reading()
            case "time":
                await wire.pass_time(number)
            case "cancel" if is_busy:
                cancelled.append(replies[-1])
                connection.cancel()
            case _:
                pass
        await settle(3)

    async def test() -> None:
        wire = Wire()
        for action, number in actions:
            await act(wire, action, number)
        transport = wire.upstream.transport
        if end == "silence" or transport.is_closing():
            wire.connection.deadline = min(wire.connection.deadline, 1_000.0)  # as the pool sets it when idle
        else:
            {"reset": transport.abort, "close": transport.close, "half close": transport.write_eof}[end]()
        await settle(10)
        for _ in range(3):
            await wire.pass_time(1_000)
        # An upstream that takes nothing cannot hear of the end; nothing of ours may wait for it.
        transport.resume_reading()
        await settle(10)
        assert wire.is_over
        assert all(reply.is_over or reply in cancelled for reply in replies)
        assert all(reply.faults == [] for reply in replies)

    run(test())
