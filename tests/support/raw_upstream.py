"""A scripted upstream on plain sockets: exact bytes, cuts and timing are the test's.

The script is called in a thread of its own for each request:

    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")

    with RawUpstream(script) as upstream: ...

The connection stays open for the next request unless the script closes or resets it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

SCRIPT_END_SECONDS = 1.0
ACCEPT_SECONDS = 0.1


@dataclass(slots=True)
class Call:
    """One request as it arrived, and the socket to answer on.

    `head` is the raw head without the final blank line, `raw_body` the body bytes as they were on the wire.
    """

    socket: socket.socket
    connection: int
    number: int
    head: bytes
    raw_body: bytes = b""
    body: bytes = b""
    is_closed: bool = False
    early: bytes = b""

    @property
    def request_line(self) -> bytes:
        """The first line."""
        return self.head.split(b"\r\n", 1)[0]

    @property
    def target(self) -> bytes:
        """The request target, character for character."""
        return self.request_line.split(b" ")[1]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The header lines as they came."""
        pairs = [line.partition(b":") for line in self.head.split(b"\r\n")[1:]]
        return [(name, value.strip()) for name, _, value in pairs]

    def header(self, name: str) -> bytes | None:
        """Return the first value of a header, by name in any case."""
        lower = name.lower().encode()
        return next((value for key, value in self.headers if key.lower() == lower), None)

    def receive(self) -> bytes:
        """Return the next bytes that follow the head or the request, `b""` at the end."""
        if self.early:
            data, self.early = self.early, b""
            return data
        return self.socket.recv(1 << 16)

    def body_pieces(self) -> Iterator[bytes]:
        """Yield the body of a request that the server did not read, without keeping it."""
        length = self.header("content-length")
        if length is not None:
            left = int(length)
            while left:
                data = self.receive()
                left -= len(data)
                yield data
        elif (self.header("transfer-encoding") or b"").lower() == b"chunked":
            buffer = b""
            while True:
                while b"\r\n" not in buffer:
                    buffer += self.receive()
                line, buffer = buffer.split(b"\r\n", 1)
                size = int(line, 16)
                while len(buffer) < size + 2:
                    buffer += self.receive()
                yield buffer[:size]
                buffer = buffer[size + 2 :]
                if size == 0:
                    return

    def send(self, data: bytes) -> None:
        """Send bytes; a proxy that has gone is no error."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.is_closed = True

    def send_pieces(self, pieces: Iterable[bytes], pause_seconds: float = 0.0) -> None:
        """Send pieces one after another, each in a write of its own."""
        for piece in pieces:
            self.send(piece)
            if pause_seconds:
                time.sleep(pause_seconds)

    def json(self, body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> None:
        """Answer with a JSON body."""
        self.send(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
            % (status, headers, len(body), body)
        )

    def stream_head(self, headers: bytes = b"") -> None:
        """Begin a chunked event stream."""
        self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%bTransfer-Encoding: chunked\r\n\r\n"
            % headers
        )

    def chunk(self, data: bytes) -> None:
        """Send one chunk."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_chunks(self) -> None:
        """End a chunked body."""
        self.send(b"0\r\n\r\n")

    def close(self) -> None:
        """Close the connection (FIN)."""
        self.is_closed = True
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()

    def reset(self) -> None:
        """Close the connection with a reset (RST)."""
        self.is_closed = True
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def wait_for_close(self, seconds: float) -> bool:
        """Tell whether the proxy closes this connection within `seconds`."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        self.is_closed = True
        return True


Script = Callable[[Call], None]


@dataclass
class RawUpstream:
    """The server. `calls` lists every request read, in order; `connections` counts accepted ones.

    Without `reads_body` the script is called at the end of each head; `Call.receive` gives it the body.
    `on_port` is one that an earlier server had, 0 any.
    """

    script: Script
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    reads_body: bool = True
    on_port: int = 0

    def __enter__(self) -> RawUpstream:
        self._listener = socket.create_server(("127.0.0.1", self.on_port), backlog=1024)
        self._listener.settimeout(ACCEPT_SECONDS)
        self._is_stopping = False
        self._sockets: set[socket.socket] = set()
        self._serving: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="raw upstream", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes a waiting accept
        except OSError:
            pass
        self._thread.join(5)
        self._listener.close()
        with self._lock:
            sockets = tuple(self._sockets)
        for sock in sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        # What a script notes down last must be there when the block has ended.
        for thread in self._serving:
            thread.join(SCRIPT_END_SECONDS)

    @property
    def port(self) -> int:
        """The port listened on."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The base URL, with `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    def wait_for_calls(self, count: int, seconds: float = 5.0) -> list[Call]:
        """Return the calls once there are `count`."""
        deadline = time.monotonic() + seconds
        while len(self.calls) < count:
            assert time.monotonic() < deadline, f"only {len(self.calls)} of {count} calls"
            time.sleep(0.005)
        return self.calls

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.connections += 1
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.add(sock)
            thread = threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True)
            self._serving.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        buffer = b""
        try:
            while not self._is_stopping:
                call, buffer = _read_call(sock, buffer, connection, len(self.calls), self.reads_body)
                if call is None:
                    return
                with self._lock:
                    self.calls.append(call)
                self.script(call)
                if call.is_closed:
                    return
        except OSError:
            pass
        finally:
            with self._lock:
                self._sockets.discard(sock)
            sock.close()


def _read_call(
    sock: socket.socket, buffer: bytes, connection: int, number: int, reads_body: bool
) -> tuple[Call | None, bytes]:
    def more() -> bool:
        nonlocal buffer
        data = sock.recv(1 << 20)
        buffer += data
        return bool(data)

    while b"\r\n\r\n" not in buffer:
        if not more():
            return None, b""
    head, buffer = buffer.split(b"\r\n\r\n", 1)
    call = Call(sock, connection, number, head)
    if not reads_body:
        call.early = buffer
        return call, b""
    length = call.header("content-length")
    if length is not None:
        while len(buffer) < int(length):
            if not more():
                return None, b""
        call.raw_body = call.body = buffer[: int(length)]
        return call, buffer[int(length) :]
    if (call.header("transfer-encoding") or b"").lower() == b"chunked":
        while True:
            while b"\r\n" not in buffer:
                if not more():
                    return None, b""
            line, rest = buffer.split(b"\r\n", 1)
            size = int(line, 16)
            while len(rest) < size + 2:
                if not more():
                    return None, b""
                rest = buffer.split(b"\r\n", 1)[1]
            call.raw_body += line + b"\r\n" + rest[: size + 2]
            call.body += rest[:size]
            buffer = rest[size + 2 :]
            if size == 0:
                return call, buffer
    return call, buffer
