"""Open a connection to an upstream: names, address fallback, HTTP proxies and TLS.

Addresses are tried as RFC 8305 says (aiohappyeyeballs). Every failure leaves here as a `ProxyError` that is
retryable, since nothing has been sent.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import aiohappyeyeballs

from proxy.core.errors import (
    UPSTREAM_CONNECT,
    UPSTREAM_CONNECT_TIMEOUT,
    UPSTREAM_DNS,
    UPSTREAM_TLS,
    ErrorCode,
    ProxyError,
)

_ADDRESS_DELAY_SECONDS = 0.25
_PROXY_REPLY_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """A forward proxy. `authorization` is the value of Proxy-Authorization, if one is needed."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)

    @staticmethod
    def with_credentials(host: str, port: int, user: str | None, password: str | None) -> HttpProxy:
        """Make a proxy that is told who asks (RFC 7617)."""
        if user is None:
            return HttpProxy(host, port)
        token = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        return HttpProxy(host, port, f"Basic {token}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an upstream listens and how it is reached. `tunnel` goes through a proxy with CONNECT."""

    host: str
    port: int
    unix_socket: str | None = None
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    tunnel: HttpProxy | None = None


class Dial(Protocol):
    """How connections are made: `dial`, or its twin without a network in tests."""

    async def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        factory: Callable[[], asyncio.Protocol],
        timeout_seconds: float | None,
    ) -> asyncio.Protocol:
        """Return the protocol of a new connection. Raises ProxyError."""
        ...


async def dial(
    loop: asyncio.AbstractEventLoop,
    address: Address,
    factory: Callable[[], asyncio.Protocol],
    timeout_seconds: float | None,
) -> asyncio.Protocol:
    """Return the protocol of a new connection, TLS established. Raises ProxyError."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _dial(loop, address, factory)
    except TimeoutError:
        raise _failure(
            UPSTREAM_CONNECT_TIMEOUT, "The connection to the upstream was not made in time."
        ) from None
    except (socket.gaierror, UnicodeError):  # the latter for a name that IDNA cannot encode
        raise _failure(UPSTREAM_DNS, "The upstream's host name could not be resolved.") from None
    except ssl.SSLError as problem:
        reason = problem.reason or "handshake failed"
        raise _failure(UPSTREAM_TLS, f"TLS with the upstream failed: {reason}.") from None
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise _failure(UPSTREAM_CONNECT, f"The upstream could not be reached: {reason}.") from None


async def _dial(
    loop: asyncio.AbstractEventLoop, address: Address, factory: Callable[[], asyncio.Protocol]
) -> asyncio.Protocol:
    server_name = address.server_name or address.host if address.tls is not None else None
    if address.unix_socket is not None:
        _, protocol = await loop.create_unix_connection(
            factory, address.unix_socket, ssl=address.tls, server_hostname=server_name
        )
        return protocol
    hop = address.tunnel or address
    sock = await _connect(loop, hop.host, hop.port)
    try:
        if address.tunnel is not None:
            await _ask_proxy(loop, sock, address, address.tunnel)
        _, protocol = await loop.create_connection(
            factory, sock=sock, ssl=address.tls, server_hostname=server_name
        )
    except BaseException:
        sock.close()
        raise
    return protocol


async def _connect(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    sock = await aiohappyeyeballs.start_connection(
        infos, loop=loop, happy_eyeballs_delay=_ADDRESS_DELAY_SECONDS, interleave=1
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


async def _ask_proxy(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, address: Address, proxy: HttpProxy
) -> None:
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"CONNECT {host}:{address.port} HTTP/1.1", f"Host: {host}:{address.port}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await loop.sock_sendall(sock, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    reply = b""
    while b"\r\n\r\n" not in reply:
        data = await loop.sock_recv(sock, 4096)
        reply += data
        if not data or len(reply) > _PROXY_REPLY_BYTES:
            raise _failure(UPSTREAM_CONNECT, "The HTTP proxy closed the connection.")
    status = reply.split(b" ", 2)[1:2]
    if not status or not status[0].startswith(b"2"):
        code = status[0][:3].decode("ascii", "replace") if status else "?"
        raise _failure(UPSTREAM_CONNECT, f"The HTTP proxy refused to connect: status {code}.")


def _failure(kind: ErrorCode, message: str) -> ProxyError:
    return ProxyError(kind, message, retryable=True)
