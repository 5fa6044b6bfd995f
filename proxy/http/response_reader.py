"""Parse the responses of one upstream connection. httptools does the parsing; this collects and bounds."""

from __future__ import annotations

import re

import httptools

from proxy.core.errors import UPSTREAM_PROTOCOL, ProxyError
from proxy.http.head import Header, ResponseHead
from proxy.http.limits import ClientLimits

_LEAST_STATUS = 100
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no reason phrase may hold (RFC 9112 section 4), and llhttp lets pass."""


class ResponseReader:
    """Turns bytes into one response at a time.

    `head` is set when a final (or 101) head is complete, `parts` collects body bytes, `is_ended` says that
    the message is complete. `until_close` marks a body that only the end of the connection delimits.
    """

    __slots__ = (
        "_has_advanced",
        "_head_bytes",
        "_headers",
        "_limits",
        "_parser",
        "_reason",
        "expects_body",
        "failure",
        "head",
        "is_ended",
        "parts",
        "rest",
        "until_close",
    )

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[Header] = []
        self._reason = b""
        self._head_bytes = 0  # bytes read since the last head, body or end of a message
        self._has_advanced = False
        self.expects_body = True
        self.head: ResponseHead | None = None
        self.parts: list[bytes] = []
        self.is_ended = False
        self.until_close = False
        self.failure: ProxyError | None = None
        self.rest = b""

    def expect(self, method: bytes) -> None:
        """Prepare for the response to a request with `method`."""
        self.expects_body = method != b"HEAD"
        self.head = None
        self.is_ended = False
        self.until_close = False

    def close(self) -> None:
        """Read no more. Parser and reader name each other: without this only a collection would free them."""
        del self._parser

    @property
    def has_begun(self) -> bool:
        """Whether any byte of the expected response has come."""
        return self.head is not None or self._head_bytes > 0

    def feed(self, data: bytes) -> None:
        """Read `data`."""
        self._head_bytes += len(data)
        self._has_advanced = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as problem:
            self.failure = _failure_of(problem)
        if self._has_advanced:
            self._head_bytes = 0
        elif self._head_bytes > 2 * self._limits.head_bytes and self.failure is None:
            self.failure = _too_large()

    def on_message_begin(self) -> None:
        """Start an empty head; a second response to one request is a fault of the upstream."""
        if self.is_ended:
            raise _malformed("more bytes than one response")
        self._headers = []
        self._reason = b""

    def on_status(self, status: bytes) -> None:
        """Collect the reason phrase."""
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect one header line; trailers go nowhere."""
        self._headers.append((name.lower(), name, value))

    def on_headers_complete(self) -> None:
        """Close the head; interim responses other than 101 are dropped."""
        headers, self._headers = self._headers, []
        if len(headers) > self._limits.header_count or self._is_too_large(headers):
            raise _too_large()
        parser = self._parser
        status = parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            return  # counted with the head that follows, so that interim responses are bounded, too
        if status < _LEAST_STATUS:
            raise _malformed(f"status {status:03}")
        self._has_advanced = True
        # The phrase is for people; a caller's parser could choke on what it must not hold.
        reason = self._reason if _CONTROL.search(self._reason) is None else b""
        head = ResponseHead(status, reason, headers, parser.should_keep_alive())
        is_coded = b"transfer-encoding" in head.fields and _is_chunked(head)
        self.head = head
        if not self.expects_body or status in (101, 204, 304):
            # httptools cannot be told that no body follows whatever the headers say: a fresh parser is.
            self.is_ended = True
            self._parser = httptools.HttpResponseParser(self)
        elif b"content-length" not in head.fields and not is_coded:
            self.until_close = True

    def _is_too_large(self, headers: list[Header]) -> bool:
        limit_bytes = self._limits.head_bytes
        if self._head_bytes <= limit_bytes:
            return False
        return sum(len(name) + len(value) + 4 for name, _, value in headers) > limit_bytes

    def on_body(self, body: bytes) -> None:
        """Collect body bytes; where none may be they would be read as part of the next answer."""
        if self.is_ended:
            raise _malformed("a body where none may be")
        self._has_advanced = True
        self.parts.append(body)

    def on_message_complete(self) -> None:
        """Mark the response as complete, unless it was an interim one."""
        if self.head is not None:
            self._has_advanced = self.is_ended = True

    def take_body(self) -> bytes:
        """Return the body bytes that were not taken yet and forget them."""
        parts, self.parts = self.parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_chunked(head: ResponseHead) -> bool:
    """Tell chunked from `identity`, which older servers write for none at all.

    Refuses a transfer coding that nobody asked for: the caller would get it without being told.
    """
    codings = [value.lower() for name, _, value in head.headers if name == b"transfer-encoding"]
    if codings == [b"identity"]:
        return False
    if codings != [b"chunked"]:
        raise _malformed("a transfer coding other than chunked")
    return True


def _failure_of(problem: httptools.HttpParserError) -> ProxyError:
    context = problem.__context__
    if isinstance(context, ProxyError):
        return context.with_traceback(None)  # its frames name the reader that is going to keep it
    return _malformed(str(problem))


def _malformed(problem: str) -> ProxyError:
    return ProxyError(UPSTREAM_PROTOCOL, f"The upstream's answer is not valid HTTP: {problem}.")


def _too_large() -> ProxyError:
    return ProxyError(
        UPSTREAM_PROTOCOL, "The upstream's response headers are larger than this proxy accepts."
    )
