"""Waiting limits: each bounds its own phase and no other (reports B16, B25-B28).

Times are scaled down: what is minutes in the reports is tenths of a second here.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from pathlib import Path

import pytest

from proxy.core.upstream import Timeouts
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import UPSTREAM, served
from tests.support.shapes import CHAT as CHAT_SHAPE
from tests.support.shapes import spoken
from tests.support.weir import RunningWeir, weir


def limited(timeouts: str) -> str:
    """Return a policy of one route whose upstream has these waiting limits."""
    return chat_policy(base_url=UPSTREAM, upstream=f"timeouts: {{{timeouts}}}")


def timed(proxy: RunningWeir, request: bytes = CHAT_STREAM) -> tuple[RawAnswer, float]:
    """Send a request; return the answer and how many seconds it took."""
    begin = time.monotonic()
    with proxy.client(5.0) as client:
        answer = client.request("POST", PATH, request)
    return answer, time.monotonic() - begin


# B25
def test_no_limit_but_the_total_one_cuts_a_healthy_stream(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        for _ in range(14):
            call.chunk(spoken("a"))
            time.sleep(0.08)
        call.chunk(finish() + DONE)
        call.end_chunks()

    with served(tmp_path, script, limited("connect: 200ms, first_byte: 200ms, idle: 200ms")) as (proxy, _):
        answer, seconds = timed(proxy)
        assert proxy.log(1)[0]["error"] is None
    assert seconds > 1.0
    assert answer.body == spoken("a") * 14 + finish() + DONE
    assert answer.is_whole


# B25
def test_there_is_no_total_limit_by_default() -> None:
    assert Timeouts().total is None
    assert Timeouts().first_byte == 600
    assert Timeouts().idle == 60


# B25, B26
@pytest.mark.parametrize("sent", ["nothing", "stream", "body"])
def test_a_total_limit_cuts_even_what_flows(tmp_path: Path, sent: str) -> None:
    left = threading.Event()

    def script(call: Call) -> None:
        if sent == "stream":
            call.stream_head()
        elif sent == "body":
            call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n")
        end = time.monotonic() + 5.0
        while sent != "nothing" and not call.is_closed and time.monotonic() < end:
            call.chunk(spoken("a")) if sent == "stream" else call.send(b" ")
            time.sleep(0.02)
        if call.is_closed or call.wait_for_close(5.0):
            left.set()

    with served(tmp_path, script, limited("total: 300ms")) as (proxy, _):
        answer, seconds = timed(proxy)
        assert proxy.log(1)[0]["error"] == "upstream_total_timeout"
        # Before Weir ends, which closes everything.
        assert left.wait(2.0)
    assert 0.28 < seconds < 0.8
    if sent == "stream":
        assert CHAT_SHAPE.error_of(answer.body)["error"]["code"] == "upstream_total_timeout"
        assert not answer.is_whole
    else:
        assert answer.status == 504
        assert json.loads(answer.body)["error"]["code"] == "upstream_total_timeout"


# B16, B26
def test_a_stalled_stream_is_cut_at_the_idle_limit(tmp_path: Path) -> None:
    left: list[bool] = []

    def script(call: Call) -> None:
        if call.number == 1:
            call.json(ANSWER)
            return
        call.stream_head()
        call.chunk(spoken("a") + spoken("b"))
        left.append(call.wait_for_close(2.0))

    policy = chat_policy("max_concurrent: 1", base_url=UPSTREAM, upstream="timeouts: {idle: 200ms}")
    with served(tmp_path, script, policy) as (proxy, _):
        answer, seconds = timed(proxy)
        assert timed(proxy, CHAT)[0].body == ANSWER, "the place is still taken"
        assert proxy.log(2)[0]["error"] == "upstream_idle_timeout"
    assert 0.18 < seconds < 0.7
    assert answer.body.startswith(spoken("a") + spoken("b"))
    assert CHAT_SHAPE.error_of(answer.body)["error"]["code"] == "upstream_idle_timeout"
    assert not answer.is_whole
    assert left == [True]


STALLS = {
    "no answer": b"",
    "half a status line": b"HTTP/1.1 20",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Type: applic",
    "only interim answers": b"HTTP/1.1 102 Processing\r\n\r\n" * 3,
}


# B26, B28
@pytest.mark.parametrize("request_body", [CHAT, CHAT_STREAM], ids=["body", "stream"])
@pytest.mark.parametrize("stall", STALLS)
def test_an_upstream_that_does_not_begin_is_left_at_the_first_byte_limit(
    tmp_path: Path, stall: str, request_body: bytes
) -> None:
    left: list[bool] = []

    def script(call: Call) -> None:
        call.send(STALLS[stall])
        left.append(call.wait_for_close(2.0))

    with served(tmp_path, script, limited("first_byte: 150ms, idle: 10s")) as (proxy, _):
        answer, seconds = timed(proxy, request_body)
    assert 0.14 < seconds < 0.7
    assert answer.status == 504
    assert json.loads(answer.body)["error"]["code"] == "upstream_first_byte_timeout"
    assert left == [True]


# B26
def test_a_head_that_drips_does_not_extend_the_first_byte_limit(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\n")
        for number in range(40):
            call.send(b"X-%d: y\r\n" % number)
            time.sleep(0.02)

    with served(tmp_path, script, limited("first_byte: 200ms")) as (proxy, _):
        answer, seconds = timed(proxy)
    assert answer.status == 504
    assert seconds < 0.7


# B26
def test_an_upload_that_the_upstream_does_not_take_ends_at_the_first_byte_limit(tmp_path: Path) -> None:
    left = threading.Event()

    def script(call: Call) -> None:
        left.wait(3.0)

    policy = f"version: 1\nupstreams: {{up: {{base_url: '{UPSTREAM}', timeouts: {{first_byte: 300ms}}}}}}\n"
    with served(tmp_path, script, policy, reads_body=False) as (proxy, _), proxy.client(3.0) as client:
        begin = time.monotonic()
        client.send(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
        client.socket.setblocking(False)
        piece = b"x" * 0x10000
        while time.monotonic() < begin + 2.0 and not proxy.log():
            try:
                client.socket.send(piece)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        record = proxy.log(1, 1.0)[0]
        left.set()
    assert record["error"] == "upstream_first_byte_timeout"
    assert record["status"] == 504


# B26
def test_a_slow_upload_that_moves_is_not_cut(tmp_path: Path) -> None:
    body = b"x" * 12_000_000
    received = bytearray()

    def script(call: Call) -> None:
        while len(received) < len(body):
            received.extend(call.receive())
            time.sleep(0.005)
        call.json(b"{}")

    policy = f"version: 1\nupstreams: {{up: {{base_url: '{UPSTREAM}', timeouts: {{first_byte: 800ms}}}}}}\n"
    with served(tmp_path, script, policy, reads_body=False) as (proxy, _), proxy.client(5.0) as client:
        begin = time.monotonic()
        assert client.request("POST", "/v1/files", body).status == 200
        assert time.monotonic() - begin > 0.8, "too fast to show anything"
    assert received == body


# B26
def test_silence_while_the_caller_does_not_read_is_not_the_upstreams(tmp_path: Path) -> None:
    large = spoken("x" * 100_000)

    def script(call: Call) -> None:
        call.stream_head()
        for _ in range(200):
            call.chunk(large)
        call.chunk(finish() + DONE)
        call.end_chunks()

    with served(tmp_path, script, limited("idle: 150ms")) as (proxy, _), proxy.client(5.0) as client:
        client.send_request("POST", PATH, CHAT_STREAM)
        time.sleep(0.6)
        answer = client.read_answer("POST")
        assert proxy.log(1)[0]["error"] is None
    assert answer.is_whole
    assert len(answer.body) == 200 * len(large) + len(finish() + DONE)


# B28
@pytest.mark.parametrize("request_body", [CHAT, CHAT_STREAM], ids=["body", "stream"])
def test_prefill_and_decode_have_limits_of_their_own(tmp_path: Path, request_body: bytes) -> None:
    is_stream = request_body is CHAT_STREAM

    def begin_answer(call: Call) -> None:
        if is_stream:
            call.stream_head()
            call.chunk(spoken("a"))
        else:
            call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n")
            call.send(b'{"a":')

    def script(call: Call) -> None:
        if call.header("x-slow") == b"prefill":
            time.sleep(0.5)
            begin_answer(call)
        else:
            begin_answer(call)
            call.wait_for_close(2.0)
        if is_stream:
            call.chunk(finish() + DONE)
            call.end_chunks()
        else:
            call.send(b"123}")

    with served(tmp_path, script, limited("first_byte: 1500ms, idle: 150ms")) as (proxy, _):
        prefill, decode = proxy.client(5.0), proxy.client(5.0)
        begin = time.monotonic()
        prefill.send_request("POST", PATH, request_body, [("x-slow", "prefill")])
        decode.send_request("POST", PATH, request_body, [("x-slow", "decode")])
        decoded = decode.read_answer("POST")
        assert time.monotonic() - begin < 0.5
        prefilled = prefill.read_answer("POST")
    assert prefilled.is_whole
    assert prefilled.status == 200
    assert decoded.status == (200 if is_stream else 504)
    assert b"upstream_idle_timeout" in decoded.body


# B27
def test_a_dead_upstream_does_not_slow_a_healthy_one(tmp_path: Path) -> None:
    def dead(call: Call) -> None:
        call.wait_for_close(3.0)

    with RawUpstream(dead) as first, RawUpstream(lambda call: call.json(ANSWER)) as second:
        policy = (
            "version: 1\nupstreams:\n"
            f"  dead: {{base_url: '{first.url}', timeouts: {{first_byte: 700ms}}, max_connections: 100}}\n"
            f"  healthy: {{base_url: '{second.url}', max_connections: 4}}\n"
            "defaults: {upstream: healthy}\nroutes:\n"
            f"  - {{name: a, match: {{path: {PATH}, headers: {{x-to: dead}}}}, upstream: dead}}\n"
            f"  - {{name: b, match: {{path: {PATH}}}, upstream: healthy}}\n"
        )
        with weir(tmp_path, None, policy) as proxy, proxy.client(5.0) as client:
            waiting = [proxy.client(5.0) for _ in range(150)]
            for caller in waiting:
                caller.send_request("POST", PATH, CHAT, [("x-to", "dead")])
            first.wait_for_calls(100)
            seconds = []
            for _ in range(100):
                begin = time.monotonic()
                assert client.request("POST", PATH, CHAT).body == ANSWER
                seconds.append(time.monotonic() - begin)
            answers = [caller.read_answer("POST") for caller in waiting[:100]]
    assert statistics.median(seconds) < 0.02
    assert max(seconds) < 0.3
    for answer in answers:
        assert answer.status == 504
        assert json.loads(answer.body)["error"]["code"] == "upstream_first_byte_timeout"
