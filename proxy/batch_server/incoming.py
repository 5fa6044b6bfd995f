"""A request body on its way in: as much of it in memory as its reader has not taken, and no more.

What `aiohttp.MultipartReader` asks of a stream is here under the names that it uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.core.errors import BODY_TOO_LARGE, ProxyError

_HIGH_BYTES = 512 * 1024
_LOW_BYTES = 128 * 1024
_LONGEST_LINE_BYTES = 8192
_MOST_LINES = 1000
"""Far more than any form needs around what it holds; millions of empty ones would keep everybody waiting."""


class IncomingBody:
    """Fed by the caller's connection, read by one task. `writable(False)` asks the caller to wait."""

    def __init__(self, writable: Callable[[bool], None], most_bytes: int) -> None:
        self._writable = writable
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._buffer = bytearray()
        self._is_ended = False
        self._is_held = False
        self._lines = 0
        self._came = asyncio.Event()

    # ---- the connection's side

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._taken_bytes += len(data)
        if self._taken_bytes > self._most_bytes:
            # Its reader learns of it at the end of what is allowed.
            self._came.set()
            self._hold(True)
            return
        self._buffer += data
        self._came.set()
        if len(self._buffer) > _HIGH_BYTES:
            self._hold(True)

    def end(self) -> None:
        """Take note that the body is complete."""
        self._is_ended = True
        self._came.set()

    def _hold(self, is_held: bool) -> None:
        if is_held is not self._is_held:
            self._is_held = is_held
            self._writable(not is_held)

    # ---- the reader's side

    async def read(self, n: int = -1) -> bytes:
        """Return up to `n` bytes as soon as there are any, `b""` at the end; -1: whatever is there.

        Raises ProxyError (413) for a body that is too large.
        """
        await self._wait()
        size = len(self._buffer) if n < 0 else n
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._release()
        return data

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        """Return a line with its end, `b""` at the end. Raises ValueError: too long, or one too many."""
        self._lines += 1
        if self._lines > _MOST_LINES:
            raise ValueError("too many lines")
        limit_bytes = max_line_length or _LONGEST_LINE_BYTES
        seen = 0
        while True:
            found = self._buffer.find(b"\n", seen)
            if found >= 0 or (self._is_ended and not self._is_too_large):
                break
            seen = len(self._buffer)
            if seen > limit_bytes:
                break
            self._came.clear()
            await self._more()
        size = len(self._buffer) if found < 0 else found + 1
        if size > limit_bytes:
            raise ValueError("a line is too long")
        line = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._release()
        return line

    def unread_data(self, data: bytes) -> None:
        """Put back what was read and belongs to what follows."""
        self._buffer[:0] = data
        self._came.set()

    def at_eof(self) -> bool:
        """Whether all was read."""
        return self._is_ended and not self._buffer

    async def read_all(self) -> bytes:
        """Return the whole body, which is small. Raises ProxyError (413)."""
        parts: list[bytes] = []
        while data := await self.read():
            parts.append(data)
        return b"".join(parts)

    @property
    def _is_too_large(self) -> bool:
        return self._taken_bytes > self._most_bytes

    async def _wait(self) -> None:
        while not self._buffer and (self._is_too_large or not self._is_ended):
            self._came.clear()
            await self._more()

    async def _more(self) -> None:
        if self._is_too_large:
            raise too_large(self._most_bytes)
        self._hold(False)
        await self._came.wait()

    def _release(self) -> None:
        if len(self._buffer) < _LOW_BYTES and not self._is_too_large:
            self._hold(False)


def too_large(most_bytes: int) -> ProxyError:
    """Return the refusal of a body that is larger than this."""
    return ProxyError(BODY_TOO_LARGE, f"The request body is larger than {most_bytes} bytes.")
