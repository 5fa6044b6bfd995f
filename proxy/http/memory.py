"""A connection in memory: two asyncio protocols joined without sockets. The twin of sockets, for tests.

It owns what a transport promises: order, delivery in a callback of its own, backpressure in both directions,
half closes and aborts. It has no kernel buffers: what the peer does not read stays in the writer's buffer.
It knows no addresses, sockets or TLS, so `get_extra_info` has nothing to tell.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

_HIGH_BYTES = 64 * 1024


class MemoryTransport(asyncio.Transport):
    """One end of a connection: what is written here arrives at the other end's protocol.

    Each write is one read of the peer's, unless `read_bytes` cuts it into pieces of at most that size.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, read_bytes: int | None = None
    ) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._read_bytes = read_bytes
        self._peer = self
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._high_bytes = _HIGH_BYTES
        self._low_bytes = _HIGH_BYTES // 4
        self._is_delivery_due = False
        self._is_eof_coming = False
        self._is_eof_told = False
        self._is_eof_written = False
        self._is_paused = False
        self._is_write_paused = False
        self._is_closing = False
        self._is_lost = False

    # --- the protocol's side --------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes. Raises RuntimeError after `write_eof` and, as uvloop does, on a lost connection."""
        if self._is_eof_written or self._is_lost:
            raise RuntimeError("write after the end")
        if not data:
            return
        if self._peer._is_lost:
            self._loop.call_soon(self._lose, ConnectionResetError("the peer is gone"))
            return
        self._peer._take(bytes(data))
        if self.get_write_buffer_size() > self._high_bytes and not self._is_write_paused:
            self._is_write_paused = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        """End this direction; the other one goes on."""
        if not self._is_eof_written and not self._is_closing:
            self._is_eof_written = True
            self._peer._is_eof_coming = True
            self._peer._deliver_soon()

    def can_write_eof(self) -> bool:
        """Tell that one direction can end alone."""
        return True

    def close(self) -> None:
        """Read no more, and close as soon as the peer has read what was written."""
        if self._is_closing:
            return
        self._is_closing = True
        self._peer._is_eof_coming = True
        self._peer._deliver_soon()
        if not self.get_write_buffer_size() or self._peer._is_lost:
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """Close now; what the peer has not read is gone, and it sees a reset."""
        self._is_closing = True
        self._peer._forget_inbox()
        self._loop.call_soon(self._lose, None)
        self._loop.call_soon(self._peer._lose, ConnectionResetError("reset by the peer"))

    def is_closing(self) -> bool:
        """Tell whether the connection is closed or about to be."""
        return self._is_closing

    def pause_reading(self) -> None:
        """Deliver nothing until `resume_reading`."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Deliver again."""
        self._is_paused = False
        self._deliver_soon()

    def is_reading(self) -> bool:
        """Tell whether what arrives is delivered."""
        return not self._is_paused and not self._is_closing

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the peer has not read yet."""
        return self._peer._inbox_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and the high mark in bytes."""
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks at which the protocol is told to stop and to go on writing."""
        self._high_bytes = _HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol in charge."""
        return self._protocol

    # --- the peer's side ------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        size = self._read_bytes or len(data)
        self._inbox.extend(data[start : start + size] for start in range(0, len(data), size))
        self._inbox_bytes += len(data)
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._is_delivery_due:
            self._is_delivery_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver one read, or the end of what comes."""
        self._is_delivery_due = False
        if self._is_paused or self._is_closing:
            return
        if self._inbox:
            data = self._inbox.popleft()
            self._inbox_bytes -= len(data)
            self._protocol.data_received(data)
            self._peer._drained()
            self._deliver_soon()
        elif self._is_eof_coming and not self._is_eof_told:
            self._is_eof_told = True
            if not self._protocol.eof_received():
                self.close()

    def _drained(self) -> None:
        if self._is_lost:
            return
        left_bytes = self.get_write_buffer_size()
        if self._is_write_paused and left_bytes <= self._low_bytes:
            self._is_write_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not left_bytes:
            self._loop.call_soon(self._lose, None)

    def _forget_inbox(self) -> None:
        self._inbox.clear()
        self._inbox_bytes = 0

    def _lose(self, problem: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        if self._inbox:
            # As TCP has it: who closes without having read everything resets the connection.
            self._forget_inbox()
            self._loop.call_soon(self._peer._lose, ConnectionResetError("reset by the peer"))
        self._protocol.connection_lost(problem)


def connect(
    loop: asyncio.AbstractEventLoop,
    first: asyncio.Protocol,
    second: asyncio.Protocol,
    read_bytes: int | None = None,
) -> tuple[MemoryTransport, MemoryTransport]:
    """Join two protocols and tell both; return the transport of each.

    `read_bytes` is the most that one read brings, at either end.
    """
    ends = MemoryTransport(loop, first, read_bytes), MemoryTransport(loop, second, read_bytes)
    ends[0]._peer, ends[1]._peer = ends[1], ends[0]
    first.connection_made(ends[0])
    second.connection_made(ends[1])
    return ends
