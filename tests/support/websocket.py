"""Websocket frames on plain sockets (RFC 6455): a caller and a provider whose every byte is the test's."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
KEY = base64.b64encode(b"0123456789abcdef")


def accept_value(key: bytes) -> bytes:
    """Return the `Sec-WebSocket-Accept` that answers a key."""
    return base64.b64encode(hashlib.sha1(key + _GUID).digest())


def handshake_headers(protocols: str | None = None) -> list[tuple[str, str]]:
    """Return the headers with which a caller asks for a websocket."""
    lines = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
    lines.append(("Sec-WebSocket-Key", KEY.decode()))
    if protocols is not None:
        lines.append(("Sec-WebSocket-Protocol", protocols))
    return lines


def switching(key: bytes | None, protocol: bytes | None = None) -> bytes:
    """Return the 101 that accepts a handshake."""
    lines = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    lines += b"Sec-WebSocket-Accept: %b\r\n" % accept_value(key or b"")
    return lines + (b"" if protocol is None else b"Sec-WebSocket-Protocol: %b\r\n" % protocol) + b"\r\n"


def frame(opcode: int, payload: bytes, mask: bytes | None = None, is_final: bool = True) -> bytes:
    """Return one frame; callers mask, providers do not."""
    head = bytes([(0x80 if is_final else 0) | opcode])
    bit = 0x80 if mask is not None else 0
    if len(payload) < 126:
        head += bytes([bit | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([bit | 126]) + struct.pack(">H", len(payload))
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", len(payload))
    if mask is None:
        return head + payload
    return head + mask + _masked(payload, mask)


def closing(code: int, reason: str, mask: bytes | None = None) -> bytes:
    """Return a close frame."""
    return frame(CLOSE, struct.pack(">H", code) + reason.encode(), mask)


def _masked(payload: bytes, mask: bytes) -> bytes:
    repeated = mask * (len(payload) // 4 + 1)
    number = int.from_bytes(payload, "big") ^ int.from_bytes(repeated[: len(payload)], "big")
    return number.to_bytes(len(payload), "big")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it was read, mask removed; `raw` is its bytes on the wire."""

    opcode: int
    payload: bytes
    is_final: bool
    raw: bytes


class FrameReader:
    """Reads frames from a function that returns the next bytes, `b""` at the end."""

    def __init__(self, receive: Callable[[], bytes], buffered: bytes = b"") -> None:
        self._receive = receive
        self._buffer = bytearray(buffered)

    def next(self) -> Frame | None:
        """Return the next frame, `None` at the end of the connection."""
        if not self._have(2):
            return None
        start, length = 2, self._buffer[1] & 0x7F
        is_masked = bool(self._buffer[1] & 0x80)
        if length >= 126:
            size = 2 if length == 126 else 8
            if not self._have(2 + size):
                return None
            length = int.from_bytes(self._buffer[2 : 2 + size], "big")
            start += size
        mask_start, start = start, start + (4 if is_masked else 0)
        if not self._have(start + length):
            return None
        raw = bytes(self._buffer[: start + length])
        del self._buffer[: start + length]
        payload = raw[start:]
        if is_masked:
            payload = _masked(payload, raw[mask_start:start])
        return Frame(raw[0] & 0x0F, payload, bool(raw[0] & 0x80), raw)

    def _have(self, count: int) -> bool:
        while len(self._buffer) < count:
            data = self._receive()
            if not data:
                return False
            self._buffer += data
        return True
