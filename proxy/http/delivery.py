"""Whether a peer received what was sent and is still there: asked from the kernel, where it knows.

Linux keeps the number of bytes that the peer's kernel acknowledged (`tcpi_bytes_acked`, RFC 4898); a peer
that had closed before a request arrived acknowledges none of it. Delayed acknowledgements can hide up to
40 ms.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import sys
import termios

_BYTES_ACKED_OFFSET = 120
_INFO_BYTES = 128
_SYN = 1
_MAX_UNREAD_BYTES = 256 * 1024
_LINGER = struct.Struct("ii")
_GONE_EVENTS = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def is_local(transport: asyncio.BaseTransport) -> bool:
    """Tell whether a connection is a unix socket."""
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.family == socket.AF_UNIX


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


def taken_bytes(transport: asyncio.Transport) -> int:
    """Return a figure that grows as the peer takes what is written.

    A kernel's buffer may hold megabytes: its level moves only now and then, acknowledgements do at once.
    """
    acknowledged = acknowledged_bytes(transport)
    return -transport.get_write_buffer_size() if acknowledged is None else acknowledged


def undelivered_bytes(transport: asyncio.Transport) -> int:
    """Return how much of what was written the peer has not acknowledged, as far as that is known."""
    waiting_bytes = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0 or not sys.platform.startswith("linux"):
        return waiting_bytes
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return waiting_bytes
    return waiting_bytes + int(struct.unpack("i", answer)[0])


def unread_bytes(transport: asyncio.Transport) -> bytes:
    """Return what a peer had sent on a plain connection that a failed write is about to close, up to a bound.

    What arrived before a reset stays readable, but an event loop that fails to write does not look.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0 or transport.get_extra_info("sslcontext") is not None:
        return b""
    found = b""
    with socket.fromfd(sock.fileno(), sock.family, socket.SOCK_STREAM) as copy:
        try:
            while len(found) < _MAX_UNREAD_BYTES and (data := copy.recv(65536, socket.MSG_DONTWAIT)):
                found += data
        except OSError:
            pass
    return found


def reset_on_close(transport: asyncio.Transport, is_wanted: bool) -> None:
    """Have the kernel end a TCP connection with a reset instead of an end, whoever closes it and why.

    What the peer has not acknowledged by then is lost. Other sockets know no resets.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0 and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(is_wanted, 0))


def is_peer_gone(transport: asyncio.BaseTransport) -> bool:
    """Tell whether the peer closed or reset a connection that is not being read, so that no event says so.

    What it sent before is no matter (Linux); elsewhere only a reset shows.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), _GONE_EVENTS)
    return bool(poll.poll(0))
