"""Write the head of a request to an upstream: the caller's bytes, less what is not meant for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from proxy.http.head import HOP_BY_HOP, Header, RequestHead, connection_options

CREDENTIAL_HEADERS: frozenset[bytes] = frozenset(
    {
        b"api-key",
        b"authorization",
        b"cookie",
        b"openai-organization",
        b"openai-project",
        b"x-api-key",
        b"x-goog-api-key",
    }
)
"""What says who a caller is; none of it goes to an upstream that has a key of its own."""

_FRAMING: frozenset[bytes] = frozenset({b"content-length", b"transfer-encoding"})
_NOT_COPIED = (
    HOP_BY_HOP | _FRAMING | {b"host", b"expect", b"x-weir-urgency", b"x-weir-deadline", b"x-weir-explain"}
)
_NOT_COPIED_WITH_KEY = _NOT_COPIED | CREDENTIAL_HEADERS
_OWN_PREFIX = b"x-weir-"
_NOTHING_REPLACED: Mapping[bytes, bytes | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Sender:
    """How an upstream wants to be addressed. `credential` replaces whatever the caller sent."""

    host: bytes
    credential: Header | None = field(default=None, repr=False)
    proxy_authorization: Header | None = field(default=None, repr=False)


class BodyPlan(msgspec.Struct, frozen=True):
    """How the body is sent: with `length_bytes`, chunked, or not at all.

    `replaced` gives headers another value, or with `None` removes them, because the body is not what the
    caller sent. `keeps_upgrade` lets a websocket handshake through.
    """

    length_bytes: int | None = None
    is_chunked: bool = False
    keeps_upgrade: bool = False
    replaced: Mapping[bytes, bytes | None] = _NOTHING_REPLACED

    @property
    def framing(self) -> bytes:
        """The framing header with its line end, empty when there is no body."""
        if self.is_chunked:
            return b"Transfer-Encoding: chunked\r\n"
        return b"" if self.length_bytes is None else b"Content-Length: %d\r\n" % self.length_bytes


def write_request_head(head: RequestHead, target: bytes, sender: Sender, body: BodyPlan) -> bytes:
    """Return the head for an upstream: every end-to-end header as it came, in its place."""
    not_copied = _NOT_COPIED if sender.credential is None else _NOT_COPIED_WITH_KEY
    fields = head.fields
    if b"connection" in fields:
        not_copied = not_copied | connection_options(fields, head.headers)
    if body.replaced:
        not_copied = not_copied | body.replaced.keys()
    parts = [head.method, b" ", target, b" HTTP/1.1\r\n"]
    for header in head.headers:
        lower, name, value = header
        if lower in not_copied:
            parts.append(_changed(header, head.headers, sender, body))
        elif not lower.startswith(_OWN_PREFIX):
            parts += (name, b": ", value, b"\r\n")
    if b"host" not in fields:
        parts.append(b"Host: %b\r\n" % sender.host)
    if b"content-length" not in fields and b"transfer-encoding" not in fields:
        parts.append(body.framing)
    credential = sender.credential
    if credential is not None and credential[0] not in fields:
        parts.append(b"%b: %b\r\n" % credential[1:])
    if sender.proxy_authorization is not None:
        parts.append(b"%b: %b\r\n" % sender.proxy_authorization[1:])
    parts.append(b"\r\n")
    return b"".join(parts)


def _changed(header: Header, headers: list[Header], sender: Sender, body: BodyPlan) -> bytes:
    """Return what takes the place of a header that is not copied; empty for most.

    Of a header that came several times the last one is replaced, and the others are dropped.
    """
    lower, name, value = header
    if lower == b"host":
        return b"%b: %b\r\n" % (name, sender.host)
    if lower == b"content-length":
        return b"%b: %d\r\n" % (name, body.length_bytes) if body.length_bytes is not None else body.framing
    if lower == b"transfer-encoding":
        return body.framing
    if lower in body.replaced:
        replacement = body.replaced[lower]
        if replacement is None or not _is_last(header, headers):
            return b""
        return b"%b: %b\r\n" % (name, replacement)
    if sender.credential is not None and lower == sender.credential[0] and _is_last(header, headers):
        return b"%b: %b\r\n" % (name, sender.credential[2])
    if body.keeps_upgrade and lower in (b"connection", b"upgrade"):
        return b"%b: %b\r\n" % (name, value)
    return b""


def _is_last(header: Header, headers: list[Header]) -> bool:
    return next(each for each in reversed(headers) if each[0] == header[0]) is header
