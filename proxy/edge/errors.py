"""Render Weir's own errors: OpenAI's shape, a stable code, JSON, the request id."""

from __future__ import annotations

from http import HTTPStatus

import orjson

from proxy.core.errors import ProxyError


def error_body(error: ProxyError) -> bytes:
    """Return the JSON body of an error."""
    kind = error.kind
    detail = {"message": error.message, "type": kind.type, "param": error.param, "code": kind.code}
    return orjson.dumps({"error": detail})


def error_response(error: ProxyError, report: bytes, keep_alive: bool, is_head: bool = False) -> bytes:
    """Return a whole response. `report` holds Weir's header lines."""
    body = error_body(error)
    status = error.kind.status
    lines = [
        b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        % (status, HTTPStatus(status).phrase.encode("ascii"), len(body)),
        report,
    ]
    if error.retry_after_seconds is not None:
        lines.append(b"Retry-After: %d\r\n" % error.retry_after_seconds)
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    lines.append(b"\r\n")
    if not is_head:
        lines.append(body)
    return b"".join(lines)
