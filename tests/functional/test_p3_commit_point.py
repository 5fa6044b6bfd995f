"""P3: the first token is the commit point.

Whatever goes wrong before the first content has reached the caller is answered with a true status, and only
then may anything be sent again. Afterwards a break becomes an explicit error event, never a well-formed end.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.chat import CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call
from tests.support.served import UPSTREAM, served
from tests.support.shapes import CHAT as CHAT_SHAPE
from tests.support.shapes import SHAPES, Shape, data_event, every_shape
from tests.support.sse_decoder import dispatched
from tests.support.weir import RunningWeir, weir

LIMITS = "timeouts: {connect: 1s, first_byte: 150ms, idle: 150ms}"
HEALTHY_ENDS = (b"[DONE]", b"message_stop", b"response.completed", b'finish_reason":"')
WORDLESS = {
    "opening": None,
    "comment": b": PROCESSING\n\n",
    "empty data": b"data: {}\n\n",
    "ping": b"event: ping\ndata: {}\n\n",
}


def shape_of(call: Call) -> Shape:
    return next(shape for shape in SHAPES if shape.path.encode() == call.target)


def ask(proxy: RunningWeir, shape: Shape) -> RawAnswer:
    with proxy.client(5.0) as client:
        return client.request("POST", shape.path, shape.request)


def is_true_status(answer: RawAnswer, status: int, code: str) -> bool:
    """Tell whether an answer is an error of Weir's own, and nothing of a stream."""
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-weir-request-id")
    assert answer.header("server-timing")
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return (answer.status, error["code"], answer.is_whole) == (status, code, True)


# --- before the first content -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """How an upstream fails, and what Weir then says."""

    act: Callable[[Call], None]
    status: int = 502
    code: str = "upstream_closed"


def stall(call: Call) -> None:
    assert call.wait_for_close(5), "the upstream's connection is still open"


