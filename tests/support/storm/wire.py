"""Both sides' view of HTTP on asyncio streams: read one message, end a connection in a chosen way."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Cut(Exception):
    """The connection ended within a message; `body` is what came of it."""

    def __init__(self, body: bytes = b"") -> None:
        super().__init__("cut")
        self.body = body


@dataclass(frozen=True, slots=True)
class Wire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting while the peer does not take them. Raises Cut when it is gone."""
        if self.writer.transport.is_closing():
            raise Cut
        self.writer.write(data)
        try:
            await self.writer.drain()
        except OSError:
            raise Cut from None

    async def head(self) -> tuple[list[bytes], dict[bytes, bytes]]:
        """Return the words of the first line and the headers by lower-case name. Raises Cut."""
        try:
            raw = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            raise Cut from None
        line, *lines = raw[:-4].split(b"\r\n")
        pairs = [header.partition(b":") for header in lines]
        return line.split(b" ", 2), {name.lower(): value.strip() for name, _, value in pairs}

    async def body(self, headers: dict[bytes, bytes], may_end: bool = False) -> bytes:
        """Return the body that `headers` announce. `may_end`: without a length it ends with the connection.

        Raises Cut.
        """
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return await self._chunks()
        if b"content-length" in headers:
            try:
                return await self.reader.readexactly(int(headers[b"content-length"]))
            except asyncio.IncompleteReadError as cut:
                raise Cut(cut.partial) from None
            except OSError:
                raise Cut from None
        return await self._rest() if may_end else b""

    async def _chunks(self) -> bytes:
        body = b""
        try:
            while True:
                size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
                body += (await self.reader.readexactly(size + 2))[:-2]
                if not size:
                    return body
        except asyncio.IncompleteReadError as cut:
            raise Cut(body + cut.partial) from None
        except OSError:
            raise Cut(body) from None

    async def _rest(self) -> bytes:
        body = b""
        try:
            while data := await self.reader.read(65536):
                body += data
        except OSError:
            raise Cut(body) from None
        return body

    async def wait_for_end(self) -> None:
        """Read until the peer closes."""
        try:
            while await self.reader.read(65536):
                pass
        except OSError:
            pass

    def half_close(self) -> None:
        """Send an end (FIN) and go on reading."""
        if not self.writer.transport.is_closing():
            self.writer.write_eof()

    def reset(self) -> None:
        """Close with a reset (RST)."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None and not self.writer.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close (FIN), dropping what the peer does not take at once."""
        transport = self.writer.transport
        if transport.get_write_buffer_size():
            transport.abort()
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass
