"""Write the head of an answer: the upstream's bytes, less its connection's, plus Weir's report."""

from __future__ import annotations

from proxy.http.framing import Framing
from proxy.http.head import HOP_BY_HOP, ResponseHead, connection_options

_OWN = frozenset(
    b"x-weir-%b" % name
    for name in b"request-id route policy urgency lane steps tokens ttft-ms tpot-ms".split()
)
"""What another Weir behind this one says of itself; nobody could tell its words from ours."""

_DROPPED = HOP_BY_HOP | _OWN
_DROPPED_WITH_LENGTH = _DROPPED | {b"content-length"}


def is_event_stream(head: ResponseHead) -> bool:
    """Tell whether an answer is a stream of server-sent events."""
    return head.fields.get(b"content-type", b"").lower().startswith(b"text/event-stream")


def is_json(head: ResponseHead) -> bool:
    """Tell whether an answer is one JSON text."""
    media_type = head.fields.get(b"content-type", b"").lower()
    return media_type.startswith(b"application/json") or b"+json" in media_type


def is_plain(head: ResponseHead) -> bool:
    """Tell whether the body is readable as it is, not compressed."""
    return head.fields.get(b"content-encoding", b"identity").lower() in (b"identity", b"")


def own_head(is_stream: bool) -> ResponseHead:
    """Return a head for an answer that Weir has to begin before the upstream does."""
    media_type = b"text/event-stream; charset=utf-8" if is_stream else b"application/json"
    return ResponseHead(200, b"OK", [(b"content-type", b"Content-Type", media_type)])


def write_response_head(
    head: ResponseHead, framing: Framing, report: bytes, keep_alive: bool, is_stream: bool
) -> bytes:
    """Return the head to send. `report` holds Weir's header lines.

    Event streams get the two headers that keep hops in front from buffering them, unless the upstream said
    otherwise itself (nginx reads `X-Accel-Buffering`).
    """
    keeps_length = framing is Framing.LENGTH or framing is Framing.NONE
    dropped = _DROPPED if keeps_length else _DROPPED_WITH_LENGTH
    if b"connection" in head.fields:
        # The length is the caller's only way to see where the body ends, whoever calls it a hop's.
        dropped = dropped | (connection_options(head.fields, head.headers) - {b"content-length"})
    parts = [b"HTTP/1.1 %d " % head.status, head.reason, b"\r\n"]
    for lower, name, value in head.headers:
        if lower not in dropped:
            parts += (name, b": ", value, b"\r\n")
    if is_stream:
        if b"cache-control" not in head.fields:
            parts.append(b"Cache-Control: no-cache, no-transform\r\n")
        if b"x-accel-buffering" not in head.fields:
            parts.append(b"X-Accel-Buffering: no\r\n")
    parts.append(report)
    if framing is Framing.CHUNKED:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    if not keep_alive or framing is Framing.CLOSE:
        parts.append(b"Connection: close\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)


def write_handshake(head: ResponseHead, report: bytes) -> bytes:
    """Return the head of a 101, with the protocol that the upstream switches to."""
    lines = write_response_head(head, Framing.NONE, report, keep_alive=True, is_stream=False)
    upgrade = head.fields.get(b"upgrade", b"websocket")
    return lines.removesuffix(b"\r\n") + b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % upgrade