def short_length(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n")
    call.send(shape_of(call).opening)
    call.close()


def half_a_head(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nContent-")
    call.close()


def reset_soon(call: Call) -> None:
    time.sleep(0.02)
    call.reset()


AT_ONCE = {
    "closed": Failure(Call.close),
    "reset": Failure(Call.reset),
    "half a head": Failure(half_a_head),
    "nonsense": Failure(lambda call: call.send(b"SSH-2.0-x\r\n\r\n"), code="upstream_protocol_error"),
    "silence": Failure(stall, 504, "upstream_first_byte_timeout"),
}
IN_THE_STREAM = {
    "end": Failure(Call.end_chunks),
    "close": Failure(Call.close),
    "reset": Failure(reset_soon),
    "bad chunk": Failure(lambda call: call.send(b"zz\r\n"), code="upstream_protocol_error"),
    "silence": Failure(stall, 504, "upstream_idle_timeout"),
}


def failing(proxy: RunningWeir, failure: Failure) -> None:
    """Ask in every shape; each answer and each record must say what happened."""
    for shape in SHAPES:
        answer = ask(proxy, shape)
        assert is_true_status(answer, failure.status, failure.code), (shape.name, answer)
        assert answer.header("x-weir-ttft-ms") is None, "there was no token"
    for record in proxy.log(len(SHAPES)):
        assert (record["status"], record["error"]) == (failure.status, failure.code)
        assert record["ttft_ms"] is None


@pytest.mark.parametrize("kind", AT_ONCE)
def test_an_upstream_that_fails_at_once_is_a_true_status(tmp_path: Path, kind: str) -> None:
    with served(tmp_path, AT_ONCE[kind].act, every_shape(upstream=LIMITS)) as (proxy, upstream):
        failing(proxy, AT_ONCE[kind])
        assert len(upstream.calls) == len(SHAPES), "it may have begun work: nothing is sent twice"


@pytest.mark.parametrize("said", WORDLESS)
@pytest.mark.parametrize("kind", IN_THE_STREAM)
def test_a_stream_that_dies_before_its_first_token_is_a_true_status(
    tmp_path: Path, kind: str, said: str
) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(WORDLESS[said] or shape_of(call).opening)
        IN_THE_STREAM[kind].act(call)

    with served(tmp_path, script, every_shape(upstream=LIMITS)) as (proxy, upstream):
        failing(proxy, IN_THE_STREAM[kind])
        assert len(upstream.calls) == len(SHAPES)


def test_a_stream_shorter_than_it_says_is_a_true_status(tmp_path: Path) -> None:
    with served(tmp_path, short_length, every_shape(upstream=LIMITS)) as (proxy, _):
        failing(proxy, Failure(short_length))


@contextmanager
def no_tls_here() -> Iterator[int]:
    """Listen where TLS is expected and speak something else."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                with sock:
                    sock.sendall(b"220 mail.test ESMTP\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize("kind", ["refused", "no TLS", "no name"])
def test_a_connection_that_cannot_be_made_is_a_true_status(tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed_port = gone.getsockname()[1]
    with no_tls_here() as plain_port:
        url, code = {
            "refused": (f"http://127.0.0.1:{closed_port}/v1", "upstream_connect_failed"),
            "no TLS": (f"https://127.0.0.1:{plain_port}/v1", "upstream_tls_failed"),
            "no name": ("http://a..b/v1", "upstream_dns_failed"),
        }[kind]
        with weir(tmp_path, None, every_shape(upstream=LIMITS).replace(UPSTREAM, url)) as proxy:
            failing(proxy, Failure(Call.close, 502, code))


STATUSES = [
    b"400 Bad Request",
    b"401 No",
    b"429 Too Many Requests",
    b"500 Oops",
    b"503 Busy",
    b"529 Overloaded",
]


@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream", "text/plain"])
def test_a_status_of_the_upstream_is_passed_on_with_its_headers_and_body(
    tmp_path: Path, media_type: str
) -> None:
    body = b'data: {"error":"no"}\n\n' if "event" in media_type else b'{"error":{"message":"no"}}'

    def script(call: Call) -> None:
        status = STATUSES[call.number % len(STATUSES)]
        call.send(
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nRetry-After: 9\r\nContent-Length: %d\r\n\r\n%b"
            % (status, media_type.encode(), len(body), body)
        )

    with served(tmp_path, script, every_shape('usage: "off"')) as (proxy, _):
        for _ in SHAPES:
            for status in STATUSES:
                answer = ask(proxy, CHAT_SHAPE)
                assert (answer.status, answer.body) == (int(status[:3]), body)
                assert answer.header("content-type") == media_type
                assert answer.header("retry-after") == "9"


def test_a_body_that_breaks_while_it_is_held_is_a_true_status(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
        time.sleep(0.02)
        call.close()

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        assert is_true_status(proxy.client().request("POST", PATH, CHAT), 502, "upstream_closed")


# --- afterwards ---------------------------------------------------------------------------------------------


def is_broken_off(answer: RawAnswer, shape: Shape, relayed: bytes, code: str) -> bool:
    """Tell whether an answer is `relayed`, then an error event, and then no end."""
    assert answer.status == 200
    assert answer.body.startswith(relayed)
    assert code in json.dumps(shape.error_of(answer.body))
    assert not any(end in answer.body for end in HEALTHY_ENDS)
    assert len(dispatched(answer.body)) == len(dispatched(relayed)) + 1, "one event more, and it is whole"
    return not answer.is_whole


@pytest.mark.parametrize("kind", IN_THE_STREAM)
@pytest.mark.parametrize("is_one_packet", [False, True])
def test_a_break_after_the_first_token_is_an_error_event(
    tmp_path: Path, kind: str, is_one_packet: bool
) -> None:
    failure = IN_THE_STREAM[kind]

    def script(call: Call) -> None:
        shape = shape_of(call)
        call.stream_head()
        call.chunk(shape.opening + shape.words[0])
        if not is_one_packet:
            time.sleep(0.03)
        failure.act(call)

    with served(tmp_path, script, every_shape(upstream=LIMITS)) as (proxy, upstream):
        for shape in SHAPES:
            answer = ask(proxy, shape)
            assert is_broken_off(answer, shape, shape.opening + shape.words[0], failure.code)
            assert float(answer.header("x-weir-ttft-ms") or "nan") >= 0
        assert len(upstream.calls) == len(SHAPES), "nothing is sent again"
        for record in proxy.log(len(SHAPES)):
            assert (record["status"], record["error"]) == (200, failure.code)


def test_a_head_that_was_held_long_enough_is_committed_without_a_token(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(shape_of(call).opening)
        time.sleep(0.3)
        call.close()

    with served(tmp_path, script, every_shape("commit_after: 50ms")) as (proxy, _):
        for shape in SHAPES:
            answer = ask(proxy, shape)
            assert is_broken_off(answer, shape, shape.opening, "upstream_closed")
            assert answer.header("x-weir-ttft-ms") is None


def test_holding_nothing_commits_at_the_upstreams_head(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        time.sleep(0.02)
        call.close()

    with served(tmp_path, script, every_shape("commit_after: 0s")) as (proxy, _):
        for shape in SHAPES:
            assert is_broken_off(ask(proxy, shape), shape, b"", "upstream_closed")


def test_a_large_body_that_breaks_is_never_a_whole_answer(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        is_chunked = call.header("x-framing") == b"chunked"
        framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: 900000"
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%b\r\n\r\n" % framing)
        piece = b'{"choices":["' + b"x" * 400_000
        if is_chunked:
            call.chunk(piece)
        else:
            call.send(piece)
        time.sleep(0.05)
        call.close()

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        for framing in ("length", "chunked"):
            with proxy.client() as client:
                answer = client.request("POST", PATH, CHAT, [("x-framing", framing)])
            assert answer.status == 200
            assert not answer.is_whole
            assert answer.body == b'{"choices":["' + b"x" * 400_000, "nothing is added to it"
        assert {record["error"] for record in proxy.log(2)} == {"upstream_closed"}


# --- sending again ------------------------------------------------------------------------------------------

RETRYING = chat_policy(
    base_url=UPSTREAM, upstream="retry: {statuses: [429, 503], attempts: 2}, timeouts: {idle: 200ms}"
)
WHOLE = delta("hel") + delta("lo") + finish() + DONE


def whole_stream(call: Call) -> None:
    call.stream_head()
    call.chunk(WHOLE)
    call.end_chunks()


def busy(call: Call) -> None:
    call.json(b"{}", b"503 Busy", b"Retry-After: 0\r\n")


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_refusal_that_the_policy_retries_is_never_seen(tmp_path: Path, refusals: int) -> None:
    def script(call: Call) -> None:
        if call.number < refusals:
            busy(call)
        else:
            whole_stream(call)

    with served(tmp_path, script, RETRYING) as (proxy, upstream):
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
        (record,) = proxy.log(1)
        assert len(upstream.calls) == refusals + 1
        assert len({call.body for call in upstream.calls}) == 1
    assert (answer.status, answer.body, answer.is_whole) == (200, WHOLE, True)
    assert (record["retries"], record["status"], record["error"]) == (refusals, 200, None)
    assert record["ttft_ms"] < 200, "counted from the call that answered"


def test_when_retries_are_spent_the_last_refusal_is_the_answer(tmp_path: Path) -> None:
    with served(tmp_path, busy, RETRYING) as (proxy, upstream):
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
        assert (answer.status, answer.body, answer.header("retry-after")) == (503, b"{}", "0")
        assert len(upstream.calls) == 3


@pytest.mark.parametrize("kind", ["at once", "after the role", "after the first token", "silence"])
def test_what_an_upstream_may_have_begun_is_not_sent_again(tmp_path: Path, kind: str) -> None:
    def script(call: Call) -> None:
        if kind != "at once":
            call.stream_head()
            call.chunk(CHAT_SHAPE.opening)
        if kind == "after the first token":
            call.chunk(delta("x"))
            time.sleep(0.02)
        if kind == "silence":
            stall(call)
        else:
            call.close()

    with served(tmp_path, script, RETRYING) as (proxy, upstream):
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
        (record,) = proxy.log(1)
        assert len(upstream.calls) == 1
    assert record["retries"] == 0
    if kind == "after the first token":
        assert is_broken_off(answer, CHAT_SHAPE, CHAT_SHAPE.opening + delta("x"), "upstream_closed")
    else:
        code = "upstream_idle_timeout" if kind == "silence" else "upstream_closed"
        assert is_true_status(answer, 504 if kind == "silence" else 502, code)


def test_a_caller_never_sees_two_beginnings(tmp_path: Path) -> None:
    """A stream of a body that a policy changed, refused after its head was sent: it stays refused."""
    first = data_event({"error": {"message": "unsupported parameter: 'max_tokens'", "param": "max_tokens"}})

    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(first)
        call.end_chunks()

    policy = chat_policy("steps: [{cap_output: {default: 5}}]", base_url=UPSTREAM, upstream="retry: {}")
    with served(tmp_path, script, policy) as (proxy, upstream):
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
        assert len(upstream.calls) == 1
        (record,) = proxy.log(1)
    assert (answer.status, answer.body) == (200, first)
    assert record["error"] == "upstream_error_event"
