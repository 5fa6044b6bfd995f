"""Callers that leave: the upstream stops at once, nothing is retried, no place stays taken (B18, B22-B24).

Choices: a caller that shuts its sending side down is gone (as nginx has it). Leaving after the finish reason
is a success, before it `client_closed`, never an error of the upstream.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call
from tests.support.served import UPSTREAM, served
from tests.support.shapes import SHAPES, every_shape, spoken
from tests.support.weir import RunningWeir, weir

WITHIN_SECONDS = 1.0
UPLOAD = [("Transfer-Encoding", "chunked")]
ROLE = spoken("")


def leave(client: RawClient, how: str) -> None:
    """Leave: close, reset, or shut the sending side down."""
    match how:
        case "reset":
            client.reset()
        case "half":
            client.socket.shutdown(socket.SHUT_WR)
        case _:
            client.close()


class Watched:
    """An upstream script that does something and then notes how soon its connection is closed."""

    def __init__(self, begin: Callable[[Call], None]) -> None:
        self.begin = begin
        self.reached = threading.Event()
        self.closed = threading.Event()

    def __call__(self, call: Call) -> None:
        self.begin(call)
        self.reached.set()
        if call.wait_for_close(3.0):
            self.closed.set()


def nothing(call: Call) -> None:
    """Answer nothing yet."""


def stream_head(call: Call) -> None:
    call.stream_head()


def only_role(call: Call) -> None:
    call.stream_head()
    call.chunk(ROLE)


def midstream(call: Call) -> None:
    call.stream_head()
    call.chunk(ROLE + spoken("a"))


def half_a_body(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")


def half_a_large_body(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n{")


def half_a_head(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nContent-")


def interim(call: Call) -> None:
    call.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")


PHASES: dict[str, tuple[Callable[[Call], None], bytes]] = {
    "no byte of a stream": (nothing, CHAT_STREAM),
    "no byte of a body": (nothing, CHAT),
    "half a head": (half_a_head, CHAT),
    "an interim answer": (interim, CHAT),
    "a head": (stream_head, CHAT_STREAM),
    "no content": (only_role, CHAT_STREAM),
    "midstream": (midstream, CHAT_STREAM),
    "half a held body": (half_a_body, CHAT),
    "half a large body": (half_a_large_body, CHAT),
}


# B22, B23
@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("policy", [None, chat_policy(), chat_policy("heartbeat: 50ms")])
def test_the_upstream_is_closed_when_its_caller_leaves(tmp_path: Path, policy: str | None, how: str) -> None:
    watched = {phase: Watched(begin) for phase, (begin, _) in PHASES.items()}

    def script(call: Call) -> None:
        watched[(call.header("x-phase") or b"").decode()](call)

    with served(tmp_path, script, policy) as (proxy, upstream):
        clients = []
        for phase, (_, request) in PHASES.items():
            clients.append(proxy.client())
            clients[-1].send_request("POST", PATH, request, [("x-phase", phase)])
        for phase, state in watched.items():
            assert state.reached.wait(2.0), phase
        time.sleep(0.05)
        begin = time.monotonic()
        for client in clients:
            leave(client, how)
        for phase, state in watched.items():
            assert state.closed.wait(WITHIN_SECONDS), f"{phase}: the upstream goes on"
        assert time.monotonic() - begin < WITHIN_SECONDS
        records = proxy.log(len(PHASES))
        assert proxy.metric("weir_in_flight") == 0
        assert len(upstream.calls) == len(PHASES), "something was sent again"
    assert {record["error"] for record in records} == {"client_closed"}


# B22
def test_leaving_a_retry_that_waits_cancels_it(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.json(b"{}", b"429 Too Many Requests", b"Retry-After: 0.4\r\n")

    policy = chat_policy(base_url=UPSTREAM, upstream="retry: {statuses: [429], attempts: 3}")
    with served(tmp_path, script, policy) as (proxy, upstream):
        client = proxy.client()
        client.send_request("POST", PATH, CHAT)
        upstream.wait_for_calls(1)
        time.sleep(0.05)
        client.close()
        assert proxy.log(1, WITHIN_SECONDS)[0]["error"] == "client_closed"
        time.sleep(0.5)
        assert len(upstream.calls) == 1


# B23
def test_leaving_the_queue_for_a_connection_never_reaches_the_upstream(tmp_path: Path) -> None:
    release = threading.Event()

    def script(call: Call) -> None:
        release.wait(3.0)
        call.json(ANSWER)

    policy = chat_policy(base_url=UPSTREAM, upstream="max_connections: 1")
    with served(tmp_path, script, policy) as (proxy, upstream):
        first, second, third = proxy.client(), proxy.client(), proxy.client()
        first.send_request("POST", PATH, CHAT, [("x-who", "first")])
        upstream.wait_for_calls(1)
        second.send_request("POST", PATH, CHAT, [("x-who", "second")])
        third.send_request("POST", PATH, CHAT, [("x-who", "third")])
        time.sleep(0.05)
        second.close()
        assert proxy.log(1, WITHIN_SECONDS)[0]["error"] == "client_closed"
        release.set()
        assert first.read_answer("POST").body == ANSWER
        assert third.read_answer("POST").body == ANSWER
        assert [call.header("x-who") for call in upstream.calls] == [b"first", b"third"]


# B23
def test_leaving_while_the_connection_is_made_sends_nothing(tmp_path: Path) -> None:
    # A listener whose queue is full answers no further connection attempt.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        with weir(tmp_path, f"http://127.0.0.1:{port}/v1", chat_policy()) as proxy:
            client = proxy.client()
            client.send_request("POST", PATH, CHAT)
            time.sleep(0.1)
            client.close()
            record = proxy.log(1, WITHIN_SECONDS)[0]
            assert proxy.metric("weir_in_flight") == 0
        for filler in fillers:
            filler.close()
    assert record["error"] == "client_closed"


UPLOAD_HEAD = b"POST /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"


# B22
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_leaving_an_upload_closes_the_upstream(tmp_path: Path, how: str) -> None:
    closed = threading.Event()

    def script(call: Call) -> None:
        while call.receive():
            pass
        closed.set()

    with served(tmp_path, script, reads_body=False) as (proxy, upstream):
        client = proxy.client()
        client.send(UPLOAD_HEAD + PIECE * 3)
        upstream.wait_for_calls(1)
        leave(client, how)
        assert closed.wait(WITHIN_SECONDS), "the upload goes on"
        assert proxy.log(1)[0]["error"] == "client_closed"


# B22
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_leaving_an_upload_that_the_upstream_does_not_take_is_noticed(tmp_path: Path, how: str) -> None:
    closed, left = threading.Event(), threading.Event()

    def script(call: Call) -> None:
        left.wait(5.0)
        while call.receive():
            pass
        closed.set()

    with served(tmp_path, script, reads_body=False) as (proxy, _):

        def is_paused() -> bool:
            return any(not caller.transport.is_reading() for caller in proxy.app.service.connections)

        client = proxy.client()
        client.send(UPLOAD_HEAD)
        for _ in range(2000):
            client.send(PIECE)
            if proxy.call(is_paused):
                break
        else:
            pytest.fail("the proxy takes more than it can pass on")
        leave(client, how)
        assert proxy.log(1, WITHIN_SECONDS)[0]["error"] == "client_closed"
        left.set()
        assert closed.wait(WITHIN_SECONDS), "the upload goes on"


# B22
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_leaving_with_further_requests_in_the_pipe_closes_the_upstream(tmp_path: Path, how: str) -> None:
    watched = Watched(nothing)
    with served(tmp_path, watched, chat_policy()) as (proxy, upstream):
        client = proxy.client()
        for _ in range(3):
            client.send_request("POST", PATH, CHAT)
        assert watched.reached.wait(2.0)
        time.sleep(0.05)
        leave(client, how)
        assert watched.closed.wait(WITHIN_SECONDS), "the upstream goes on"
        time.sleep(0.1)
        assert len(upstream.calls) == 1, "a request of a caller that has gone was sent"


# B18
@pytest.mark.parametrize("how", ["close", "reset"])
def test_leaving_after_the_finish_reason_is_a_success(tmp_path: Path, how: str) -> None:
    def script(call: Call) -> None:
        shape = next(shape for shape in SHAPES if shape.path.encode() == call.target)
        call.stream_head()
        call.chunk(shape.opening + b"".join(shape.words) + shape.closing[0])
        call.wait_for_close(3.0)

    with served(tmp_path, script, every_shape()) as (proxy, _):
        for shape in SHAPES:
            client = proxy.client()
            client.send_request("POST", shape.path, shape.request)
            received = b""
            while shape.closing[0] not in received:
                received += client.receive()
            leave(client, how)
        records = proxy.log(len(SHAPES))
        assert proxy.metric("weir_errors_total") == 0
    assert {record["error"] for record in records} == {None}
    assert {record["status"] for record in records} == {200}
    assert {record["finish_reason"] for record in records} == {shape.finished for shape in SHAPES}


# B18
def test_leaving_before_the_finish_reason_is_the_callers_doing(tmp_path: Path) -> None:
    watched = Watched(midstream)
    with served(tmp_path, watched, chat_policy()) as (proxy, _):
        client = proxy.client()
        client.send_request("POST", PATH, CHAT_STREAM)
        watched.reached.wait(2.0)
        client.read_head()
        client.close()
        assert proxy.log(1)[0]["error"] == "client_closed"
        assert proxy.metric("weir_errors_total", code="client_closed") == 1
        assert proxy.metric("weir_errors_total") == 1


def is_served(proxy: RunningWeir) -> bool:
    """Tell whether a normal request finds a free place within a second."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while time.monotonic() < deadline:
        with proxy.client(2.0) as client:
            if client.request("POST", PATH, CHAT).body == ANSWER:
                return True
        time.sleep(0.02)
    return False


