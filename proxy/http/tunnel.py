"""After a 101 two sockets are joined as opaque bytes: websockets pass, with backpressure both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.http.deadlines import NEVER, Deadlines
from proxy.http.delivery import taken_bytes


class TunnelEnd(asyncio.Protocol):
    """One side of a tunnel: what arrives here is written to the peer's transport.

    A side that takes nothing of what waits for it for `stall_seconds` is dead, open or closing.
    """

    __slots__ = (
        "_deadlines",
        "_on_closed",
        "_peer",
        "_stall_seconds",
        "_taken_bytes",
        "deadline",
        "received_bytes",
        "transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        deadlines: Deadlines,
        stall_seconds: float,
        on_closed: Callable[[], None],
    ) -> None:
        self.transport = transport
        self.received_bytes = 0
        self.deadline = NEVER
        self._deadlines = deadlines
        self._stall_seconds = stall_seconds
        self._taken_bytes = 0
        self._on_closed = on_closed
        self._peer: TunnelEnd = self
        deadlines.add(self)

    def face(self, peer: TunnelEnd) -> None:
        """Name the other side."""
        self._peer = peer

    def part(self) -> None:
        """Take note that both sides are closed. They name each other: else only a collection frees them."""
        del self._peer, self._on_closed

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        self.received_bytes += len(data)
        self._peer.transport.write(data)

    def eof_received(self) -> None:
        """A side that closes is gone, as it is on HTTP: this transport closes, and the peer's with it."""

    def pause_writing(self) -> None:
        """This side takes no more: stop reading from the peer."""
        self._await_taking()
        if not self._peer.transport.is_closing():
            self._peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """This side takes bytes again."""
        self.deadline = NEVER
        if not self._peer.transport.is_closing():
            self._peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the peer too, once it has taken what waits for it."""
        self._deadlines.discard(self)
        if not self._peer.transport.is_closing():
            self._peer.transport.close()
            self._peer._await_taking()
        self._on_closed()

    def _await_taking(self) -> None:
        self._taken_bytes = taken_bytes(self.transport)
        self.deadline = self._deadlines.after(self._stall_seconds)

    def sweep(self, now: float) -> None:
        """Give a side up that takes nothing."""
        if self.deadline == NEVER:
            return
        taken = taken_bytes(self.transport)
        if taken > self._taken_bytes:
            self._taken_bytes = taken
            self.deadline = now + self._stall_seconds
        elif now >= self.deadline:
            self.transport.abort()


def join(
    downstream: asyncio.Transport,
    upstream: asyncio.Transport,
    early_downstream: bytes,
    early_upstream: bytes,
    deadlines: Deadlines,
    stall_seconds: float,
    on_closed: Callable[[int, int], None],
) -> None:
    """Join two transports. The early bytes are what each side had sent already.

    A side that takes nothing of what was sent to it for `stall_seconds` is dropped.
    `on_closed(downstream_bytes, upstream_bytes)` is called once, when both sides are closed.
    """
    open_ends = 2

    def closed() -> None:
        nonlocal open_ends
        open_ends -= 1
        if open_ends == 0:
            on_closed(caller.received_bytes, provider.received_bytes)
            caller.part()
            provider.part()

    caller = TunnelEnd(downstream, deadlines, stall_seconds, closed)
    provider = TunnelEnd(upstream, deadlines, stall_seconds, closed)
    caller.face(provider)
    provider.face(caller)
    downstream.set_protocol(caller)
    upstream.set_protocol(provider)
    if early_downstream:
        caller.data_received(early_downstream)
    if early_upstream:
        provider.data_received(early_upstream)
    for transport in (downstream, upstream):
        if not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()
