"""Whatever the network cuts, answers are read the same, and what is no whole answer never passes for one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import UPSTREAM_PROTOCOL
from proxy.http.limits import ClientLimits
from proxy.http.response_reader import ResponseReader
from tests.unit.http.messages import Message, cut, cuts, every_cut, responses

LIMITS = ClientLimits()
SMALL = replace(LIMITS, head_bytes=1000, header_count=20)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def feed(reader: ResponseReader, pieces: Iterable[bytes]) -> bytes:
    """Feed pieces as a connection would, to the end or a failure; return the body so far."""
    body = b""
    for piece in pieces:
        reader.feed(piece)
        body += reader.take_body()
        if reader.failure is not None:
            break
    return body


def read(pieces: Iterable[bytes], method: bytes = b"GET", limits: ClientLimits = LIMITS) -> ResponseReader:
    """Return a reader that was fed one answer's pieces; its body is in `parts`."""
    reader = ResponseReader(limits)
    reader.expect(method)
    body = feed(reader, pieces)
    reader.parts = [body]
    return reader


def said(reader: ResponseReader) -> tuple[object, object, bytes]:
    """Return what was read of an answer."""
    head = reader.head
    assert head is not None
    start = (b"%d" % head.status, head.reason)
    return start, tuple((name, value) for _, name, value in head.headers), b"".join(reader.parts)


@given(st.lists(responses(), min_size=1, max_size=4), st.data())
def test_any_cut_of_one_answer_after_another_gives_the_same_answers(
    messages: list[Message], data: st.DataObject
) -> None:
    reader = ResponseReader(LIMITS)
    for message in messages:
        reader.expect(b"GET")
        reader.parts = [feed(reader, data.draw(cuts(message.raw)))]
        assert reader.failure is None
        assert reader.is_ended
        assert not reader.until_close
        assert said(reader) == (message.start, message.headers, message.body)
        reader.take_body()


@given(responses(), st.data())
def test_half_an_answer_is_not_a_whole_one(message: Message, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(message.raw) - 1))
    reader = read(data.draw(cuts(message.raw[:kept])))
    assert reader.failure is None
    assert not reader.is_ended
    assert message.body.startswith(b"".join(reader.parts))


