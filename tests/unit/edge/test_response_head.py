"""The head that a caller gets: the upstream's, less its connection's, with one true framing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.edge.response_head import is_event_stream, is_json, is_plain, write_handshake, write_response_head
from proxy.http.framing import Framing
from proxy.http.head import HOP_BY_HOP, Header, ResponseHead
from proxy.http.limits import ClientLimits
from proxy.http.response_reader import ResponseReader

Pair = tuple[bytes, bytes]

REPORT = b"x-weir-request-id: abc\r\nServer-Timing: overhead;dur=0.1\r\n"
_names = st.one_of(
    st.sampled_from(sorted(HOP_BY_HOP - {b"transfer-encoding"})),
    st.sampled_from(
        [b"Set-Cookie", b"X-A", b"x-a", b"Server-Timing", b"Cache-Control", b"X-Accel-Buffering"]
    ),
    st.from_regex(rb"\A[A-Za-z0-9!#$%&'*+.^_`|~-]{1,8}\Z"),
).filter(lambda name: name.lower() not in (b"content-length", b"transfer-encoding"))
_values = st.one_of(
    st.sampled_from([b"", b"X-A", b"close", b"content-length, X-A", b"Transfer-Encoding"]),
    st.binary(max_size=10).map(lambda raw: bytes(0x21 + byte % 0x5E for byte in raw)),
)
_pairs = st.lists(st.tuples(_names, _values), max_size=10)


def answer(pairs: Sequence[Pair], status: int = 200) -> ResponseHead:
    headers: list[Header] = [(name.lower(), name, value) for name, value in pairs]
    return ResponseHead(status, b"Fine", headers)


def written(
    head: ResponseHead,
    framing: Framing,
    keep_alive: bool = True,
    is_stream: bool = False,
    method: bytes = b"GET",
) -> list[Pair]:
    """Return the header lines that are sent, as a strict client reads them together with the body."""
    raw = write_response_head(head, framing, REPORT, keep_alive, is_stream)
    body = {Framing.LENGTH: b"hello", Framing.CHUNKED: b"5\r\nhello\r\n0\r\n\r\n", Framing.CLOSE: b"hello"}
    reader = ResponseReader(ClientLimits())
    reader.expect(method)
    reader.feed(raw + body.get(framing, b""))
    assert reader.failure is None, (reader.failure, raw)
    assert reader.head is not None
    assert (reader.head.status, reader.head.reason) == (head.status, head.reason)
    assert reader.is_ended is (framing is not Framing.CLOSE)
    assert reader.until_close is (framing is Framing.CLOSE)
    assert framing is Framing.NONE or reader.take_body() == b"hello"
    assert reader.head.keep_alive is (keep_alive and framing is not Framing.CLOSE)
    return [(name, value) for _, name, value in reader.head.headers]


@given(
    _pairs,
    st.sampled_from([Framing.LENGTH, Framing.CHUNKED, Framing.CLOSE]),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
)
def test_every_end_to_end_header_arrives_as_it_was_written_and_the_framing_is_true(
    pairs: list[Pair], framing: Framing, length_at: int, keep_alive: bool, is_stream: bool
) -> None:
    lines = [*pairs[:length_at], (b"Content-LENGTH", b"5"), *pairs[length_at:]]
    listed = b",".join(value for name, value in lines if name.lower() == b"connection")
    dropped = HOP_BY_HOP | {option.strip().lower() for option in listed.split(b",")} | {b"content-length"}
    sent = written(answer(lines), framing, keep_alive, is_stream)
    passed = [pair for pair in lines if pair[0].lower() not in dropped]
    assert sent[: len(passed)] == passed or framing is Framing.LENGTH
    assert [pair for pair in sent if pair[0].lower() != b"content-length"][: len(passed)] == passed
    names = [name.lower() for name, _ in sent]
    assert names.count(b"content-length") == int(framing is Framing.LENGTH)
    assert names.count(b"transfer-encoding") == int(framing is Framing.CHUNKED)
    assert names.count(b"x-weir-request-id") == 1
    assert not {b"upgrade", b"keep-alive", b"trailer", b"te"} & set(names)


def test_an_upstream_cannot_take_the_length_away_by_listing_it() -> None:
    head = answer([(b"Connection", b"Content-Length, X-A"), (b"Content-Length", b"5"), (b"X-A", b"1")])
    sent = written(head, Framing.LENGTH)
    assert sent[0] == (b"Content-Length", b"5")
    assert b"X-A" not in dict(sent)


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("said", "added"),
    [
        ([], [b"Cache-Control", b"X-Accel-Buffering"]),
        ([(b"CACHE-CONTROL", b"max-age=1")], [b"X-Accel-Buffering"]),
        ([(b"x-accel-buffering", b"yes")], [b"Cache-Control"]),
    ],
)
def test_streams_ask_not_to_be_buffered_unless_their_upstream_said_something(
    said: list[Pair], added: list[bytes], is_stream: bool
) -> None:
    sent = written(answer(said), Framing.CHUNKED, is_stream=is_stream)
    ours = {(b"Cache-Control", b"no-cache, no-transform"), (b"X-Accel-Buffering", b"no")}
    assert [name for name, value in sent if (name, value) in ours] == (added if is_stream else [])
    assert sent[: len(said)] == said


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
def test_an_answer_without_a_body_keeps_the_length_that_it_tells(method: bytes, status: int) -> None:
    head = answer([(b"Content-Length", b"99")], status)
    assert (b"Content-Length", b"99") in written(head, Framing.NONE, method=method)


def test_a_handshake_says_the_protocol_once() -> None:
    pairs = [(b"Connection", b"upgrade"), (b"Upgrade", b"WebSocket"), (b"Sec-WebSocket-Accept", b"x=")]
    raw = write_handshake(answer(pairs, 101), REPORT)
    reader = ResponseReader(ClientLimits())
    reader.expect(b"GET")
    reader.feed(raw + b"\x81frame")
    assert reader.rest == b"\x81frame"
    assert reader.head is not None
    sent = [(name.lower(), value) for _, name, value in reader.head.headers]
    assert sent.count((b"upgrade", b"WebSocket")) == sent.count((b"connection", b"Upgrade")) == 1
    assert (b"sec-websocket-accept", b"x=") in sent


@pytest.mark.parametrize(
    ("media_type", "is_events", "is_text"),
    [
        (b"text/event-stream", True, False),
        (b"Text/Event-Stream; charset=utf-8", True, False),
        (b"application/json", False, True),
        (b"APPLICATION/JSON; charset=utf-8", False, True),
        (b"application/problem+json", False, True),
        (b"text/plain", False, False),
        (b"", False, False),
    ],
)
def test_what_an_answer_is_follows_from_its_media_type(
    media_type: bytes, is_events: bool, is_text: bool
) -> None:
    head = answer([(b"Content-Type", media_type)])
    assert (is_event_stream(head), is_json(head)) == (is_events, is_text)


@pytest.mark.parametrize(
    ("coding", "plain"), [(None, True), (b"identity", True), (b"", True), (b"gzip", False)]
)
def test_what_is_compressed_is_not_read(coding: bytes | None, plain: bool) -> None:
    assert is_plain(answer([] if coding is None else [(b"Content-Encoding", coding)])) is plain
