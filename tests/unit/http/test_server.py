"""The caller's connection over a wire in memory: order, bounds, deadlines, and one end for every request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.limits import ServerLimits
from tests.unit.http.messages import Message, cuts, every_cut, requests
from tests.unit.http.serving import Handler, Wire, settle

LIMITS = ServerLimits(
    header_seconds=10.0, body_seconds=20.0, keep_alive=30.0, write_stall=40.0, linger_seconds=2.0
)
MUCH = b"x" * 1_000_000


def get(number: int = 0) -> bytes:
    return b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number


def post(body: bytes = b"", *lines: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", b"Content-Length: %d" % size, *lines, b"", body])


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def echo(handler: Handler) -> None:
    """Answer with what was asked."""
    handler.answer(b"%b %b %d" % (handler.head.method, handler.head.target, len(handler.body)))


# --- order --------------------------------------------------------------------------------------------------


@given(st.lists(requests(), min_size=1, max_size=5), st.integers(0, 3), st.data())
def test_pipelined_requests_are_answered_one_at_a_time_in_order_in_any_cut(
    messages: list[Message], delay: int, data: st.DataObject
) -> None:
    pieces = data.draw(cuts(b"".join(message.raw for message in messages)))

    async def test() -> None:
        wire = Wire(LIMITS)
        loop = asyncio.get_running_loop()
        open_handlers: list[Handler] = []

        def later(handler: Handler, rounds: int) -> None:
            if rounds:
                loop.call_soon(later, handler, rounds - 1)
            else:
                open_handlers.remove(handler)
                echo(handler)

        wire.service.on_head = open_handlers.append
        wire.service.on_end = lambda handler: later(handler, delay)
        for piece in pieces:
            wire.caller.transport.write(piece)
            await settle(2)
            assert len(open_handlers) <= 1
        await settle(60)
        assert [handler.body for handler in wire.handlers] == [message.body for message in messages]
        starts = [(handler.head.method, handler.head.target) for handler in wire.handlers]
        assert starts == [message.start for message in messages]
        answers = bytes(wire.caller.received).split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert [answer.split(b"\r\n\r\n", 1)[1] for answer in answers] == [
            b"%b %b %d" % (*message.start, len(message.body)) for message in messages
        ]
        assert wire.service.faults == []

    run(test())


def test_a_handler_hears_head_body_end_in_this_order_in_every_cut() -> None:
    async def test() -> None:
        for pieces in every_cut(post(b"hello")):
            wire = Wire(LIMITS)
            wire.service.on_end = echo
            await wire.send(*pieces)
            (handler,) = wire.handlers
            assert handler.events == ["head", "body", "end"]
            assert handler.body == b"hello"

    run(test())


def test_what_comes_behind_a_request_in_progress_is_not_read_without_bound() -> None:
    async def test() -> None:
        wire = Wire(LIMITS, read_bytes=10_000)
        await wire.send(get(), post(MUCH), get())
        assert len(wire.handlers) == 1
        assert wire.caller.transport.get_write_buffer_size() > 900_000, "the upload was read with no taker"
        wire.service.on_end = echo
        wire.handlers[0].answer(b"")
        await settle(400)
        assert [len(handler.body) for handler in wire.handlers] == [0, len(MUCH), 0]

    run(test())


# --- a caller that does not read ----------------------------------------------------------------------------


def test_a_caller_that_does_not_take_an_answer_gets_no_further_one() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        wire.service.on_end = lambda handler: handler.answer(MUCH)
        wire.caller.transport.pause_reading()
        await wire.send(*(get(number) for number in range(20)))
        assert len(wire.handlers) == 1
        assert wire.connection.transport.get_write_buffer_size() < 2 * len(MUCH)
        wire.caller.transport.resume_reading()
        await settle(400)
        assert len(wire.handlers) == 20
        assert wire.caller.received.count(b"HTTP/1.1 200") == 20

    run(test())


@pytest.mark.parametrize("behind", [b"", get(1), post(b"x", length=100)])
@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_caller_that_takes_nothing_is_dropped_after_its_time(keep_alive: bool, behind: bytes) -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        wire.service.on_end = lambda handler: handler.answer(MUCH, keep_alive)
        wire.caller.transport.pause_reading()
        await wire.send(get() + behind)
        await wire.pass_time(39)
        assert not wire.connection.is_closed
        await wire.pass_time(2)
        assert wire.is_over

    run(test())


def test_a_caller_that_takes_a_little_now_and_then_is_not_dropped() -> None:
    async def test() -> None:
        wire = Wire(LIMITS, read_bytes=1_000)
        wire.service.on_end = lambda handler: handler.answer(MUCH)
        wire.caller.transport.pause_reading()
        await wire.send(get())
        for _ in range(20):
            await wire.pass_time(30)
            wire.caller.transport.resume_reading()
            await settle(2)
            wire.caller.transport.pause_reading()
        assert not wire.connection.is_closed

    run(test())


def test_a_handler_hears_that_its_caller_is_slow_and_fast_again() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        wire.caller.transport.pause_reading()
        await wire.send(get())
        (handler,) = wire.handlers
        handler.connection.write(MUCH)
        assert handler.events == ["head", "end", "writable False"]
        wire.caller.transport.resume_reading()
        await settle(60)
        assert handler.events == ["head", "end", "writable False", "writable True"]

    run(test())


# --- deadlines ----------------------------------------------------------------------------------------------

WAITS = {
    "nothing sent": (b"", LIMITS.header_seconds, False),
    "half a head": (get()[:-2], LIMITS.header_seconds, True),
    "half a body": (post(b"hel", length=5), LIMITS.body_seconds, True),
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_request_that_does_not_come_ends_after_its_time(kind: str) -> None:
    sent, seconds, is_told = WAITS[kind]

    async def test() -> None:
        wire = Wire(LIMITS)
        if sent:
            await wire.send(sent)
        await wire.pass_time(seconds - 1)
        assert not wire.connection.is_closed
        await wire.pass_time(2)
        told = wire.service.refusals or [handler.events[-1] for handler in wire.handlers]
        assert (
            told == (["request_timeout"] if wire.service.refusals else ["refused request_timeout"]) * is_told
        )
        await wire.pass_time(3)
        assert wire.is_over

    run(test())


def test_a_head_that_drips_has_one_deadline_and_a_body_that_drips_has_many() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        for place in range(5):
            await wire.send(get()[place : place + 1])
            await wire.pass_time(2.5)
        assert wire.service.refusals == ["request_timeout"]
        wire = Wire(LIMITS)
        wire.service.on_end = echo
        await wire.send(post(length=5))
        for _ in range(5):
            await wire.pass_time(19)
            await wire.send(b"x")
        assert wire.caller.received.endswith(b"POST / 5")

    run(test())


def test_a_caller_is_not_blamed_for_an_upload_that_the_upstream_does_not_take() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        wire.service.on_head = lambda handler: handler.connection.pause_body()
        await wire.send(post(b"hel", length=5))
        await wire.pass_time(1000)
        (handler,) = wire.handlers
        assert handler.events == ["head", "body"]
        handler.connection.resume_body()
        await wire.pass_time(19)
        assert handler.events == ["head", "body"]
        await wire.pass_time(2)
        assert handler.events == ["head", "body", "refused request_timeout"], "now it is the caller's turn"

    run(test())


def test_nothing_is_delivered_while_the_handler_takes_no_body() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        wire.service.on_head = lambda handler: handler.connection.pause_body()
        wire.service.on_end = echo
        await wire.send(post(length=5), b"hello")
        (handler,) = wire.handlers
        assert handler.body == b""
        handler.connection.resume_body()
        await settle()
        assert handler.body == b"hello"

    run(test())


def test_an_answer_before_the_upload_was_taken_does_not_leave_the_connection_deaf() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        await wire.send(post(b"hello"))
        (handler,) = wire.handlers
        handler.connection.pause_body()
        handler.answer(b"early")
        wire.service.on_end = echo
        await wire.send(get(7))
        assert wire.caller.received.endswith(b"GET /7 0")

    run(test())


def test_an_idle_connection_ends_after_its_time_and_a_busy_one_does_not() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        await wire.send(get())
        await wire.pass_time(1000)
        assert not wire.connection.is_closed
        wire.handlers[0].answer(b"")
        await wire.pass_time(29)
        assert not wire.connection.is_closed
        await wire.pass_time(2)
        assert wire.is_over
        assert wire.service.refusals == [], "an idle connection just closes"

    run(test())


# --- ends ---------------------------------------------------------------------------------------------------

PHASES = {
    "idle": b"",
    "head": get()[:-1],
    "body": post(b"hel", length=5),
    "answer": get(),
    "next head": get() + get()[:9],
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("end", ["reset", "close", "half close"])
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_caller_that_leaves_is_gone_once_in_every_phase(phase: str, end: str, has_begun: bool) -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        if PHASES[phase]:
            await wire.send(PHASES[phase])
        if has_begun and wire.handlers:
            wire.connection.write(b"HTTP/1.1 200 OK\r\n\r\n")
        transport = wire.caller.transport
        {"reset": transport.abort, "close": transport.close, "half close": transport.write_eof}[end]()
        await settle()
        assert wire.is_over
        assert [handler.events[-1] for handler in wire.handlers] == ["gone client_closed"] * len(
            wire.handlers
        )
        assert wire.service.faults == []

    run(test())


def test_a_refused_request_is_answered_before_the_connection_closes() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        await wire.send(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n")
        assert wire.service.refusals == ["bad_request"]
        assert wire.caller.received.startswith(b"HTTP/1.1 400")
        assert wire.caller.is_ended
        await wire.send(MUCH)
        assert not wire.caller.is_lost, "a reset could destroy the answer on its way"
        await wire.pass_time(3)
        assert wire.is_over

    run(test())


def test_a_fault_behind_a_request_waits_for_its_answer() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        await wire.send(get() + b"nonsense\r\n\r\n")
        assert wire.service.refusals == []
        wire.handlers[0].answer(b"first")
        await settle()
        assert wire.service.refusals == ["method_not_supported"]
        assert wire.caller.received.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 501" in wire.caller.received

    run(test())


def test_a_fault_in_a_body_reaches_the_handler() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        await wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnonsense")
        assert wire.handlers[0].events == ["head", "refused bad_request"]
        assert wire.service.refusals == []

    run(test())


@pytest.mark.parametrize("when", ["head", "end"])
def test_a_handler_that_raises_is_asked_for_an_answer(when: str) -> None:
    def explode(handler: Handler) -> None:
        raise LookupError("a bug")

    async def test() -> None:
        wire = Wire(LIMITS)
        if when == "head":
            wire.service.on_head = explode
        else:
            wire.service.on_end = explode
        await wire.send(post(b"x"))
        assert wire.handlers[0].events[-1] == "crashed LookupError"
        assert wire.caller.received.endswith(b"crashed")
        await wire.pass_time(3)
        assert wire.is_over

    run(test())


def test_an_answer_to_half_a_request_ends_the_connection_and_swallows_the_rest() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        wire.service.on_head = lambda handler: handler.answer(b"no")
        await wire.send(post(b"x", length=1_000_000), get(), MUCH)
        assert wire.caller.received.count(b"HTTP/1.1 200") == 1
        assert len(wire.handlers) == 1
        assert wire.caller.is_ended
        await wire.pass_time(3)
        assert wire.is_over

    run(test())


def test_who_still_sends_after_a_refusal_has_time_to_end_and_not_forever() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        wire.service.on_head = lambda handler: handler.answer(b"no", keep_alive=False)
        await wire.send(post(length=10_000_000))
        lingered_seconds = 0.0
        while not wire.connection.is_closed:
            await wire.send(b"x" * 1000)
            await wire.pass_time(LIMITS.linger_seconds * 0.9)
            lingered_seconds += LIMITS.linger_seconds * 0.9
        assert 0 <= lingered_seconds - LIMITS.linger_total_seconds < LIMITS.linger_seconds

    run(test())


def test_who_falls_silent_after_a_refusal_is_let_go() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        wire.service.on_head = lambda handler: handler.answer(b"no", keep_alive=False)
        await wire.send(post(length=10_000_000))
        await wire.pass_time(LIMITS.linger_seconds + 0.2)
        assert wire.connection.is_closed

    run(test())


def test_a_draining_service_answers_what_is_in_progress_and_closes() -> None:
    async def test() -> None:
        wire = Wire(LIMITS)
        await wire.send(get() + get(1))
        wire.service.is_draining = True
        wire.connection.close_idle()
        assert wire.connection.closes_next
        wire.handlers[0].answer(b"last")
        await settle()
        assert wire.caller.received.endswith(b"last")
        assert wire.is_over
        assert len(wire.handlers) == 1

    run(test())


# --- interim answers and handshakes -------------------------------------------------------------------------

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_leave_to_continue_is_given_once_and_only_where_it_helps() -> None:
    async def test() -> None:
        for sent, is_given in (
            ((post(b"", b"Expect: 100-continue", length=5),), True),
            ((post(b"h", b"Expect: 100-continue", length=5),), False),
            ((post(b"", b"Expect: 100-continue", length=5).replace(b"HTTP/1.1", b"HTTP/1.0"),), False),
            ((post(b"", length=5),), False),
        ):
            wire = Wire(LIMITS)
            await wire.send(*sent)
            assert (wire.caller.received == CONTINUE) is is_given
        wire = Wire(LIMITS)
        wire.service.on_head = echo
        await wire.send(post(b"", b"Expect: 100-continue", length=5))
        assert CONTINUE not in wire.caller.received

    run(test())


HANDSHAKE = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def test_frames_behind_a_handshake_are_handed_over_and_bounded() -> None:
    async def test() -> None:
        wire = Wire(replace(LIMITS, pipelined_bytes=1_000), read_bytes=500)
        await wire.send(HANDSHAKE + b"\x81" * 10_000)
        assert wire.caller.transport.get_write_buffer_size() > 8_000
        transport, early = wire.connection.detach()
        assert 1_000 <= len(early) <= 2_000
        assert transport is wire.connection.transport
        assert wire.is_over

    run(test())


def test_what_follows_a_handshake_that_was_refused_is_read_as_a_request() -> None:
    async def test() -> None:
        for pieces in every_cut(HANDSHAKE + get(7)):
            wire = Wire(LIMITS)
            await wire.send(*pieces)
            assert len(wire.handlers) == 1
            wire.service.on_end = echo
            wire.handlers[0].answer(b"no")
            await settle()
            assert wire.caller.received.endswith(b"GET /7 0")

    run(test())


# --- anything at any time -----------------------------------------------------------------------------------

ACTIONS = ["send", "answer", "answer and close", "write", "slow", "fast", "time", "pause body", "resume body"]
ENDS = ["reset", "close", "half close", "wait"]


@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 60)), max_size=25),
    st.sampled_from(ENDS),
    st.lists(requests(), max_size=4),
    st.binary(max_size=30),
)
def test_whatever_happens_every_request_ends_once_and_nothing_is_left(
    actions: list[tuple[str, int]], end: str, messages: list[Message], noise: bytes
) -> None:
    stream = b"".join(message.raw for message in messages) + noise

    async def act(wire: Wire, action: str, number: int) -> None:
        nonlocal stream
        current = next((handler for handler in wire.handlers if not handler.is_over), None)
        is_open = current is not None and not wire.connection.is_closed
        transport = wire.caller.transport
        match action:
            case "send" if not transport.is_closing():
                piece, stream = stream[: number + 1], stream[number + 1 :]
                transport.write(piece)
            case "answer" | "answer and close" if is_open and current is not None:
                current.answer(b"x" * number * 5_000, action == "answer")
            case "write" if is_open:
                wire.connection.write(b"x" * number * 5_000)
            case "pause body" if is_open:
                wire.connection.pause_body()
            case "resume body" if is_open:
                wire.connection.resume_body()
            case "slow":
                transport.pause_reading()
            case "fast":
                transport.resume_reading()
            case "time":
                await wire.pass_time(number)
            case _:
                pass
        await settle(3)

    async def test() -> None:
        wire = Wire(LIMITS)
        for action, number in actions:
            await act(wire, action, number)
        transport = wire.caller.transport
        if end != "wait" and not transport.is_closing():
            {"reset": transport.abort, "close": transport.close, "half close": transport.write_eof}[end]()
            await settle()
        # An end behind what is not read for now shows only when it is (on sockets the sweep asks for it).
        while current := [handler for handler in wire.handlers if not handler.is_over]:
            if wire.connection.is_closed:
                break
            current[0].answer(b"", keep_alive=False)
            await settle()
        for _ in range(8):
            await wire.pass_time(50)
        assert wire.is_over
        assert all(handler.is_over for handler in wire.handlers)
        assert wire.service.faults == []

    run(test())
