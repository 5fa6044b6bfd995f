"""An HTTP/1.1 client on a plain socket: sends exactly the bytes given, shows exactly the bytes received."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HeaderList = Sequence[tuple[str | bytes, str | bytes]]


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """One response. `headers` keeps order, case and duplicates; `body` has its chunked coding removed.

    `is_whole` is `False` when the connection ended before the body did.
    """

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_whole: bool

    def header(self, name: str) -> str | None:
        """Return the first value of a header, by name in any case."""
        values = self.all(name)
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        """Return every value of a header, by name in any case."""
        lower = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == lower]


class RawClient:
    """One connection. `send` and `receive` work on bytes, `request` on whole exchanges."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        timeout_seconds: float = 10.0,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(timeout_seconds)
            self.socket.connect(address)
        else:
            self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
            self.socket.settimeout(timeout_seconds)
            if receive_buffer_bytes is not None:
                # Only before connecting: the window that is offered first cannot be taken back.
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            self.socket.connect(address)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.is_eof = False

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection (FIN)."""
        self.socket.close()

    def reset(self) -> None:
        """Close the connection with a reset (RST)."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def send_request(
        self,
        method: str,
        target: str | bytes,
        body: bytes | None = None,
        headers: HeaderList = (),
        host: str = "weir",
    ) -> bytes:
        """Send a whole request and return its bytes. Adds Host, and Content-Length where there is a body."""
        raw_target = target.encode() if isinstance(target, str) else target
        lines = [method.encode() + b" " + raw_target + b" HTTP/1.1", b"Host: " + host.encode()]
        names = {_bytes(name).lower() for name, _ in headers}
        if body is not None and not names & {b"content-length", b"transfer-encoding"}:
            lines.append(b"Content-Length: %d" % len(body))
        if body is not None and b"content-type" not in names:
            lines.append(b"Content-Type: application/json")
        lines += [_bytes(name) + b": " + _bytes(value) for name, value in headers]
        raw = b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")
        self.send(raw)
        return raw

    def request(
        self, method: str, target: str | bytes, body: bytes | None = None, headers: HeaderList = ()
    ) -> RawAnswer:
        """Send a request and read its whole answer."""
        self.send_request(method, target, body, headers)
        return self.read_answer(method)

    def receive(self) -> bytes:
        """Return the next bytes, `b""` at the end of the connection."""
        if self.buffer:
            data, self.buffer = self.buffer, b""
            return data
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self.is_eof = not data
        return data

    def _more(self) -> bool:
        kept, self.buffer = self.buffer, b""
        data = self.receive()
        self.buffer = kept + data
        return bool(data)

    def read_head(self) -> RawAnswer:
        """Read up to the end of a final response head; the body follows."""
        while b"\r\n\r\n" not in self.buffer:
            if not self._more():
                raise ConnectionError(f"no response head, only {self.buffer!r}")
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        lines = head.split(b"\r\n")
        _, status, reason = [*lines[0].split(b" ", 2), b""][:3]
        headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]
        if status == b"100":
            return self.read_head()
        return RawAnswer(int(status), reason, headers, b"", True)

    def read_answer(self, method: str = "GET") -> RawAnswer:
        """Read a whole response."""
        head = self.read_head()
        body, is_whole = self._read_body(head, method)
        return RawAnswer(head.status, head.reason, head.headers, body, is_whole)

    def _read_body(self, head: RawAnswer, method: str) -> tuple[bytes, bool]:
        if method == "HEAD" or head.status in (204, 304) or head.status < 200:
            return b"", True
        if (head.header("transfer-encoding") or "").lower() == "chunked":
            pieces: list[bytes] = []
            for piece in self.chunks():
                if piece is None:
                    return b"".join(pieces), False
                pieces.append(piece)
            return b"".join(pieces), True
        length = head.header("content-length")
        if length is None:
            while self._more():
                pass
            body, self.buffer = self.buffer, b""
            return body, True
        while len(self.buffer) < int(length):
            if not self._more():
                body, self.buffer = self.buffer, b""
                return body, False
        body, self.buffer = self.buffer[: int(length)], self.buffer[int(length) :]
        return body, True

    def chunks(self) -> Iterator[bytes | None]:
        """Yield the chunks of a chunked body as they come; `None` last if it was cut off."""
        while True:
            while b"\r\n" not in self.buffer:
                if not self._more():
                    yield None
                    return
            size_line, rest = self.buffer.split(b"\r\n", 1)
            size = int(size_line.split(b";")[0], 16)
            while len(rest) < size + 2:
                self.buffer = b""
                data = self.receive()
                if not data:
                    if rest:
                        yield rest[:size]
                    yield None
                    return
                rest += data
            self.buffer = rest[size + 2 :]
            if size == 0:
                return
            yield rest[:size]

    def is_closed_within(self, seconds: float) -> bool:
        """Tell whether the peer closes the connection within `seconds`."""
        deadline = time.monotonic() + seconds
        self.socket.settimeout(seconds)
        try:
            while time.monotonic() < deadline:
                if not self.socket.recv(65536):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return False


def _bytes(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text
