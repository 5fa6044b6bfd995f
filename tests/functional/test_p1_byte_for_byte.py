"""P1: what no step changes reaches the upstream as the caller wrote it, and comes back as the upstream did.

Every request is sent twice, directly and through Weir, to an upstream that records the bytes it gets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import HeaderList, RawAnswer, RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir
from tests.support.weir_process import weir_process

MIB = 1024 * 1024
IDLE = "steps: [{cap_output: {default: 900}}, {add_stop: ['END']}, {set_params: {top_p: {default: 1}}}]"
"""Steps that find nothing to do in the bodies below."""

POLICIES = pytest.mark.parametrize(
    "policies", [None, chat_policy(), chat_policy(IDLE)], ids=["unmatched", "no-steps", "idle-steps"]
)

USED = b'"stop":["END"],"max_tokens":9,"top_p":1,'
PRETTY = {"model": "m", "messages": [], "max_tokens": 9, "stop": ["END"], "top_p": 1}
BODIES = {
    "pretty": json.dumps(PRETTY, indent=4).encode(),
    "crlf": b'{\r\n\t"model" : "m" ,\r\n\t"max_tokens" : 9 , "stop" : "END" , "top_p" : 0.5\r\n}\r\n',
    "numbers": b'{%b"a":1e400,"b":1.10,"c":1E2,"d":-0,"e":0.1000,"f":1.0}' % USED,
    "integers": b'{%b"seed":9007199254740993,"x":%b}' % (USED, b"123456789" * 700),
    "escapes": rb'{%b"a":"<\/b>\u00e9\u00E9\u2028\"\\","k\u0065y":1}' % USED,
    "surrogates": rb'{%b"a":"\ud83c","b":"\ud83c\udf89","c":"\udf89x"}' % USED,
    "utf-8": b"{" + USED + '"a":"é你好🐈\u2028","ключ":"\u0080"}'.encode(),
    "not-utf-8": b'{%b"a":"\xff\xfe"}' % USED,
    "nan": b'{%b"a":NaN,"b":-Infinity}' % USED,
    "bom": b'\xef\xbb\xbf{%b"a":1}' % USED,
    "order": b'{"z":1,"a":{"z":{},"a":[],"m":null},%b"b":[[],{}]}' % USED,
    "nested-duplicates": b'{%b"a":{"b":1,"b":2}}' % USED,
    "unknown-fields": b'{%b"chat_template_kwargs":{"x":null,"y":{}},"":0}' % USED,
}
UNREAD = {"no-json": b"not json \x00\xff", "array": b"[1, 2.0 ]", "empty": b""}


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


@contextmanager
def twins(tmp_path: Path, policies: str | None) -> Iterator[tuple[RawUpstream, RunningWeir]]:
    """An upstream, and Weir in front of it."""
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        yield upstream, proxy


def sent_twice(
    upstream: RawUpstream,
    proxy: RunningWeir,
    method: str,
    target: str | bytes,
    body: bytes | None,
    headers: HeaderList,
) -> tuple[Call, Call]:
    """Send the same bytes directly and through Weir; return what the upstream saw of each.

    Both requests name the upstream as their host: that header is Weir's to write.
    """
    host = f"127.0.0.1:{upstream.port}"
    before = len(upstream.calls)
    for address in (("127.0.0.1", upstream.port), proxy.address):
        with RawClient(address) as client:
            client.send_request(method, target, body, headers, host)
            assert client.read_answer(method).status == 200
    direct, through = upstream.calls[before:]
    return direct, through


def assert_same(direct: Call, through: Call) -> None:
    assert through.head == direct.head
    assert through.raw_body == direct.raw_body


@POLICIES
@pytest.mark.parametrize("kind", BODIES | UNREAD)
def test_a_body_that_no_step_changes_arrives_as_it_was_written(
    tmp_path: Path, policies: str | None, kind: str
) -> None:
    with twins(tmp_path, policies) as (upstream, proxy):
        assert_same(*sent_twice(upstream, proxy, "POST", PATH, (BODIES | UNREAD)[kind], []))


@POLICIES
def test_a_chunked_body_arrives_as_it_was_written(tmp_path: Path, policies: str | None) -> None:
    body = BODIES["escapes"]
    chunks = b"".join(b"%X;ext=1\r\n%b\r\n" % (len(p), p) for p in (body[:3], body[3:40], body[40:]))
    with twins(tmp_path, policies) as (upstream, proxy):
        client = proxy.client()
        client.send_request("POST", PATH, chunks + b"0\r\n\r\n", [("Transfer-Encoding", "chunked")])
        assert client.read_answer().status == 200
        assert upstream.calls[0].body == body


TARGETS = [
    b"/v1/chat/completions?a=%27&b=(x)&c=%2F%2f&d=y+z%20&e=&f",
    b"/v1/files/it%27s%2Fa%2fname?sig=%28x%29",
    b"/v1/files/'(x)*!;:@&=+$,~-_.",
    b'/v1/%E4%BD%A0?%zz&{}|^`"<>',
]


@POLICIES
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH", "OPTIONS", "HEAD", "PUT"])
def test_a_request_line_arrives_as_it_was_written(
    tmp_path: Path, policies: str | None, target: bytes, method: str
) -> None:
    with twins(tmp_path, policies) as (upstream, proxy):
        assert_same(*sent_twice(upstream, proxy, method, target, None, []))


HEADERS: dict[str, HeaderList] = {
    "repeated": [("X-A", "1"), ("x-a", "2"), ("X-A", "1"), ("Cookie", "a=1"), ("cookie", "b=2")],
    "case": [("AUTHORIZATION", "Bearer k"), ("x-StAiNlEsS-Lang", "python"), ("content-TYPE", "text/json")],
    "empty": [("X-Empty", ""), ("X-After", "x")],
    "bytes": [("X-Bytes", b"\xe4\xbd\xa0\xff"), ("X-Tab", "a\tb"), ("X-Quote", "\"a, b\"; q='1'")],
    "tokens": [("X!#$%&'*+-.^_`|~9", "1")],
    "large": [("Authorization", "Bearer " + "k" * 12_000), ("X-Large", "v" * 12_000)],
    "many": [(f"X-Number-{number}", str(number)) for number in range(150)],
    "encodings": [
        ("Accept-Encoding", "zstd, br;q=0.9, gzip"),
        ("User-Agent", "x/1.0 (y)"),
        ("Accept", "*/*"),
    ],
}


@POLICIES
@pytest.mark.parametrize("kind", HEADERS)
def test_headers_arrive_as_they_were_written(tmp_path: Path, policies: str | None, kind: str) -> None:
    with twins(tmp_path, policies) as (upstream, proxy):
        assert_same(*sent_twice(upstream, proxy, "POST", PATH, BODIES["order"], HEADERS[kind]))


@pytest.mark.parametrize("kind", BODIES)
def test_with_a_cap_only_the_caps_bytes_differ(tmp_path: Path, kind: str) -> None:
    body = BODIES[kind]
    start = body.index(b"9", body.index(b'"max_tokens"'))
    with twins(tmp_path, chat_policy("steps: [{cap_output: {max: 7}}]")) as (upstream, proxy):
        direct, through = sent_twice(upstream, proxy, "POST", PATH, body, HEADERS["repeated"])
    assert through.body == body[:start] + b"7" + body[start + 1 :]
    assert through.head == direct.head


@pytest.mark.parametrize("kind", BODIES)
def test_with_a_default_only_its_own_bytes_are_new(tmp_path: Path, kind: str) -> None:
    body = BODIES[kind]
    with twins(tmp_path, chat_policy("steps: [{set_params: {seed_2: {default: 12}}}]")) as (upstream, proxy):
        direct, through = sent_twice(upstream, proxy, "POST", PATH, body, [])
    added = b',"seed_2":12'
    end = len(body) - len(body[body.rindex(b"}") :]) - (len(b"\r\n") if kind == "crlf" else 0)
    end -= len(b"\n") if kind == "pretty" else 0
    assert through.body == body[:end] + added + body[end:]
    lengths = (b"Content-Length: %d" % len(body), b"Content-Length: %d" % (len(body) + len(added)))
    assert through.head == direct.head.replace(*lengths)


ANSWERS = {
    "json": b"Content-Type: application/json\r\nX-A: 1\r\nx-a: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n",
    "empty-header": b"Content-Type: application/json\r\nX-Empty:\r\nSERVER: x\r\nDate: y\r\n",
    "bytes": b"Content-Type: application/octet-stream\r\nX-Bytes: \xe4\xbd\xa0\xff\r\n",
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("status", [b"200 OK", b"201 ", b"418 I'm a Teapot", b"500 Internal  Server Error"])
@pytest.mark.parametrize(
    "body", [ANSWER, b"", b"\x00\xff not json", ANSWER * 5_000], ids=["json", "none", "raw", "long"]
)
def test_an_answer_comes_back_as_it_was_written(
    tmp_path: Path, kind: str, status: bytes, body: bytes
) -> None:
    raw = b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, ANSWERS[kind], len(body), body)
    with RawUpstream(lambda call: call.send(raw)) as upstream:
        for policies in (chat_policy("headers: 'off'"), chat_policy(), None):
            with weir(tmp_path, upstream.url, policies) as proxy:
                answers = []
                for address in (("127.0.0.1", upstream.port), proxy.address):
                    with RawClient(address) as client:
                        answers.append(client.request("POST", PATH, CHAT))
            direct, through = answers
            assert (through.status, through.reason, through.body) == (
                direct.status,
                direct.reason,
                direct.body,
            )
            own = [] if policies is not None and "off" in policies else ["x-weir-request-id", "server-timing"]
            assert headers_without_weirs(through) == direct.headers
            assert [name for name in own if through.header(name) is None] == []


def headers_without_weirs(answer: RawAnswer) -> list[tuple[bytes, bytes]]:
    """Return the headers less those that Weir adds, which stand in one block after the upstream's."""
    own = (b"x-weir-", b"server-timing")
    return [(name, value) for name, value in answer.headers if not name.lower().startswith(own)]


