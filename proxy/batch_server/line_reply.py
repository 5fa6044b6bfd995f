"""The answer to a line, collected whole, up to a limit: nobody is connected who could read slowly."""

from __future__ import annotations

import asyncio

from proxy.core.clock import Clock
from proxy.core.errors import UPSTREAM_PROTOCOL, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.head import ResponseHead

MAX_ANSWER_BYTES = 64 * 1024 * 1024


class Reply:
    """Collects one answer: a `ResponseHandler`. `done` gets its head, or the error why there is none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, exchange: Exchange) -> None:
        self._clock = clock
        self._exchange = exchange
        self._head: ResponseHead | None = None
        self._parts: list[bytes] = []
        self.done: asyncio.Future[ResponseHead] = loop.create_future()

    def body(self) -> bytes:
        """Return what has come; afterwards it is forgotten here."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def head_received(self, head: ResponseHead) -> None:
        """See `ResponseHandler`."""
        exchange = self._exchange
        exchange.first_byte_at = self._clock.monotonic()
        exchange.upstream_status = exchange.status = head.status
        self._head = head
        if head.status == 101:
            self._fail(ProxyError(UPSTREAM_PROTOCOL, "The upstream switched to another protocol."))

    def body_received(self, data: bytes) -> None:
        """See `ResponseHandler`."""
        exchange = self._exchange
        exchange.response_bytes += len(data)
        if exchange.response_bytes > MAX_ANSWER_BYTES:
            text = f"The upstream's answer is larger than the {MAX_ANSWER_BYTES} bytes that a line may have."
            self._fail(ProxyError(UPSTREAM_PROTOCOL, text))
        else:
            self._parts.append(data)

    def flush(self) -> None:
        """See `ResponseHandler`."""

    def response_ended(self) -> None:
        """See `ResponseHandler`."""
        exchange = self._exchange
        exchange.ended_at = self._clock.monotonic()
        if exchange.first_byte_at:
            # Nobody reads what has come before the whole is there.
            exchange.held_seconds = exchange.ended_at - exchange.first_byte_at
        if self._head is not None and not self.done.done():
            self.done.set_result(self._head)

    def failed(self, error: ProxyError) -> None:
        """See `ResponseHandler`."""
        self._exchange.ended_at = self._clock.monotonic()
        self._fail(error)

    def upstream_writable(self, is_writable: bool) -> None:
        """See `ResponseHandler`."""

    def _fail(self, error: ProxyError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
