"""Parse the requests of one connection. httptools does the parsing; this collects and bounds its events."""

from __future__ import annotations

from collections import deque

import httptools

from proxy.core.errors import (
    BAD_REQUEST,
    HEADERS_TOO_LARGE,
    INTERNAL,
    METHOD_NOT_SUPPORTED,
    ErrorCode,
    ProxyError,
)
from proxy.http.head import Header, RequestHead
from proxy.http.limits import ServerLimits

_REFUSED_METHODS = frozenset({b"CONNECT", b"TRACE"})
"""A tunnel to somewhere else; and an echo of what was sent, which may be a key that is not for the caller."""


class Incoming:
    """A request as far as it has been read and not yet delivered."""

    __slots__ = ("ended", "head", "parts")

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.parts: list[bytes] = []
        self.ended = False

    def take_body(self) -> bytes:
        """Return the undelivered body bytes and forget them."""
        parts, self.parts = self.parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)


class RequestReader:
    """Turns bytes into `queue`. After `failure` is set nothing more is read.

    `after_upgrade` holds the bytes that followed a websocket handshake; it is `None` unless the last `feed`
    ended in one. No other protocol is offered: who asks for one is read on as HTTP/1.1.
    """

    __slots__ = (
        "_has_advanced",
        "_head_bytes",
        "_headers",
        "_is_resuming",
        "_limits",
        "_parser",
        "_target",
        "_unsure_bytes",
        "after_upgrade",
        "failure",
        "is_in_head",
        "queue",
    )

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._headers: list[Header] = []
        self._target = b""
        # Bytes read since the last head, body or end of a message; of the first read among them it is not
        # known how many belong to that message, so as many as `_unsure_bytes` may not.
        self._head_bytes = 0
        self._unsure_bytes = 0
        self._has_advanced = False
        self._is_resuming = False
        self.queue: deque[Incoming] = deque()
        self.is_in_head = False
        self.failure: ProxyError | None = None
        self.after_upgrade: bytes | None = None

    def close(self) -> None:
        """Read no more. Parser and reader name each other: without this only a collection would free them."""
        del self._parser

    def feed(self, data: bytes) -> None:
        """Read `data`."""
        while data and self.failure is None:
            data = self._parse(data)

    def _parse(self, data: bytes) -> bytes:
        """Read `data`; return what a fresh parser must read of it."""
        self._head_bytes += len(data)
        self._has_advanced = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            self._head_bytes = self._unsure_bytes = 0
            rest = data[upgrade.args[0] :]
            incoming = self.queue[-1]
            if not incoming.head.upgrade:
                self._read_body_of(incoming)
                return rest
            self.after_upgrade = rest
            return b""
        except httptools.HttpParserError as problem:
            self.failure = _failure_of(problem)
        if self._has_advanced:
            self._head_bytes = self._unsure_bytes = len(data) if self.is_in_head else 0
        elif self._head_bytes - self._unsure_bytes > 2 * self._limits.head_bytes and self.failure is None:
            # A line that never ends raises no event (nor does an endless trailer), so raw bytes are bounded.
            self.failure = _too_large()
        return b""

    def _read_body_of(self, incoming: Incoming) -> None:
        """Let the fresh parser read the body of a request whose upgrade is not taken up.

        llhttp takes whatever follows the head of a request with `Upgrade` for the other protocol, a body
        included: left alone it would be read as the next request.
        """
        head = incoming.head
        if not head.has_body:
            return
        incoming.ended = False
        self._is_resuming = True
        framing = b"Transfer-Encoding: chunked"
        if b"transfer-encoding" not in head.fields:
            framing = b"Content-Length: %d" % (head.content_length or 0)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._is_resuming = False

    def on_message_begin(self) -> None:
        """Start an empty head."""
        if self._is_resuming:
            return
        self._headers = []
        self._target = b""
        self.is_in_head = True

    def on_url(self, url: bytes) -> None:
        """Collect the request target, which may come in pieces."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect one header line. Trailers go nowhere: nobody may trust them."""
        self._headers.append((name.lower(), name, value))

    def on_headers_complete(self) -> None:
        """Close the head."""
        if self._is_resuming:
            self._headers = []
            return
        self.is_in_head = False
        self._has_advanced = True
        self._check_size()
        parser = self._parser
        head = RequestHead(
            parser.get_method(),
            self._target,
            parser.get_http_version(),
            self._headers,
            parser.should_keep_alive(),
            parser.should_upgrade(),
        )
        _refuse_ambiguous(head)
        if head.upgrade:
            head.upgrade = _is_websocket(head)
        self._headers = []
        self.queue.append(Incoming(head))

    def _check_size(self) -> None:
        limits = self._limits
        if len(self._headers) > limits.header_count:
            raise _too_large()
        if self._head_bytes > limits.head_bytes:
            # What was read may include a body: only now is counting worth it.
            lines_bytes = sum(len(name) + len(value) + 4 for name, _, value in self._headers)
            if len(self._target) + lines_bytes > limits.head_bytes:
                raise _too_large()

    def on_body(self, body: bytes) -> None:
        """Collect body bytes."""
        self._has_advanced = True
        self.queue[-1].parts.append(body)

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        self._has_advanced = True
        self.queue[-1].ended = True


def _refuse_ambiguous(head: RequestHead) -> None:
    """Refuse what llhttp tolerates and RFC 9112 does not (sections 3.2 and 6.1), or nobody may relay."""
    if head.method in _REFUSED_METHODS:
        name = head.method.decode("ascii")
        raise ProxyError(METHOD_NOT_SUPPORTED, f"The method {name} is not relayed.")
    if head.version not in ("1.1", "1.0"):
        raise ProxyError(BAD_REQUEST, f"HTTP version {head.version} is not supported.")
    if b"transfer-encoding" in head.fields:
        codings = [value.lower() for name, _, value in head.headers if name == b"transfer-encoding"]
        if codings != [b"chunked"] or head.version == "1.0":
            raise ProxyError(BAD_REQUEST, "Only the chunked transfer coding is supported.")
    if b"host" not in head.fields:
        hosts = 0
    else:
        hosts = [header[0] for header in head.headers].count(b"host")
    if hosts > 1 or (hosts == 0 and head.version == "1.1"):
        raise ProxyError(BAD_REQUEST, "A request must have exactly one Host header.")


def _is_websocket(head: RequestHead) -> bool:
    """Tell a handshake (RFC 6455 section 4.1) from what only looks like one and may carry a body."""
    is_asked = head.method == b"GET" and head.fields.get(b"upgrade", b"").lower() == b"websocket"
    return is_asked and not head.has_body


def _too_large() -> ProxyError:
    return ProxyError(HEADERS_TOO_LARGE, "The request's line and headers are larger than this proxy accepts.")


def _failure_of(problem: httptools.HttpParserError) -> ProxyError:
    context = problem.__context__
    if isinstance(context, ProxyError):
        return context.with_traceback(None)  # its frames name the reader that is going to keep it
    kind: ErrorCode = BAD_REQUEST
    if isinstance(problem, httptools.HttpParserInvalidMethodError):
        kind = METHOD_NOT_SUPPORTED
    elif isinstance(problem, httptools.HttpParserCallbackError):
        kind = INTERNAL
    return ProxyError(kind, f"The request could not be read: {problem}.")