STREAM = (
    b": hi\n\n"
    + delta("hel")
    + b"event: odd\r\nid: 7\r\ndata: {}\r\n\r\n"
    + delta("lo\u2028é")
    + finish()
    + DONE
)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'


@pytest.mark.parametrize("policies", [None, chat_policy(), chat_policy("usage: 'off'")])
@pytest.mark.parametrize("asks", [b"", b',"stream_options":{"include_usage":true}', b',"stream_options":{}'])
def test_a_stream_comes_back_as_the_upstream_would_have_written_it_for_the_caller(
    tmp_path: Path, policies: str | None, asks: bytes
) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        is_asked = b'"include_usage":true' in call.body
        stream = STREAM.replace(DONE, USAGE + DONE) if is_asked else STREAM
        call.send_pieces(
            [b"%x\r\n%b\r\n" % (len(p), p) for p in (stream[:60], stream[60:200], stream[200:])], 0.001
        )
        call.end_chunks()

    body = b'{"model":"m","stream":true%b,"messages":[]}' % asks
    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        with RawClient(("127.0.0.1", upstream.port)) as client:
            direct = client.request("POST", PATH, body)
        through = proxy.client().request("POST", PATH, body)
        asked = b'"include_usage":true' in upstream.calls[1].body
    assert through.body == direct.body
    assert asked == (policies == chat_policy() or b"include" in asks)


