"""Open the data listener: TCP or a unix socket, TLS, a port shared by several processes."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from collections.abc import Callable

from proxy.http.limits import ServerLimits
from proxy.settings import Settings

_BACKLOG = 4096


def parse_listen(listen: str) -> tuple[str, int] | str:
    """Return `(host, port)`, or the path of a unix socket. Raises ValueError with what is wrong."""
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:")
        if not path:
            raise ValueError("unix: needs a path, as in unix:/run/weir.sock")
        return path
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{listen!r} is not HOST:PORT or unix:PATH")
    return host.strip("[]") or "0.0.0.0", int(port)


def cannot_listen(listen: str, problem: OSError) -> OSError:
    """Return the error for an address that cannot be listened on: which, and the system's reason."""
    code = problem.errno
    # asyncio puts its own words around the reason; names that do not resolve have codes below zero.
    reason = os.strerror(code) if code is not None and code > 0 else problem.strerror or str(problem)
    return OSError(f"cannot listen on {listen}: {reason}")


class Listener:
    """An open listener."""

    def __init__(self, server: asyncio.Server, url: str, path: str | None) -> None:
        self._server = server
        self._path = path
        self.url = url

    @classmethod
    async def open(
        cls,
        loop: asyncio.AbstractEventLoop,
        listen: str,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
    ) -> Listener:
        """Begin to accept connections on `listen`. Raises OSError or ValueError."""
        where = parse_listen(listen)
        scheme = "http" if tls is None else "https"
        if isinstance(where, str):
            remove_stale_socket(where)
            try:
                server = await loop.create_unix_server(factory, where, ssl=tls, backlog=_BACKLOG)
            except OSError as problem:
                raise cannot_listen(listen, problem) from None
            return cls(server, f"{scheme}+unix://{where}", where)
        host, port = where
        try:
            server = await loop.create_server(
                factory,
                host,
                port,
                ssl=tls,
                backlog=_BACKLOG,
                reuse_port=reuse_port or None,
                reuse_address=True,
            )
        except OSError as problem:
            raise cannot_listen(listen, problem) from None
        bound = server.sockets[0].getsockname()
        shown = f"[{bound[0]}]" if server.sockets[0].family == socket.AF_INET6 else bound[0]
        return cls(server, f"{scheme}://{shown}:{bound[1]}", None)

    def close(self) -> None:
        """Accept no more; connections go on."""
        self._server.close()
        if self._path is not None and os.path.exists(self._path):
            os.unlink(self._path)


def remove_stale_socket(path: str) -> None:
    """Remove a socket that nobody listens on; anything else in its place is an error of the operator's."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise OSError(f"{path} is in use by another process")


def server_limits(settings: Settings) -> ServerLimits:
    """Return the limits on callers that a process is run with."""
    return ServerLimits(
        head_bytes=settings.head_bytes,
        header_seconds=settings.header_seconds,
        body_seconds=settings.body_seconds,
        keep_alive=settings.keep_alive_seconds,
        write_stall=settings.write_stall_seconds,
    )
