"""Headers and framing of answers: what gateways lost, doubled or contradicted (reports B62-B67)."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

POLICIES = pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])
STREAM_BYTES = delta("hel") + delta("lo") + finish() + DONE
OWN_PREFIX = b"x-weir-"


def received(answer: RawAnswer) -> list[tuple[bytes, bytes]]:
    """Return the header lines that are the upstream's, in order."""
    return [(name, value) for name, value in answer.headers if not name.lower().startswith(OWN_PREFIX)]


# B62
@POLICIES
@pytest.mark.parametrize("coding", [b"gzip", b"br", b"zstd", b"deflate", b"gzip, gzip", b"unheard-of"])
@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found", b"500 Oops"])
def test_a_compressed_body_stays_compressed_with_its_header(
    tmp_path: Path, policies: str | None, coding: bytes, status: bytes
) -> None:
    packed = gzip.compress(ANSWER * 30)

    def script(call: Call) -> None:
        call.json(packed, status, b"Content-Encoding: %b\r\n" % coding)

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT, [("Accept-Encoding", "gzip, br, zstd")])
    assert answer.status == int(status[:3])
    assert answer.body == packed
    assert answer.all("content-encoding") == [coding.decode()]
    assert answer.all("content-length") == [str(len(packed))]


# B62
@POLICIES
def test_a_compressed_stream_passes_as_it_comes(tmp_path: Path, policies: str | None) -> None:
    packed = gzip.compress(STREAM_BYTES)

    def script(call: Call) -> None:
        call.stream_head(b"Content-Encoding: gzip\r\n")
        for byte in packed:
            call.chunk(bytes([byte]))
        call.end_chunks()

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
    assert gzip.decompress(answer.body) == STREAM_BYTES
    assert answer.header("content-encoding") == "gzip"
    assert answer.is_whole


# B62
def test_a_compressed_error_on_a_streaming_request_keeps_its_header(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"error":{"message":"slow down"}}')

    def script(call: Call) -> None:
        call.json(packed, b"429 Too Many Requests", b"Content-Encoding: gzip\r\n")

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
    assert (answer.status, answer.body, answer.header("content-encoding")) == (429, packed, "gzip")


# B63
@POLICIES
@pytest.mark.parametrize("is_stream", [False, True])
def test_repeated_response_headers_all_arrive_in_order(
    tmp_path: Path, policies: str | None, is_stream: bool
) -> None:
    lines = (
        b"Set-Cookie: a=1; Path=/\r\nServer-Timing: db;dur=1\r\nset-cookie: b=2\r\nLink: </one>\r\n"
        b"Server-Timing: queue;dur=2\r\nLink: </two>\r\nX-Empty:\r\nX-Same: 1\r\nX-Same: 1\r\n"
    )

    def script(call: Call) -> None:
        if is_stream:
            call.stream_head(lines)
            call.chunk(STREAM_BYTES)
            call.end_chunks()
        else:
            call.json(ANSWER, headers=lines)

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT_STREAM if is_stream else CHAT)
    sent = [
        (name, value.strip()) for name, _, value in (x.partition(b":") for x in lines.split(b"\r\n")[:-1])
    ]
    assert [pair for pair in received(answer) if pair in sent] == sent
    timings = answer.all("server-timing")
    assert timings[:2] == ["db;dur=1", "queue;dur=2"]
    assert len(timings) == 3, "Weir's own entry is a line of its own, after the upstream's"


# B63
@POLICIES
def test_repeated_request_headers_all_arrive_in_order(tmp_path: Path, policies: str | None) -> None:
    lines = [
        ("X-Tag", "one"), ("x-tag", "two"), ("Cookie", "a=1"), ("Accept", "a/b"), ("COOKIE", "b=2"),
        ("X-Tag", "one"), ("X-Empty", ""), ("aCCepT", "*/*"),
    ]  # fmt: skip

    with (
        RawUpstream(lambda call: call.json(ANSWER)) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
    ):
        proxy.client().request("POST", PATH, CHAT, lines)
        call = upstream.calls[0]
    assert call.headers[-len(lines) :] == [(name.encode(), value.encode()) for name, value in lines]