def midway_and(end: Callable[[Call], None]) -> Callable[[Call], None]:
    """Return what begins an answer with content and then does something."""

    def begin(call: Call) -> None:
        midstream(call)
        end(call)

    return begin


def last_word(call: Call) -> None:
    call.chunk(finish() + DONE)
    call.end_chunks()


ENDINGS: dict[str, tuple[Callable[[Call], None], str]] = {
    "client closes": (midstream, "close"),
    "client resets": (midstream, "reset"),
    "client leaves before the head": (nothing, "close"),
    "upstream resets at once": (Call.reset, ""),
    "upstream resets midway": (midway_and(Call.reset), ""),
    "upstream ends midway": (midway_and(Call.end_chunks), ""),
    "upstream stalls": (midstream, ""),
    "upstream never answers": (nothing, ""),
    "upstream speaks nonsense": (lambda call: call.send(b"SSH-2.0-x\r\n"), ""),
    "upstream refuses": (lambda call: call.json(b"{}", b"500 Oops"), ""),
    "whole stream": (midway_and(last_word), ""),
}


# B24
@pytest.mark.parametrize("limit", ["route", "upstream"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_no_ending_leaves_a_place_taken(tmp_path: Path, ending: str, limit: str) -> None:
    begin, how = ENDINGS[ending]

    def script(call: Call) -> None:
        if call.number == 0:
            begin(call)
            if not call.is_closed and ending != "upstream refuses" and ending != "whole stream":
                call.wait_for_close(3.0)
        else:
            call.json(ANSWER)

    upstream = "timeouts: {first_byte: 150ms, idle: 150ms}"
    if limit == "upstream":
        policy = chat_policy(base_url=UPSTREAM, upstream=upstream + ", max_connections: 1")
    else:
        policy = chat_policy("max_concurrent: 1", base_url=UPSTREAM, upstream=upstream)
    with served(tmp_path, script, policy) as (proxy, server):
        client = proxy.client()
        client.send_request("POST", PATH, CHAT_STREAM)
        server.wait_for_calls(1)
        if how:
            time.sleep(0.03)
            leave(client, how)
        else:
            client.read_answer("POST")
        assert is_served(proxy)
        assert proxy.metric("weir_in_flight") == 0


# B24
def test_a_refused_connection_leaves_no_place_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    policy = chat_policy("max_concurrent: 1")
    with weir(tmp_path, f"http://127.0.0.1:{port}/v1", policy) as proxy:
        for _ in range(5):
            assert proxy.client().request("POST", PATH, CHAT_STREAM).status == 502
        assert proxy.metric("weir_in_flight") == 0


# B24
def test_a_place_that_an_upload_waits_for_is_made_free(tmp_path: Path) -> None:
    policy = chat_policy(base_url=UPSTREAM, upstream="max_connections: 1")
    with served(tmp_path, lambda call: call.json(ANSWER), policy) as (proxy, upstream):
        assert proxy.client(2.0).request("POST", PATH, CHAT).body == ANSWER
        # A body that cannot be sent twice gets a fresh connection, while the only one allowed is idle.
        chunked = b"2\r\n{}\r\n0\r\n\r\n"
        assert proxy.client(2.0).request("POST", "/v1/files", chunked, UPLOAD).body == ANSWER
        assert proxy.client(2.0).request("POST", PATH, CHAT).body == ANSWER
        assert len(upstream.calls) == 3
