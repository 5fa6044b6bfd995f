"""How a message body is delimited on the wire (RFC 9112 section 6)."""

from __future__ import annotations

from enum import Enum

LAST_CHUNK = b"0\r\n\r\n"


class Framing(Enum):
    """The ways in which a body can end."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


def chunk(data: bytes) -> bytes:
    """Return one chunk of the chunked coding; `data` must not be empty, an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def is_bodiless(method: bytes, status: int) -> bool:
    """Tell whether a response to `method` has no body whatever its headers say."""
    return method == b"HEAD" or status == 204 or status == 304 or 100 <= status < 200


def response_framing(method: bytes, version: str, status: int, content_length: int | None) -> Framing:
    """Choose how a response is delimited for a caller that spoke HTTP `version`."""
    if is_bodiless(method, status):
        return Framing.NONE
    if content_length is not None:
        return Framing.LENGTH
    return Framing.CHUNKED if version == "1.1" else Framing.CLOSE
