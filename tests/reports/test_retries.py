"""When a request is sent again, and what its failure looks like (reports B102, B103).

Choices: a retry is possible until the first content was sent; a heartbeat is no content, so it does not end
the retries that a route allows. An answer that began and then died is never retried by Weir itself: the
upstream may have done the work, and a true status lets the caller decide.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from proxy.core.clock import SystemClock
from proxy.core.errors import CODES, ProxyError, Source
from proxy.core.upstream import Upstream
from proxy.edge.errors import error_response
from proxy.http.client import ClientConnection
from proxy.http.deadlines import Deadlines
from proxy.http.limits import ClientLimits
from proxy.upstream.pool import Pool
from proxy.upstream.target import make_target
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call
from tests.support.served import UPSTREAM, served
from tests.support.shapes import CHAT as CHAT_SHAPE
from tests.support.shapes import spoken
from tests.support.weir import weir

REQUESTS = pytest.mark.parametrize("request_body", [CHAT, CHAT_STREAM], ids=["body", "stream"])
HEALTHY = spoken("healthy") + finish() + DONE
UNAVAILABLE = b"503 Service Unavailable"
SOON = b"Retry-After: 0\r\n"


def retrying(*route_lines: str, attempts: int = 2, statuses: str = "429, 503") -> str:
    """Return a policy of one route whose upstream may be asked again."""
    retry = f"retry: {{statuses: [{statuses}], attempts: {attempts}}}"
    return chat_policy(*route_lines, base_url=UPSTREAM, upstream=retry)


def healthy(call: Call) -> None:
    """Answer a request for a stream."""
    call.stream_head()
    call.chunk(HEALTHY)
    call.end_chunks()


# B102
@pytest.mark.parametrize("sent", [b"", spoken("")], ids=["head", "role"])
def test_a_stream_that_dies_before_its_first_token_leaves_no_trace(tmp_path: Path, sent: bytes) -> None:
    def script(call: Call) -> None:
        if call.number:
            healthy(call)
            return
        call.stream_head()
        if sent:
            call.chunk(sent)
        call.reset()

    with served(tmp_path, script, retrying()) as (proxy, upstream), proxy.client() as client:
        failed = client.request("POST", PATH, CHAT_STREAM)
        assert len(upstream.calls) == 1, "the upstream may have done the work"
        again = client.request("POST", PATH, CHAT_STREAM)
    assert failed.status == 502
    assert json.loads(failed.body)["error"]["code"] == "upstream_closed"
    assert again.body == HEALTHY


# B102
def test_nothing_is_retried_once_content_was_sent(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(spoken("a"))
        call.reset()

    with served(tmp_path, script, retrying()) as (proxy, upstream):
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
        assert len(upstream.calls) == 1
    assert answer.body.startswith(spoken("a"))
    assert CHAT_SHAPE.error_of(answer.body)
    assert answer.body.count(b"content") == 1


# B102
@REQUESTS
@pytest.mark.parametrize("status", [b"429 Too Many Requests", UNAVAILABLE])
def test_a_status_that_the_route_lists_is_retried_unseen(
    tmp_path: Path, status: bytes, request_body: bytes
) -> None:
    def script(call: Call) -> None:
        if call.number < 2:
            call.json(b'{"error":{"message":"secret of the first"}}', status, SOON)
        elif request_body is CHAT:
            call.json(ANSWER)
        else:
            healthy(call)

    with served(tmp_path, script, retrying()) as (proxy, upstream):
        answer = proxy.client().request("POST", PATH, request_body)
        assert [call.body for call in upstream.calls[1:]] == [upstream.calls[0].body] * 2
        assert proxy.log(1)[0]["retries"] == 2
    assert answer.status == 200
    assert answer.body == (ANSWER if request_body is CHAT else HEALTHY)
    assert answer.header("retry-after") is None


# B102
def test_the_last_refusal_is_the_answer_when_all_attempts_are_used(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.json(b'{"error":{"message":"attempt %d"}}' % call.number, UNAVAILABLE, SOON)

    with served(tmp_path, script, retrying()) as (proxy, upstream):
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
        assert len(upstream.calls) == 3
    assert answer.status == 503
    assert b"attempt 2" in answer.body
    assert answer.header("retry-after") == "0"


# B102
@pytest.mark.parametrize(
    ("policy", "status", "headers"),
    [
        (chat_policy(), UNAVAILABLE, SOON),
        (retrying(), b"500 Oops", SOON),
        (retrying(attempts=0), UNAVAILABLE, SOON),
        (retrying("caller_patience: 2s"), UNAVAILABLE, b"Retry-After: 3\r\n"),
        (retrying("caller_patience: 2s"), UNAVAILABLE, b"retry-after-ms: 2500\r\n"),
    ],
    ids=["not asked for", "another status", "no attempts", "too long a wait", "too long a wait in ms"],
)
def test_a_refusal_passes_at_once_where_no_retry_is_due(
    tmp_path: Path, policy: str, status: bytes, headers: bytes
) -> None:
    with served(tmp_path, lambda call: call.json(b"{}", status, headers), policy) as (proxy, upstream):
        begin = time.monotonic()
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
        assert time.monotonic() - begin < 0.4
        assert len(upstream.calls) == 1
    assert answer.status == int(status[:3])


# B102
def test_all_waits_together_stay_within_the_callers_patience(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.json(b"{}", UNAVAILABLE, b"retry-after-ms: 150\r\n")

    with served(tmp_path, script, retrying(attempts=10)) as (proxy, upstream):
        patience = [("x-stainless-read-timeout", "0.4")]
        begin = time.monotonic()
        assert proxy.client().request("POST", PATH, CHAT, patience).status == 503
        assert time.monotonic() - begin < 0.45
        assert len(upstream.calls) == 3


# B102
def test_a_heartbeat_does_not_end_the_retries(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if call.number == 0:
            time.sleep(0.15)
            call.json(b'{"error":{}}', UNAVAILABLE, b"retry-after-ms: 200\r\n")
        else:
            healthy(call)

    with served(tmp_path, script, retrying("heartbeat: 50ms")) as (proxy, _):
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
    assert answer.body.startswith(b": keep-alive\n\n")
    assert answer.body.replace(b": keep-alive\n\n", b"") == HEALTHY
    assert answer.is_whole


# B102
def test_a_refused_connection_is_retried_where_the_route_allows(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

        def answer_later() -> None:
            time.sleep(0.2)
            listener.listen()
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=answer_later)
        thread.start()
        with weir(tmp_path, None, retrying(attempts=1).replace(UPSTREAM, url)) as proxy:
            answer = proxy.client().request("POST", PATH, CHAT)
            assert proxy.log(1)[0]["retries"] == 1
        thread.join()
    assert answer.body == b"{}"


def check_error(answer: RawAnswer, status: int, code: str) -> None:
    """Check that an answer is an error of Weir's own, as typed clients read it."""
    assert answer.status == status
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-weir-request-id")
    assert answer.is_whole
    said = json.loads(answer.body)
    assert set(said) == {"error"}
    assert set(said["error"]) == {"message", "type", "param", "code"}
    assert said["error"]["code"] == code
    assert isinstance(said["error"]["message"], str)
    assert (answer.header("retry-after") is not None) == (status in (429, 503))


