"""The answer of a direct call for a stream that was opened by signs of life: its status is spent.

Owns the collecting of a refusal, so that its caller reads the provider's words as an event of its API. What
streams passes untouched.
"""

from __future__ import annotations

from proxy.core.errors import ProxyError
from proxy.dialects.dialect import Dialect
from proxy.http.client import ResponseHandler
from proxy.http.head import ResponseHead
from proxy.lanes.batch.answers import events

_MOST_BYTES = 64 * 1024
"""Of a refusal. A longer one is told without its words."""


class OpenedStream:
    """A `ResponseHandler` before another one."""

    def __init__(self, reply: ResponseHandler, dialect: Dialect) -> None:
        self._reply = reply
        self._dialect = dialect
        self._refusal: ResponseHead | None = None
        self._body = bytearray()

    def head_received(self, head: ResponseHead) -> None:
        """Keep the head of a refusal."""
        if head.status < 300:
            self._reply.head_received(head)
        else:
            self._refusal = head

    def body_received(self, data: bytes) -> None:
        """Keep the body of a refusal."""
        if self._refusal is None:
            self._reply.body_received(data)
        elif len(self._body) <= _MOST_BYTES:
            self._body += data

    def flush(self) -> None:
        """Pass it on, where the caller has a head."""
        if self._refusal is None:
            self._reply.flush()

    def response_ended(self) -> None:
        """Tell a refusal as an event, or pass the end on."""
        head = self._refusal
        if head is not None:
            body = bytes(self._body) if len(self._body) <= _MOST_BYTES else b""
            told, text = events((head, body), self._dialect, includes_usage=False)
            self._reply.head_received(told)
            self._reply.body_received(text)
        self._reply.response_ended()

    def failed(self, error: ProxyError) -> None:
        """Pass it on."""
        self._reply.failed(error)

    def upstream_writable(self, is_writable: bool) -> None:
        """Pass it on."""
        self._reply.upstream_writable(is_writable)
