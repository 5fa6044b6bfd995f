"""The model of a message head that both sides share: raw bytes, in the order they came.

A header is `(lower_name, raw_name, raw_value)`; the lower-case name is computed once, where it is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable

Header = tuple[bytes, bytes, bytes]

HOP_BY_HOP: frozenset[bytes] = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Fields that describe one connection only (RFC 9110 section 7.6.1)."""


class RequestHead:
    """A request's head. `fields` maps lower-case names to the last value of that name."""

    __slots__ = ("fields", "headers", "keep_alive", "method", "target", "upgrade", "version")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        version: str,
        headers: list[Header],
        keep_alive: bool = True,
        upgrade: bool = False,
    ) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.keep_alive = keep_alive
        self.upgrade = upgrade
        self.fields: dict[bytes, bytes] = {header[0]: header[2] for header in headers}

    @property
    def content_length(self) -> int | None:
        """The declared body length in bytes, `None` when there is none."""
        value = self.fields.get(b"content-length")
        return int(value) if value is not None else None

    @property
    def has_body(self) -> bool:
        """Whether the head announces a body."""
        return b"transfer-encoding" in self.fields or (self.content_length or 0) > 0


class ResponseHead:
    """A response's head, as the upstream sent it."""

    __slots__ = ("fields", "headers", "keep_alive", "reason", "status")

    def __init__(self, status: int, reason: bytes, headers: list[Header], keep_alive: bool = True) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.keep_alive = keep_alive
        self.fields: dict[bytes, bytes] = {header[0]: header[2] for header in headers}

    @property
    def content_length(self) -> int | None:
        """The declared body length in bytes, `None` when there is none or it is not a number."""
        value = self.fields.get(b"content-length")
        return int(value) if value is not None and value.isdigit() else None


def connection_options(fields: dict[bytes, bytes], headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the lower-case names that the `Connection` fields of a head list."""
    if b"connection" not in fields:
        return frozenset()
    listed: set[bytes] = set()
    for lower, _, value in headers:
        if lower == b"connection":
            listed.update(option.strip().lower() for option in value.split(b","))
    return frozenset(listed)


def render_headers(headers: Iterable[Header]) -> bytes:
    """Return header lines, each ended by CRLF."""
    return b"".join([b"%b: %b\r\n" % (name, value) for _, name, value in headers])