# B64
@POLICIES
def test_hop_by_hop_request_headers_end_here(tmp_path: Path, policies: str | None) -> None:
    hop = [
        ("Connection", "close, X-Hop"),
        ("connection", "x-other-hop"),
        ("X-Hop", "secret"),
        ("X-Other-Hop", "secret"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic secret"),
        ("Proxy-Connection", "keep-alive"),
        ("Keep-Alive", "timeout=5"),
        ("Upgrade", "h2c"),
        ("Trailer", "X-Checksum"),
        ("X-End-To-End", "kept"),
    ]
    with (
        RawUpstream(lambda call: call.json(ANSWER)) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
    ):
        with proxy.client() as client:
            assert client.request("POST", PATH, CHAT, hop).status == 200
            assert client.is_closed_within(1)
        call = upstream.calls[0]
    names = [name.lower() for name, _ in call.headers]
    assert names == [b"host", b"content-length", b"content-type", b"x-end-to-end"]
    assert b"secret" not in call.head


# B64
@POLICIES
@pytest.mark.parametrize("is_stream", [False, True])
def test_hop_by_hop_response_headers_end_here(tmp_path: Path, policies: str | None, is_stream: bool) -> None:
    lines = (
        b"Connection: X-Hop, close\r\nX-Hop: secret\r\nKeep-Alive: timeout=5\r\n"
        b"Proxy-Authenticate: secret\r\nTrailer: X-Checksum\r\nUpgrade: h2c\r\nX-End-To-End: kept\r\n"
    )

    def script(call: Call) -> None:
        if is_stream:
            call.stream_head(lines)
            call.chunk(STREAM_BYTES)
            call.send(b"0\r\nX-Checksum: secret\r\n\r\n")
        else:
            call.json(ANSWER, headers=lines)
        call.close()

    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
        proxy.client() as client,
    ):
        answer = client.request("POST", PATH, CHAT_STREAM if is_stream else CHAT)
        again = client.request("POST", PATH, CHAT)
    gone = ("connection", "x-hop", "keep-alive", "proxy-authenticate", "trailer", "upgrade")
    assert [name for name in gone if answer.header(name) is not None] == []
    assert b"secret" not in b"".join(value for _, value in answer.headers)
    assert answer.header("x-end-to-end") == "kept"
    assert answer.is_whole
    assert again.status == 200, "the caller's connection does not end with the upstream's"


def framings(answer: RawAnswer) -> int:
    return len(answer.all("content-length")) + len(answer.all("transfer-encoding"))


# B65
@POLICIES
def test_a_chunked_error_is_framed_once(tmp_path: Path, policies: str | None) -> None:
    body = b'{"error":{"message":"no such model"}}'

    def script(call: Call) -> None:
        call.send(
            b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        call.chunk(body[:7])
        call.chunk(body[7:])
        call.end_chunks()

    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
        proxy.client() as client,
    ):
        for _ in range(2):
            answer = client.request("POST", PATH, CHAT)
            assert (answer.status, answer.body, answer.is_whole) == (404, body, True)
            assert framings(answer) == 1


# B65
@pytest.mark.parametrize("route_line", ["usage: ask", "timing_comment: true", "heartbeat: 10s"])
def test_a_stream_that_may_change_in_length_loses_its_stale_length(tmp_path: Path, route_line: str) -> None:
    def script(call: Call) -> None:
        call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
            % (len(STREAM_BYTES), STREAM_BYTES)
        )

    policies = chat_policy(route_line)
    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
        proxy.client() as client,
    ):
        for _ in range(2):
            answer = client.request("POST", PATH, CHAT_STREAM)
            assert answer.all("transfer-encoding") == ["chunked"]
            assert answer.all("content-length") == []
            assert answer.body.startswith(STREAM_BYTES)


# B65
@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"Content-Length: 3\r\nContent-Length: 4",
        b"Content-Length: nonsense",
    ],
)
def test_an_upstream_that_contradicts_itself_about_length_is_not_relayed(
    tmp_path: Path, framing: bytes
) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (framing, len(ANSWER), ANSWER))

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT)
    assert (answer.status, framings(answer), answer.is_whole) == (502, 1, True)
    assert b'"code":"upstream_protocol_error"' in answer.body


# B65
@POLICIES
@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
def test_head_keeps_the_length_and_has_no_body(tmp_path: Path, policies: str | None, status: bytes) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: 1234\r\n\r\n" % status)

    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
        proxy.client() as client,
    ):
        for _ in range(2):
            answer = client.request("HEAD", PATH)
            assert answer.status == int(status[:3])
            assert answer.all("content-length") == ["1234"]
            assert framings(answer) == 1
        assert client.buffer == b""


