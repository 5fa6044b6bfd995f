"""After a 101 two sockets are joined as opaque bytes: websockets pass, with backpressure both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class TunnelEnd(asyncio.Protocol):
    """One side of a tunnel: what arrives here is written to the peer's transport."""

    __slots__ = ("_on_closed", "_peer", "received_bytes", "transport")

    def __init__(self, transport: asyncio.Transport, on_closed: Callable[[], None]) -> None:
        self.transport = transport
        self.received_bytes = 0
        self._on_closed = on_closed
        self._peer: TunnelEnd = self

    def face(self, peer: TunnelEnd) -> None:
        """Name the other side."""
        self._peer = peer

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        self.received_bytes += len(data)
        self._peer.transport.write(data)

    def eof_received(self) -> None:
        """A side that closes is gone, as it is on HTTP: this transport closes, and the peer's with it."""

    def pause_writing(self) -> None:
        """This side takes no more: stop reading from the peer."""
        if not self._peer.transport.is_closing():
            self._peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """This side takes bytes again."""
        if not self._peer.transport.is_closing():
            self._peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the peer too."""
        if not self._peer.transport.is_closing():
            self._peer.transport.close()
        self._on_closed()


def join(
    downstream: asyncio.Transport,
    upstream: asyncio.Transport,
    early_downstream: bytes,
    early_upstream: bytes,
    on_closed: Callable[[int, int], None],
) -> None:
    """Join two transports. The early bytes are what each side had sent already.

    `on_closed(downstream_bytes, upstream_bytes)` is called once, when both sides are closed.
    """
    open_ends = 2

    def closed() -> None:
        nonlocal open_ends
        open_ends -= 1
        if open_ends == 0:
            on_closed(caller.received_bytes, provider.received_bytes)

    caller = TunnelEnd(downstream, closed)
    provider = TunnelEnd(upstream, closed)
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
