"""A relay in front of a server that keeps every request as it came: for comparing what a server is sent.

It passes bytes both ways and changes none of them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httptools

PIECE_BYTES = 1 << 16
ACCEPT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Request:
    """One request: header lines with names as written, in order; the body without its framing."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass
class _Parsing:
    """Reads one connection's requests; httptools calls the `on_` methods."""

    found: list[Request]
    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    is_http: bool = True

    def __post_init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Read on, up to a request that asks for another protocol: what follows is no HTTP."""
        if self.is_http:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                self.is_http = False

    def on_message_begin(self) -> None:
        self.target, self.headers, self.body = b"", [], b""

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        headers = tuple(self.headers)
        self.found.append(Request(self.parser.get_method(), self.target, headers, self.body))


class Recorder:
    """The relay. `take` returns what has come since it was last asked."""

    def __init__(self, server_url: str) -> None:
        host, _, port = server_url.removeprefix("http://").partition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._listener.settimeout(ACCEPT_SECONDS)
        self._found: list[Request] = []
        self._sockets: set[socket.socket] = set()
        self._is_stopping = False
        self._accepting = threading.Thread(target=self._accept, name="recorder", daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        """The origin to send requests to."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def take(self) -> list[Request]:
        """Return the requests recorded so far and forget them."""
        taken, self._found[:] = list(self._found), []
        return taken

    def close(self) -> None:
        """Stop, and close what is open."""
        self._is_stopping = True
        self._accepting.join()
        self._listener.close()
        for open_socket in tuple(self._sockets):
            _end(open_socket)

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                caller, _ = self._listener.accept()
            except TimeoutError:
                continue
            server = socket.create_connection(self._server)
            for end in (caller, server):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.add(end)
            parsing = _Parsing(self._found)
            for source, sink, reader in ((caller, server, parsing), (server, caller, None)):
                threading.Thread(target=self._pass, args=(source, sink, reader), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, parsing: _Parsing | None) -> None:
        try:
            while data := source.recv(PIECE_BYTES):
                if parsing is not None:
                    parsing.feed(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            self._sockets.discard(end)
            _end(end)


def _end(open_socket: socket.socket) -> None:
    try:
        open_socket.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    open_socket.close()


@contextmanager
def recorded(server_url: str) -> Iterator[Recorder]:
    """Relay to a server until the block ends."""
    recorder = Recorder(server_url)
    try:
        yield recorder
    finally:
        recorder.close()