# B65
@POLICIES
@pytest.mark.parametrize(
    ("head", "lengths"),
    [
        (b"204 No Content\r\n", []),
        (b"304 Not Modified\r\nETag: x\r\n", []),
        (b"304 Not Modified\r\nContent-Length: 99\r\n", ["99"]),
    ],
)
def test_bodiless_statuses_have_no_body_and_leave_the_connection_in_step(
    tmp_path: Path, policies: str | None, head: bytes, lengths: list[str]
) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 " + head + b"\r\n")

    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
        proxy.client() as client,
    ):
        for _ in range(3):
            answer = client.request("POST", PATH, CHAT)
            assert answer.status == int(head[:3])
            assert answer.all("content-length") == lengths
            assert answer.all("transfer-encoding") == []
            assert client.buffer == b""


# B65
def test_a_body_that_only_the_close_ends_is_framed_for_the_caller(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + ANSWER)
        call.close()

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url) as proxy, proxy.client() as client:
        for _ in range(2):
            answer = client.request("POST", PATH, CHAT)
            assert (answer.body, answer.is_whole) == (ANSWER, True)
            assert answer.all("transfer-encoding") == ["chunked"]


# B66
@pytest.mark.parametrize("asked", ["br, zstd", "gzip;q=1.0, br;q=0.5", "*"])
def test_a_stream_that_is_read_is_asked_for_in_plain(tmp_path: Path, asked: str) -> None:
    def script(call: Call) -> None:
        assert call.header("accept-encoding") == b"identity"
        call.stream_head()
        call.chunk(STREAM_BYTES)
        call.end_chunks()

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT_STREAM, [("Accept-Encoding", asked)])
        assert (answer.status, answer.body) == (200, STREAM_BYTES)
        assert answer.header("x-weir-ttft-ms") is not None


# B66
@pytest.mark.parametrize(
    ("policies", "body"),
    [(None, CHAT_STREAM), (None, CHAT), (chat_policy("usage: off"), CHAT_STREAM), (chat_policy(), CHAT)],
    ids=["unmatched-stream", "unmatched", "usage-off", "whole-answer"],
)
def test_what_is_not_read_is_asked_for_as_the_caller_asked(
    tmp_path: Path, policies: str | None, body: bytes
) -> None:
    with (
        RawUpstream(lambda call: call.json(ANSWER)) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
    ):
        proxy.client().request("POST", PATH, body, [("Accept-Encoding", "br, zstd")])
        assert upstream.calls[0].header("accept-encoding") == b"br, zstd"


# B66
def test_a_compressed_answer_that_is_read_for_usage_passes_unread(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}')

    def script(call: Call) -> None:
        call.json(packed, headers=b"Content-Encoding: br\r\n")

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT, [("Accept-Encoding", "br")])
        record = proxy.log(1)[0]
    assert (answer.body, answer.header("content-encoding")) == (packed, "br")
    assert (record["status"], record["error"], record["tokens_out"]) == (200, None, None)


# B67
@POLICIES
@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"503 Service Unavailable"])
@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["whole", "stream"])
def test_rate_limit_headers_pass_under_their_own_names(
    tmp_path: Path, policies: str | None, status: bytes, body: bytes
) -> None:
    lines = [
        (b"Retry-After", b"30"),
        (b"retry-after-ms", b"30000"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"X-RateLimit-Reset-Requests", b"1m2.5s"),
        (b"x-should-retry", b"false"),
    ]
    text = b'{"error":{"message":"slow down","type":"requests","param":null,"code":"rate_limit_exceeded"}}'

    def script(call: Call) -> None:
        call.json(text, status, b"".join(b"%b: %b\r\n" % line for line in lines))

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, body)
        calls = len(upstream.calls)
    assert (answer.status, answer.body) == (int(status[:3]), text)
    assert [line for line in answer.headers if line in lines] == lines
    assert answer.header("content-type") == "application/json"
    assert calls == 1, "no retry of which the caller did not hear"


# B67
def test_rate_limit_headers_pass_when_retries_are_spent_or_too_far_off(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        wait = b"0.01" if call.header("x-wait") is None else b"7200"
        call.json(
            b"{}", b"429 Too Many Requests", b"Retry-After: %b\r\nX-Number: %d\r\n" % (wait, call.number)
        )

    with RawUpstream(script) as upstream:
        policies = chat_policy(base_url=upstream.url, upstream="retry: {attempts: 1}")
        with weir(tmp_path, None, policies) as proxy, proxy.client() as client:
            spent = client.request("POST", PATH, CHAT)
            too_far = client.request("POST", PATH, CHAT, [("X-Wait", "long")])
    assert (spent.status, spent.header("retry-after"), spent.header("x-number")) == (429, "0.01", "1")
    assert (too_far.status, too_far.header("retry-after"), too_far.header("x-number")) == (429, "7200", "2")