@given(responses(), st.data())
def test_more_than_one_answer_is_never_an_answer_to_reuse(message: Message, data: st.DataObject) -> None:
    reader = read(data.draw(cuts(message.raw + data.draw(st.sampled_from([OK, b"x", b"HTTP/1.1 "])))))
    assert reader.failure is not None
    assert reader.failure.kind is UPSTREAM_PROTOCOL
    assert reader.is_ended
    assert said(reader) == (message.start, message.headers, message.body)


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_body_without_a_length_ends_with_its_connection(body: bytes, data: st.DataObject) -> None:
    reader = read(data.draw(cuts(b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\n" + body)))
    assert reader.until_close
    assert not reader.is_ended
    assert b"".join(reader.parts) == body


@pytest.mark.parametrize(
    ("method", "raw"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
        (
            b"HEAD",
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        ),
    ],
)
def test_an_answer_that_has_no_body_ends_with_its_head_and_the_next_one_is_in_step(
    method: bytes, raw: bytes
) -> None:
    for pieces in every_cut(raw):
        reader = read(pieces, method)
        assert reader.is_ended
        assert reader.failure is None
        assert not reader.until_close
        reader.take_body()
        reader.expect(b"GET")
        assert feed(reader, [OK]) == b"ok"
        assert reader.is_ended
        assert reader.failure is None


@pytest.mark.parametrize("body", [b"body!", b"5\r\nbody!\r\n0\r\n\r\n", OK])
@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_a_body_where_none_may_be_ends_the_connection(framing: bytes, body: bytes) -> None:
    reader = read([b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + body], b"HEAD")
    assert reader.is_ended
    assert reader.failure is not None, "what follows would be read as the next answer"
    assert b"".join(reader.parts) == b""


def test_interim_answers_are_dropped_wherever_they_are_cut() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nContent-Length: 0\r\n\r\n"
    for pieces in every_cut(interim + OK):
        reader = read(pieces)
        assert reader.failure is None
        assert said(reader) == ((b"200", b"OK"), ((b"Content-Length", b"2"),), b"ok")


def test_bytes_after_a_switch_of_protocols_are_kept_apart_wherever_they_are_cut() -> None:
    raw = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for place in range(len(raw)):
        reader = read(cut(raw + b"\x81frame", place))
        assert reader.head is not None
        assert reader.head.status == 101
        assert reader.rest == b"\x81frame"


# --- limits and faults --------------------------------------------------------------------------------------


def padded(size_bytes: int) -> bytes:
    """Return an answer whose header lines make `size_bytes`."""
    fixed = len("Content-Length: 0\r\n") + len("X: \r\n")
    return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: %b\r\n\r\n" % (b"x" * (size_bytes - fixed))


@pytest.mark.parametrize(("size_bytes", "may_pass"), [(1000, True), (1001, False)])
def test_the_size_of_a_head_is_counted_to_the_byte_wherever_it_is_cut(
    size_bytes: int, may_pass: bool
) -> None:
    for pieces in every_cut(padded(size_bytes)):
        reader = read(pieces, limits=SMALL)
        assert (reader.failure is None) is may_pass
        assert (reader.head is not None) is may_pass


@pytest.mark.parametrize("count", [20, 21])
def test_the_number_of_headers_is_counted(count: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + b"X: 1\r\n" * (count - 1) + b"\r\n"
    for pieces in every_cut(raw):
        assert (read(pieces, limits=SMALL).failure is None) is (count == 20)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (b"HTTP/1.1 200 ", b"x"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nX", b"x"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (CHUNKED + b"0\r\n", b"X-Trailer: 1\r\n"),
        (CHUNKED + b"0\r\nX-Trailer: ", b"x"),
        (CHUNKED + b"5;", b"x"),
    ],
    ids=["reason", "value", "name", "interim", "trailers", "trailer value", "extension"],
)
@pytest.mark.parametrize("times", [1, 50])
def test_what_never_ends_is_bounded(begin: bytes, endless: bytes, times: int) -> None:
    reader = read([begin] if begin else [], limits=SMALL)
    fed_bytes = 0
    while reader.failure is None:
        reader.feed(endless * times)
        fed_bytes += len(endless) * times
        assert fed_bytes <= 2 * SMALL.head_bytes + len(endless) * times
    assert reader.failure.kind is UPSTREAM_PROTOCOL


def test_a_long_stream_of_tiny_reads_is_no_long_head() -> None:
    reader = read([CHUNKED], limits=SMALL)
    assert reader.take_body() == b"hello"
    for _ in range(2_000):
        assert feed(reader, [b"1", b"\r", b"\n", b"x", b"\r\n"]) == b"x"
    feed(reader, [b"0\r\n\r\n"])
    assert reader.is_ended
    assert reader.failure is None


MALFORMED = {
    "both lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "signed length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
    "length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
    "another coding around chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding, two lines": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
    "chunk size that is no number": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
    "chunk longer than it says": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n",
    "space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
    "folded header": b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\n\r\n",
    "NUL in a value": b"HTTP/1.1 200 OK\r\nX-A: b\0c\r\n\r\n",
    "bare CR in a value": b"HTTP/1.1 200 OK\r\nX-A: b\rX-B: c\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "another protocol": b"SSH-2.0-server\r\n",
    "HTML without a head": b"<html></html>",
    "TLS alert": b"\x15\x03\x01\x00\x02\x02\x46",
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_answer_is_a_failure_in_every_cut(kind: str) -> None:
    for pieces in every_cut(MALFORMED[kind]):
        reader = read(pieces)
        assert reader.failure is not None, pieces
        assert reader.failure.kind is UPSTREAM_PROTOCOL
        assert not reader.is_ended


@given(st.binary(max_size=200), st.data())
def test_noise_never_raises_and_is_judged_the_same_in_every_cut(noise: bytes, data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from([b"", OK, CHUNKED, b"HTTP/1.1 200 OK\r\n"])) + noise
    whole, pieces = read([raw] if raw else []), read(data.draw(cuts(raw)))
    assert (whole.failure is None) == (pieces.failure is None)
    assert whole.is_ended == pieces.is_ended
    assert whole.parts == pieces.parts