def closed_port() -> int:
    """Return a port where nobody listens, nor will: it is held for as long as the process lives."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    port: int = held.getsockname()[1]
    held.detach()
    return port


UNRESOLVABLE = ".".join(["label-that-makes-the-name-longer-than-names-can-be"] * 6)


# B103
@REQUESTS
@pytest.mark.parametrize("policy", ["matched", "unmatched"])
def test_failures_to_connect_are_true_statuses(tmp_path: Path, policy: str, request_body: bytes) -> None:
    route = chat_policy() if policy == "matched" else None
    cases = [
        (f"http://127.0.0.1:{closed_port()}/v1", "upstream_connect_failed"),
        (f"http://{UNRESOLVABLE}/v1", "upstream_dns_failed"),
        ("http://label-that-is-longer-than-labels-can-be" + "x" * 40 + "/v1", "upstream_dns_failed"),
    ]
    for url, code in cases:
        with weir(tmp_path, url, route) as proxy:
            check_error(proxy.client().request("POST", PATH, request_body), 502, code)
            record = proxy.log(1)[0]
            assert (record["status"], record["error"]) == (502, code)
            assert proxy.metric("weir_requests_total", status="5xx") == 1


class NoTls:
    """A server that takes connections and does not speak TLS: it sends `said` and closes, or stays silent."""

    def __init__(self, said: bytes | None) -> None:
        self.said = said
        self.open: list[socket.socket] = []

    def __enter__(self) -> str:
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()
        return f"https://127.0.0.1:{self.listener.getsockname()[1]}/v1"

    def serve(self) -> None:
        try:
            while True:
                sock, _ = self.listener.accept()
                self.open.append(sock)
                if self.said is not None:
                    sock.recv(65536)
                    sock.sendall(self.said)
                    sock.close()
        except OSError:
            return

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.open:
            sock.close()


# B103
@REQUESTS
@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 This is no TLS\r\n\r\n", b"", None], ids=["text", "fin", "silence"]
)
def test_a_failing_handshake_is_a_true_status(
    tmp_path: Path, said: bytes | None, request_body: bytes
) -> None:
    with NoTls(said) as url:
        policy = chat_policy(base_url=url, upstream="timeouts: {connect: 150ms}")
        with weir(tmp_path, None, policy) as proxy:
            answer = proxy.client().request("POST", PATH, request_body)
    if said is None:
        check_error(answer, 504, "upstream_connect_timeout")
    elif said:
        check_error(answer, 502, "upstream_tls_failed")
    else:
        assert json.loads(answer.body)["error"]["code"] in ("upstream_tls_failed", "upstream_connect_failed")
        check_error(answer, 502, json.loads(answer.body)["error"]["code"])


# B103
@REQUESTS
def test_a_connection_that_is_never_made_is_a_true_status(tmp_path: Path, request_body: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}/v1"
        policy = chat_policy(base_url=url, upstream="timeouts: {connect: 150ms}")
        with weir(tmp_path, None, policy) as proxy:
            begin = time.monotonic()
            answer = proxy.client().request("POST", PATH, request_body)
            assert time.monotonic() - begin < 1.0
        for filler in fillers:
            filler.close()
    check_error(answer, 504, "upstream_connect_timeout")


# B103
@REQUESTS
def test_an_upstream_that_does_not_answer_is_a_true_status(tmp_path: Path, request_body: bytes) -> None:
    def script(call: Call) -> None:
        call.wait_for_close(2.0)

    policy = chat_policy(base_url=UPSTREAM, upstream="timeouts: {first_byte: 100ms}")
    with served(tmp_path, script, policy) as (proxy, _):
        check_error(proxy.client().request("POST", PATH, request_body), 504, "upstream_first_byte_timeout")


# B103
@REQUESTS
@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"", "upstream_closed"),
        (b"HTTP/1.1 200 OK\r\nContent-", "upstream_closed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "upstream_protocol_error"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "upstream_protocol_error"),
        (b"\x16\x03\x01\x00\x05hello", "upstream_protocol_error"),
    ],
)
def test_an_upstream_that_speaks_nonsense_is_a_true_status(
    tmp_path: Path, request_body: bytes, said: bytes, code: str
) -> None:
    def script(call: Call) -> None:
        call.send(said)
        time.sleep(0.01)
        call.close()

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        check_error(proxy.client().request("POST", PATH, request_body), 502, code)


# B103
def test_a_full_queue_is_a_true_status() -> None:
    """The queue's bound is far above what a test can fill with sockets, so it is asked directly."""

    async def fill_the_queue() -> list[ProxyError]:
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[ClientConnection] = loop.create_future()
        refused: list[ProxyError] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            target = make_target(Upstream("up", url, max_connections=1), {})
            pool = Pool(target, loop, Deadlines(loop, SystemClock()), ClientLimits())
            leases = [pool.ask(granted.set_result, refused.append) for _ in range(10_005)]
            connection = await granted
            for lease in leases[::-1]:
                lease.cancel()
            connection.cancel()
            await asyncio.sleep(0.01)
        return refused

    refused = asyncio.run(fill_the_queue())
    assert len(refused) == 4
    response = error_response(refused[0], b"x-weir-request-id: 1\r\n", keep_alive=True)
    assert response.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 1\r\n" in response
    assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["code"] == "upstream_busy"


# B103
def test_no_failure_of_the_upstream_has_a_status_of_success() -> None:
    for kind in CODES:
        assert kind.status >= 400
        if kind.source is Source.UPSTREAM:
            assert kind.status in (502, 503, 504)
