"""The caller's side of HTTP/1.1: limits, order, interim answers, versions, and framings."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.raw_upstream import Call
from tests.support.served import served

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STREAM = delta("hel") + delta("lo") + finish() + DONE


def answer(call: Call) -> None:
    """Answer a stream where one is asked for, else a JSON body that names the target."""
    if b'"stream":true' in call.body:
        call.stream_head()
        for event in (delta("hel"), delta("lo"), finish() + DONE):
            call.chunk(event)
        call.end_chunks()
    else:
        call.json(b'{"target":"%b"}' % call.target)


def head(*lines: str, version: str = "1.1", target: str = PATH, method: str = "POST") -> bytes:
    """Return a head with these header lines."""
    return "\r\n".join([f"{method} {target} HTTP/{version}", *lines, "", ""]).encode()


def is_ours(refusal: RawAnswer, status: int, code: str) -> bool:
    """Tell whether an answer is a refusal of Weir's own that closes the connection."""
    error = json.loads(refusal.body)["error"]
    assert refusal.header("content-type") == "application/json"
    assert refusal.header("x-weir-request-id")
    return (refusal.status, error["code"], refusal.header("connection")) == (status, code, "close")


# --- limits -------------------------------------------------------------------------------------------------

TOO_MUCH = {
    "long line": head("Host: a", "X-Long: " + "x" * 9_000),
    "long target": head("Host: a", target="/v1/" + "x" * 9_000),
    "long name": head("Host: a", "x" * 9_000 + ": 1"),
    "many bytes": head("Host: a", *(f"X-{number}: {'x' * 90}" for number in range(100))),
    "many lines": head("Host: a", *(f"X-{number}: 1" for number in range(201))),
    "never ends": head("Host: a", "X-Long: " + "x" * 20_000)[:-4],
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_a_head_over_the_limits_is_431(tmp_path: Path, kind: str) -> None:
    with served(tmp_path, answer, head_bytes=8 * 1024) as (proxy, upstream), proxy.client() as client:
        client.send(TOO_MUCH[kind])
        refusal = client.read_answer()
        assert is_ours(refusal, 431, "headers_too_large")
        assert client.is_closed_within(3)
        (record,) = proxy.log(1)
        assert upstream.calls == []
    assert (record["status"], record["error"]) == (431, "headers_too_large")
    assert record["request_id"] == refusal.header("x-weir-request-id")


def test_a_head_just_within_the_limits_passes(tmp_path: Path) -> None:
    lines = ["Host: a", *(f"X-{number}: 1" for number in range(198)), "Content-Length: 0"]
    with served(tmp_path, answer) as (proxy, _), proxy.client() as client:
        client.send(head(*lines))
        assert client.read_answer().status == 200
        client.send(head("Host: a", "X-Long: " + "x" * 65_000, method="GET"))
        assert client.read_answer().status == 200


CAPPED = chat_policy("steps: [{cap_output: {max: 9}}]", "max_body: 1KiB")


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_over_the_limit_is_413(tmp_path: Path, framing: str) -> None:
    body = b'{"model":"m","messages":[],"x":"%b"}' % (b"x" * 2_000)
    with served(tmp_path, answer, CAPPED) as (proxy, upstream), proxy.client() as client:
        if framing == "length":
            client.send(head("Host: a", f"Content-Length: {len(body)}") + body)
        else:
            client.send(head("Host: a", "Transfer-Encoding: chunked"))
            for start in range(0, len(body), 300):
                piece = body[start : start + 300]
                client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        assert is_ours(client.read_answer(), 413, "body_too_large")
        assert client.is_closed_within(3)
        (record,) = proxy.log(1)
        assert upstream.calls == []
    assert (record["status"], record["error"]) == (413, "body_too_large")


SLOW = {
    "head": head("Host: a", "Content-Length: 9")[:-4],
    "body": head("Host: a", "Content-Length: 9") + b"{",
    "chunk": head("Host: a", "Transfer-Encoding: chunked") + b"5\r\n{",
    "unread body": head("Host: a", "Content-Length: 90000", target="/v1/files") + b"x",
}


@pytest.mark.parametrize("kind", SLOW)
def test_a_request_that_stops_coming_is_408(tmp_path: Path, kind: str) -> None:
    def script(call: Call) -> None:
        call.wait_for_close(5)

    with (
        served(tmp_path, script, chat_policy(), False, header_seconds=0.15, body_seconds=0.15) as (proxy, _),
        proxy.client() as client,
    ):
        client.send(SLOW[kind])
        refusal = client.read_answer()
        assert is_ours(refusal, 408, "request_timeout")
        assert client.is_closed_within(3)
        records = proxy.log(1)
    assert [(record["status"], record["error"]) for record in records] == [(408, "request_timeout")]
    assert records[0]["request_id"] == refusal.header("x-weir-request-id")


def test_a_slow_body_that_keeps_coming_is_not_cut(tmp_path: Path) -> None:
    with (
        served(tmp_path, answer, chat_policy(), header_seconds=0.2, body_seconds=0.2) as (proxy, _),
        proxy.client() as client,
    ):
        client.send(head("Host: a", f"Content-Length: {len(CHAT)}"))
        for start in range(0, len(CHAT), 6):
            client.send(CHAT[start : start + 6])
            time.sleep(0.05)
        assert client.read_answer().status == 200


# --- order --------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order_one_at_a_time(tmp_path: Path) -> None:
    busy = threading.Lock()
    overlaps: list[bytes] = []

    def script(call: Call) -> None:
        if not busy.acquire(blocking=False):
            overlaps.append(call.target)
            return
        time.sleep(0.08 / (call.number + 1))
        busy.release()
        answer(call)

    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT_STREAM), CHAT_STREAM)
    with served(tmp_path, script, chat_policy()) as (proxy, _), proxy.client() as client:
        client.send(
            head("Host: a", target="/v1/first", method="GET")
            + head("Host: a", f"Content-Length: {len(CHAT)}")
            + CHAT
            + head("Host: a", "Transfer-Encoding: chunked")
            + chunks
            + head("Host: a", target="/v1/head", method="HEAD")
            + head("Host: a", "Connection: close", target="/v1/last", method="GET")
        )
        answers = [client.read_answer(method) for method in ("GET", "POST", "POST", "HEAD", "GET")]
        assert client.is_closed_within(3)
        records = proxy.log(5)
    assert overlaps == []
    assert [answer.status for answer in answers] == [200] * 5
    assert [answer.body for answer in answers] == [
        b'{"target":"/v1/first"}',
        b'{"target":"%b"}' % PATH.encode(),
        STREAM,
        b"",
        b'{"target":"/v1/last"}',
    ]
    paths = ["/v1/first", PATH, PATH, "/v1/head", "/v1/last"]
    assert [record["path"] for record in records] == paths
    ids = [answer.header("x-weir-request-id") for answer in answers]
    assert [record["request_id"] for record in records] == ids


