"""Whatever the network cuts, good requests are read whole and ambiguous ones not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BAD_REQUEST, HEADERS_TOO_LARGE, METHOD_NOT_SUPPORTED, ErrorCode, ProxyError
from proxy.http.limits import ServerLimits
from proxy.http.request_reader import RequestReader
from tests.unit.http.messages import Message, cut, cuts, every_cut, requests

LIMITS = ServerLimits()
SMALL = replace(LIMITS, head_bytes=1000, header_count=20)
GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"


@dataclass
class Read:
    """What a reader made of some bytes: finished requests as (start, headers, body), and what went wrong."""

    requests: list[tuple[tuple[bytes, bytes], tuple[tuple[bytes, bytes], ...], bytes]] = field(
        default_factory=list
    )
    failure: ProxyError | None = None
    reader: RequestReader = field(default_factory=lambda: RequestReader(LIMITS))


def read(pieces: Iterable[bytes], limits: ServerLimits = LIMITS) -> Read:
    """Feed pieces as a connection would: no more after a failure."""
    reader = RequestReader(limits)
    for piece in pieces:
        reader.feed(piece)
        if reader.failure is not None:
            break
    result = Read(failure=reader.failure, reader=reader)
    for incoming in reader.queue:
        if incoming.ended:
            head = incoming.head
            headers = tuple((name, value) for _, name, value in head.headers)
            result.requests.append(((head.method, head.target), headers, incoming.take_body()))
    return result


def expected(messages: Iterable[Message]) -> list[object]:
    return [(message.start, message.headers, message.body) for message in messages]


@given(st.data())
def test_any_cut_of_any_sequence_gives_the_same_requests(data: st.DataObject) -> None:
    messages = data.draw(st.lists(requests(), min_size=1, max_size=4))
    result = read(data.draw(cuts(b"".join(message.raw for message in messages))))
    assert result.failure is None
    assert result.requests == expected(messages)
    assert not result.reader.is_in_head


@given(requests(), requests(), st.data())
def test_an_unfinished_request_is_told_from_a_finished_one(
    first: Message, second: Message, data: st.DataObject
) -> None:
    whole = first.raw + second.raw
    kept = data.draw(st.integers(len(first.raw), len(whole) - 1))
    result = read(data.draw(cuts(whole[:kept])))
    assert result.failure is None
    assert result.requests == expected([first])


def test_names_are_also_kept_in_lower_case_and_the_last_value_counts() -> None:
    reader = read([b"GET / HTTP/1.1\r\nHOST: a\r\nX-Two: 1\r\nx-two: 2\r\n\r\n"]).reader
    head = reader.queue[0].head
    assert [name for name, _, _ in head.headers] == [b"host", b"x-two", b"x-two"]
    assert head.fields[b"x-two"] == b"2"
    assert head.keep_alive


# --- limits -------------------------------------------------------------------------------------------------


def padded(size_bytes: int) -> bytes:
    """Return a GET whose target and header lines make `size_bytes`."""
    fixed = len("/") + len("Host: a\r\n") + len("X: \r\n")
    return b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (b"x" * (size_bytes - fixed))


@pytest.mark.parametrize("behind", [b"", GET, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n"])
def test_the_size_of_a_head_is_counted_to_the_byte_wherever_it_is_cut(behind: bytes) -> None:
    behind += b"b" * 5000 if b"5000" in behind else b""
    before = 1 if behind else 0
    for size_bytes, may_pass in ((1000, True), (1001, False)):
        raw = padded(size_bytes)
        # Every place near the edges, some in the middle: what counts must not depend on it.
        for place in [*range(40), *range(40, len(raw), 97), *range(len(raw) - 5, len(raw))]:
            for pieces in (cut(behind + raw, len(behind) + place), [behind, *cut(raw, place)]):
                result = read([piece for piece in pieces if piece], SMALL)
                assert len(result.requests) == before + may_pass, place
                assert (result.failure is None) is may_pass
                if result.failure is not None:
                    assert result.failure.kind is HEADERS_TOO_LARGE


@pytest.mark.parametrize("count", [20, 21])
def test_the_number_of_headers_is_counted_wherever_it_is_cut(count: int) -> None:
    raw = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * (count - 1) + b"\r\n"
    for pieces in every_cut(raw):
        assert (read(pieces, SMALL).failure is None) is (count == 20)


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        b"GET / HTTP/1.1\r\nHost: a\r\nX",
        b"GET / HTTP/1.1\r\nX: 1\r\nX: ",
    ],
    ids=["target", "value", "name", "second value"],
)
@pytest.mark.parametrize("piece_bytes", [1, 100, 5000])
def test_a_head_that_never_ends_is_refused_early(begin: bytes, piece_bytes: int) -> None:
    fed_bytes = 0
    reader = RequestReader(SMALL)
    reader.feed(begin)
    while reader.failure is None:
        reader.feed(b"x" * piece_bytes)
        fed_bytes += piece_bytes
        assert fed_bytes <= 2 * SMALL.head_bytes + piece_bytes
    assert reader.failure.kind is HEADERS_TOO_LARGE


def test_a_short_head_behind_a_long_body_is_no_long_head() -> None:
    body = b"b" * 10_000
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n" + body
    for place in range(1, len(GET)):
        result = read([post + GET[:place], GET[place:]], SMALL)
        assert result.failure is None
        assert len(result.requests) == 2


def test_a_head_that_never_ends_behind_a_long_body_is_refused_too() -> None:
    reader = RequestReader(SMALL)
    reader.feed(
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n" + b"b" * 9999 + b"GET / HTTP/1.1\r\nX: "
    )
    assert reader.failure is None
    for _ in range(25):
        reader.feed(b"x" * 100)
    assert reader.failure is not None
    assert reader.failure.kind is HEADERS_TOO_LARGE


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (b"0\r\n", b"X-Trailer: 1\r\n"),
        (b"0\r\nX-Trailer: ", b"x"),
        (b"0\r\nX-Tr", b"x"),
        (b"5;", b"x"),
        (b"0;", b"x"),
    ],
    ids=["trailers", "trailer value", "trailer name", "extension", "last extension"],
)
@pytest.mark.parametrize("times", [1, 50])
def test_what_stands_around_a_body_is_bounded_too(begin: bytes, endless: bytes, times: int) -> None:
    reader = RequestReader(SMALL)
    reader.feed(CHUNKED + begin)
    fed_bytes = 0
    while reader.failure is None:
        reader.feed(endless * times)
        fed_bytes += len(endless) * times
        assert fed_bytes <= 2 * SMALL.head_bytes + len(endless) * times
    assert reader.queue[0].take_body() == b"hello"


def test_many_tiny_chunks_are_a_body_like_any_other() -> None:
    reader = RequestReader(SMALL)
    reader.feed(CHUNKED)
    for _ in range(2_000):
        for piece in (b"1", b"\r", b"\n", b"x", b"\r\n"):
            reader.feed(piece)
    reader.feed(b"0\r\n\r\n")
    assert reader.failure is None
    assert reader.queue[0].ended
    assert reader.queue[0].take_body() == b"hello" + b"x" * 2_000


def test_nothing_is_read_after_a_failure() -> None:
    reader = RequestReader(SMALL)
    reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 3000)
    failure = reader.failure
    assert failure is not None
    reader.feed(b"\r\n\r\n" + GET)
    assert reader.failure is failure
    assert not reader.queue


# --- ambiguity ----------------------------------------------------------------------------------------------


def head(*lines: bytes, start: bytes = b"POST / HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"Host: a", *lines, b"", b""])


AMBIGUOUS: dict[str, tuple[bytes, ErrorCode]] = {
    "both lengths": (head(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", BAD_REQUEST),
    "both lengths, other order": (
        head(b"Transfer-Encoding: chunked", b"Content-Length: 5") + b"0\r\n\r\n",
        BAD_REQUEST,
    ),
    "two lengths": (head(b"Content-Length: 5", b"Content-Length: 6") + b"hello!", BAD_REQUEST),
    "the same length twice": (head(b"Content-Length: 5", b"Content-Length: 5") + b"hello", BAD_REQUEST),
    "list of lengths": (head(b"Content-Length: 5, 5") + b"hello", BAD_REQUEST),
    "signed length": (head(b"Content-Length: +5") + b"hello", BAD_REQUEST),
    "hexadecimal length": (head(b"Content-Length: 0x5") + b"hello", BAD_REQUEST),
    "empty length": (head(b"Content-Length:") + b"hello", BAD_REQUEST),
    "length beyond 64 bits": (head(b"Content-Length: 99999999999999999999999") + b"hello", BAD_REQUEST),
    "coding that is not chunked": (head(b"Transfer-Encoding: gzip") + b"hello", BAD_REQUEST),
    "identity": (head(b"Transfer-Encoding: identity") + b"hello", BAD_REQUEST),
    "chunked not last": (head(b"Transfer-Encoding: chunked, gzip") + b"0\r\n\r\n", BAD_REQUEST),
    "two codings": (head(b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", BAD_REQUEST),
    "two codings, two lines": (
        head(b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        BAD_REQUEST,
    ),
    "chunked twice, two lines": (
        head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        BAD_REQUEST,
    ),
    "misspelt coding": (head(b"Transfer-Encoding: xchunked") + b"0\r\n\r\n", BAD_REQUEST),
    "chunked in 1.0": (
        head(b"Transfer-Encoding: chunked", start=b"POST / HTTP/1.0") + b"0\r\n\r\n",
        BAD_REQUEST,
    ),
    "space before the colon": (head(b"Content-Length : 5") + b"hello", BAD_REQUEST),
    "folded header": (head(b"X-A: b", b" Content-Length: 5") + b"hello", BAD_REQUEST),
    "folded with a tab": (head(b"X-A: b", b"\tc"), BAD_REQUEST),
    "line without a colon": (head(b"X-A"), BAD_REQUEST),
    "empty name": (head(b": b"), BAD_REQUEST),
    "NUL in a value": (head(b"X-A: b\0c"), BAD_REQUEST),
    "bare CR in a value": (head(b"X-A: b\rX-B: c"), BAD_REQUEST),
    "bare LF between headers": (b"POST / HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello", BAD_REQUEST),
    "bare LF at the end": (b"POST / HTTP/1.1\r\nHost: a\n\n", BAD_REQUEST),
    "control character in a name": (head(b"X\x01A: b"), BAD_REQUEST),
    "no host": (b"GET / HTTP/1.1\r\nX-A: b\r\n\r\n", BAD_REQUEST),
    "two hosts": (head(b"Host: b"), BAD_REQUEST),
    "chunk size that is no number": (head(b"Transfer-Encoding: chunked") + b"z\r\nhello\r\n", BAD_REQUEST),
    "signed chunk size": (head(b"Transfer-Encoding: chunked") + b"-5\r\nhello\r\n", BAD_REQUEST),
    "chunk size beyond 64 bits": (
        head(b"Transfer-Encoding: chunked") + b"fffffffffffffffff\r\nhello\r\n",
        BAD_REQUEST,
    ),
    "chunk longer than it says": (head(b"Transfer-Encoding: chunked") + b"4\r\nhello\r\n", BAD_REQUEST),
    "chunk that ends in LF": (head(b"Transfer-Encoding: chunked") + b"5\nhello\n0\n\n", BAD_REQUEST),
    "space after the chunk size": (
        head(b"Transfer-Encoding: chunked") + b"5 \r\nhello\r\n0\r\n\r\n",
        BAD_REQUEST,
    ),
    "version 0.9": (b"GET /\r\n", BAD_REQUEST),
    "version 2.0": (head(start=b"GET / HTTP/2.0"), BAD_REQUEST),
    "version 1.2": (head(start=b"GET / HTTP/1.2"), BAD_REQUEST),
    "control character in the target": (head(start=b"GET /\x01 HTTP/1.1"), BAD_REQUEST),
    "space in the target": (head(start=b"GET /a b HTTP/1.1"), BAD_REQUEST),
    "unknown method": (head(start=b"BREW / HTTP/1.1"), METHOD_NOT_SUPPORTED),
    "method in lower case": (head(start=b"get / HTTP/1.1"), METHOD_NOT_SUPPORTED),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", METHOD_NOT_SUPPORTED),
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_ambiguous_input_is_refused_in_every_cut(kind: str) -> None:
    raw, code = AMBIGUOUS[kind]
    for pieces in every_cut(raw):
        # What follows would be read as a request of its own by a server that sees the end elsewhere.
        result = read([*pieces, GET])
        assert result.failure is not None, pieces
        assert result.failure.kind is code
        assert result.requests == []


@given(st.data())
def test_a_good_request_before_an_ambiguous_one_is_read(data: st.DataObject) -> None:
    good = data.draw(requests())
    bad, _ = AMBIGUOUS[data.draw(st.sampled_from(sorted(AMBIGUOUS)))]
    result = read(data.draw(cuts(good.raw + bad + GET)))
    assert result.failure is not None
    assert result.requests == expected([good])


@given(st.binary(max_size=200), st.data())
def test_noise_never_raises_and_is_judged_the_same_in_every_cut(noise: bytes, data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from([b"", GET, b"POST / HTTP/1.1\r\n", CHUNKED])) + noise
    whole, pieces = read([raw] if raw else []), read(data.draw(cuts(raw)))
    assert (whole.failure is None) == (pieces.failure is None)
    assert whole.requests == pieces.requests


# --- what asks for another protocol -------------------------------------------------------------------------

HANDSHAKE = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def test_bytes_after_a_handshake_are_kept_apart_wherever_they_are_cut() -> None:
    for place in range(len(HANDSHAKE) - 1):
        reader = RequestReader(LIMITS)
        for piece in cut(HANDSHAKE + b"\x81frame", place):
            reader.feed(piece)
        assert reader.after_upgrade == b"\x81frame"
        assert reader.queue[0].head.upgrade
        assert reader.queue[0].ended


@pytest.mark.parametrize("framing", ["none", "empty", "length", "chunked"])
@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"TLS/1.0, h2c"])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_what_is_no_websocket_handshake_is_read_as_what_it_is(
    method: bytes, protocol: bytes, framing: str
) -> None:
    lines, wire = {
        "none": ([], b""),
        "empty": ([b"Content-Length: 0"], b""),
        "length": ([b"Content-Length: 5"], b"hello"),
        "chunked": ([b"Transfer-Encoding: chunked"], b"5\r\nhello\r\n0\r\nX: y\r\n\r\n"),
    }[framing]
    upgrade = [b"Connection: Upgrade", b"Upgrade: " + protocol]
    raw = head(*upgrade, *lines, start=method + b" / HTTP/1.1") + wire
    if (method, protocol) == (b"GET", b"websocket") and not wire:
        assert read([raw]).reader.queue[0].head.upgrade
        return
    for pieces in [*every_cut(raw + GET), *([*pieces, GET] for pieces in every_cut(raw))]:
        result = read(pieces)
        assert result.failure is None
        assert [body for _, _, body in result.requests] == [b"hello" if wire else b"", b""], pieces
        assert not any(incoming.head.upgrade for incoming in result.reader.queue)
        assert result.reader.after_upgrade is None
