"""Whether a peer can have received what was sent: asked from the kernel, where it knows.

Linux keeps the number of bytes that the peer's kernel acknowledged (`tcpi_bytes_acked`, RFC 4898); a peer that
had closed before a request arrived acknowledges none of it. Delayed acknowledgements can hide up to 40 ms.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

_BYTES_ACKED_OFFSET = 120
_INFO_BYTES = 128
_SYN = 1


def acknowledged_bytes(transport: asyncio.BaseTransport) -> int | None:
    """Return how many bytes the peer acknowledged on this connection; `None` where nobody can tell."""
    if not sys.platform.startswith("linux"):
        return None
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    if len(info) < _INFO_BYTES:
        return None
    acked: int = struct.unpack_from("Q", info, _BYTES_ACKED_OFFSET)[0]
    return acked - _SYN