def test_an_upload_behind_a_slow_answer_is_not_read_without_bound(tmp_path: Path) -> None:
    may_answer = threading.Event()

    def script(call: Call) -> None:
        may_answer.wait(5)
        call.json(ANSWER)

    with served(tmp_path, script) as (proxy, upstream), proxy.client() as client:
        client.send(head("Host: a", method="GET", target="/v1/slow"))
        upstream.wait_for_calls(1)
        client.send(head("Host: a", "Content-Length: 100000000", target="/v1/files"))
        taken_bytes = sent_until_stuck(client, 100_000_000)
        may_answer.set()
    assert taken_bytes < 50_000_000


def sent_until_stuck(client: RawClient, most_bytes: int) -> int:
    """Send until the other side takes no more; return how much it took."""
    client.socket.settimeout(0.3)
    taken_bytes = 0
    while taken_bytes < most_bytes:
        try:
            taken_bytes += client.socket.send(b"x" * 0x10000)
        except TimeoutError:
            break
    return taken_bytes


# --- Expect: 100-continue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [PATH, "/v1/files"], ids=["read", "unread"])
def test_a_caller_that_waits_for_leave_gets_it_and_the_upstream_never_hears_of_it(
    tmp_path: Path, target: str
) -> None:
    body = b'{"model":"m","messages":[],"x":"%b"}' % (b"x" * 100_000)
    with served(tmp_path, answer, chat_policy()) as (proxy, upstream), proxy.client() as client:
        lines = ["Host: a", f"Content-Length: {len(body)}", "Expect: 100-Continue"]
        client.send(head(*lines, target=target))
        assert client.receive() == CONTINUE
        client.send(body)
        assert client.read_answer().body == b'{"target":"%b"}' % target.encode()
        (call,) = upstream.calls
    assert call.body == body
    assert call.header("expect") is None