def count_body(call: Call) -> None:
    """Read a body without keeping it; answer with its length and hash."""
    digest, count = hashlib.sha256(), 0
    for piece in call.body_pieces():
        count += len(piece)
        digest.update(piece)
    call.json(b'{"bytes":%d,"hash":"%b"}' % (count, digest.hexdigest().encode()))


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_a_large_upload_streams_through_in_little_memory(tmp_path: Path, is_chunked: bool) -> None:
    piece = hashlib.sha512(b"weir").digest() * 1024
    count = 40 * MIB // len(piece)
    framing = ("Transfer-Encoding", "chunked") if is_chunked else ("Content-Length", str(count * len(piece)))
    with (
        RawUpstream(count_body, reads_body=False) as upstream,
        weir_process(tmp_path, upstream.url, policies=chat_policy()) as process,
    ):
        client = process.client()
        assert client.request("POST", "/v1/files", b"x").status == 200
        before = process.peak_memory_bytes()
        client.send_request("POST", "/v1/files", None, [framing])
        for _ in range(count):
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
        client.send(b"0\r\n\r\n" if is_chunked else b"")
        answer = client.read_answer()
        grown_bytes = process.peak_memory_bytes() - before
    expected = hashlib.sha256(piece * count).hexdigest()
    assert json.loads(answer.body) == {"bytes": count * len(piece), "hash": expected}
    assert grown_bytes < 8 * MIB
