"""Valid HTTP/1.1 messages as hypothesis makes them, and every way in which a network may cut them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st

Pair = tuple[bytes, bytes]

TOKEN_CHARS = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TARGET_CHARS = b"/?:@!$&'()*+,;=-._~%0123456789abcXYZ{}|^`\"<>[]"
SPECIAL_NAMES = frozenset(
    b"connection content-length expect host keep-alive proxy-connection transfer-encoding upgrade".split()
)


@dataclass(frozen=True)
class Message:
    """A message as it stands on the wire, and what a reader must make of it.

    `start` is (method, target) of a request or (status, reason) of a response.
    """

    raw: bytes
    start: tuple[bytes, bytes]
    headers: tuple[Pair, ...]
    body: bytes


def _bytes_of(characters: bytes, most: int, least: int = 0) -> st.SearchStrategy[bytes]:
    # One draw of bytes is several times faster than a list of drawn characters.
    return st.binary(min_size=least, max_size=most).map(
        lambda raw: bytes(characters[byte % len(characters)] for byte in raw)
    )


_names = _bytes_of(TOKEN_CHARS, 12, 1).filter(lambda name: name.lower() not in SPECIAL_NAMES)
_values = _bytes_of(bytes(range(0x21, 0x7F)) + bytes(range(0x80, 0x100)) + b" \t", 20).map(
    lambda value: value.strip(b" \t")
)
_pairs = st.lists(st.tuples(_names, _values), max_size=4)


@st.composite
def _bodies(draw: st.DrawFn, may_be_absent: bool = True) -> tuple[list[Pair], bytes, bytes]:
    """Draw a body as (framing headers, bytes on the wire, body)."""
    kind = draw(st.sampled_from(["none", "length", "chunked"] if may_be_absent else ["length", "chunked"]))
    if kind == "none":
        return [], b"", b""
    body = draw(st.binary(max_size=100))
    if kind == "length":
        return [(b"Content-Length", b"%d" % len(body))], body, body
    pieces = cut(body, *draw(st.lists(st.integers(0, 100), max_size=4)))
    extension = draw(st.sampled_from([b"", b";a", b';name="quoted text"', b";a=1;b=2"]))
    wire = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    trailers = draw(_pairs) if draw(st.booleans()) else []
    wire += b"0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in trailers) + b"\r\n"
    return [(b"Transfer-Encoding", draw(st.sampled_from([b"chunked", b"Chunked"])))], wire, body


def _written(line: bytes, headers: list[Pair], padding: bytes) -> bytes:
    lines = [line, *(name + b":" + padding + value for name, value in headers), b"", b""]
    return b"\r\n".join(lines)


@st.composite
def requests(draw: st.DrawFn) -> Message:
    """Draw a request after which the connection goes on."""
    method = draw(st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"HEAD"]))
    target = b"/" + draw(_bytes_of(TARGET_CHARS, 30))
    framing, wire, body = draw(_bodies())
    headers = [*draw(_pairs), (b"Host", b"weir.test")]
    headers[draw(st.integers(0, len(headers))) : 0] = framing
    raw = _written(b"%b %b HTTP/1.1" % (method, target), headers, draw(st.sampled_from([b"", b" ", b" \t "])))
    return Message(raw + wire, (method, target), tuple(headers), body)


@st.composite
def responses(draw: st.DrawFn) -> Message:
    """Draw the response to a GET after which the connection goes on."""
    status = draw(st.sampled_from([b"200", b"201", b"299", b"400", b"404", b"429", b"500", b"503", b"599"]))
    reason = draw(st.sampled_from([b"OK", b"", b"Two words", b"Au\xdfer Betrieb"]))
    framing, wire, body = draw(_bodies(may_be_absent=False))
    headers = draw(_pairs)
    headers[draw(st.integers(0, len(headers))) : 0] = framing
    raw = _written(b"HTTP/1.1 %b %b" % (status, reason), headers, draw(st.sampled_from([b"", b" ", b"  "])))
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * draw(st.integers(0, 2))
    return Message(interim + raw + wire, (status, reason), tuple(headers), body)


def cuts(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """Draw a way to cut `data` into reads: few, many, or one byte each."""
    places = st.lists(st.integers(0, len(data)), max_size=12)
    return st.one_of(places.map(lambda at: cut(data, *at)), st.just(single_bytes(data)))


def cut(data: bytes, *places: int) -> list[bytes]:
    """Cut `data` at these places; empty pieces are left out, since no read is empty."""
    edges = [0, *sorted({min(place, len(data)) for place in places}), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


def every_cut(data: bytes) -> Iterator[list[bytes]]:
    """Yield `data` whole, cut in two at every place, and in single bytes."""
    for place in range(len(data)):
        yield cut(data, place)
    yield single_bytes(data)


def single_bytes(data: bytes) -> list[bytes]:
    """Cut `data` everywhere."""
    return [data[place : place + 1] for place in range(len(data))]