@pytest.mark.parametrize("kind", ["too large", "bad target", "body came along", "version 1.0"])
def test_nobody_is_told_to_go_on_for_nothing(tmp_path: Path, kind: str) -> None:
    length, version, target, sent = len(CHAT), "1.1", PATH, CHAT
    if kind == "too large":
        length, sent = 5_000, b""
    elif kind == "bad target":
        target, sent = "/v1/../x", b""
    elif kind == "version 1.0":
        version = "1.0"
    lines = ["Host: a", f"Content-Length: {length}", "Expect: 100-continue"]
    with served(tmp_path, answer, CAPPED) as (proxy, _), proxy.client() as client:
        early = 20 if kind == "body came along" else 0
        client.send(head(*lines, version=version, target=target) + sent[:early])
        if sent:
            time.sleep(0.05)
            client.send(sent[early:])
        raw = client.receive()
    wanted = {"too large": b"413", "bad target": b"400"}.get(kind, b"200")
    assert raw.startswith(b"HTTP/1.1 " + wanted)


# --- versions and methods -----------------------------------------------------------------------------------


def test_http_1_0_is_answered_without_chunks_and_closed(tmp_path: Path) -> None:
    with served(tmp_path, answer, chat_policy()) as (proxy, upstream):
        for body, lines in ((CHAT, []), (CHAT_STREAM, ["Connection: keep-alive"])):
            with proxy.client() as client:
                client.send(head(f"Content-Length: {len(body)}", *lines, version="1.0") + body)
                got = client.read_answer()
                assert got.status == 200
                assert got.header("transfer-encoding") is None
                assert got.header("connection") == "close"
                assert got.body == (STREAM if body is CHAT_STREAM else b'{"target":"%b"}' % PATH.encode())
                assert client.is_closed_within(3)
        assert {call.request_line for call in upstream.calls} == {b"POST %b HTTP/1.1" % PATH.encode()}
        assert [call.header("host") for call in upstream.calls] == [f"127.0.0.1:{upstream.port}".encode()] * 2


def test_head_says_what_get_would_and_leaves_the_connection_usable(tmp_path: Path) -> None:
    with served(tmp_path, answer) as (proxy, _), proxy.client() as client:
        got = client.request("GET", "/v1/models")
        said = client.request("HEAD", "/v1/models")
        assert said.header("content-length") == str(len(got.body))
        assert said.header("transfer-encoding") is None
        assert client.request("GET", "/v1/models").body == got.body
        refused = client.request("HEAD", "/v1//x")
        assert (refused.status, refused.body) == (400, b"")
        assert int(refused.header("content-length") or 0) > 0


@pytest.mark.parametrize("target", [PATH, "/v1/files"], ids=["read", "unread"])
def test_a_chunked_request_arrives_whole_without_its_extensions_and_trailers(
    tmp_path: Path, target: str
) -> None:
    pieces = [CHAT[:1], CHAT[1:9], CHAT[9:]]
    with served(tmp_path, answer, chat_policy()) as (proxy, upstream), proxy.client() as client:
        client.send(head("Host: a", "Transfer-Encoding: chunked", "Trailer: x-sum", target=target))
        for number, piece in enumerate(pieces):
            client.send(b"%04X;n=%d\r\n%b\r\n" % (len(piece), number, piece))
            time.sleep(0.005)
        client.send(b"0;last\r\nX-Sum: 1\r\nAuthorization: x\r\n\r\n")
        assert client.read_answer().status == 200
        assert client.request("POST", target, CHAT).status == 200, "the connection is still in step"
        first, second = upstream.calls
    assert first.body == second.body == CHAT
    assert b"x-sum" not in first.head.lower()


# --- keep-alive ---------------------------------------------------------------------------------------------


def test_an_idle_connection_closes_after_its_time_and_a_busy_one_does_not(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        time.sleep(0.5)
        call.json(ANSWER)

    with served(tmp_path, script, keep_alive_seconds=0.2) as (proxy, _), proxy.client() as client:
        assert client.request("GET", "/v1/slow").status == 200
        assert client.request("GET", "/v1/slow").status == 200
        begin = time.monotonic()
        assert client.is_closed_within(2)
        assert time.monotonic() - begin > 0.18
        assert len(proxy.log(2)) == 2


def test_a_connection_serves_many_requests_until_the_caller_says_close(tmp_path: Path) -> None:
    with served(tmp_path, answer) as (proxy, upstream), proxy.client() as client:
        for _ in range(20):
            got = client.request("GET", "/v1/models")
            assert got.header("connection") is None
        last = client.request("GET", "/v1/models", None, [("Connection", "close")])
        assert last.header("connection") == "close"
        assert client.is_closed_within(2)
        assert upstream.connections == 1, "the upstream's connection was kept, too"


# --- ambiguity ----------------------------------------------------------------------------------------------

AMBIGUOUS = {
    "both lengths": head("Host: a", "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "two lengths": head("Host: a", "Content-Length: 4", "Content-Length: 5") + b"abcde",
    "length list": head("Host: a", "Content-Length: 4, 4") + b"abcd",
    "signed length": head("Host: a", "Content-Length: +4") + b"abcd",
    "unknown coding": head("Host: a", "Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
    "coding in 1.0": head("Host: a", "Transfer-Encoding: chunked", version="1.0") + b"0\r\n\r\n",
    "folded header": head("Host: a", "X-A: 1", " 2"),
    "space before colon": head("Host: a", "X-A : 1"),
    "no host": head("X-A: 1"),
    "two hosts": head("Host: a", "Host: b"),
    "bad name": head("Host: a", "X(A): 1"),
    "bare line feed": head("Host: a", "X-A: 1\nX-B: 2"),
    "nul": head("Host: a", "X-A: \0"),
    "bad chunk": head("Host: a", "Transfer-Encoding: chunked") + b"zz\r\nabc\r\n",
    "version 2": head("Host: a", version="2.0"),
    "version 0.9": b"GET /v1/models\r\n\r\n",
    "nonsense": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_what_could_be_read_in_two_ways_is_400_and_closed(tmp_path: Path, kind: str) -> None:
    with served(tmp_path, answer, chat_policy()) as (proxy, upstream), proxy.client() as client:
        client.send(AMBIGUOUS[kind] + head("Host: a", method="GET", target="/v1/smuggled"))
        refusal = client.read_answer()
        assert refusal.status in (400, 501)
        assert refusal.header("connection") == "close"
        assert refusal.header("x-weir-request-id")
        assert client.is_closed_within(3)
        records = proxy.log(1)
        assert upstream.calls == []
    assert [record["status"] for record in records] == [refusal.status]
    assert records[0]["request_id"] == refusal.header("x-weir-request-id")
