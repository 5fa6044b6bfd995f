"""An upstream on a unix socket that answers so many requests and then closes in the middle of one."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class UnixUpstream:
    """Counts whole requests (without bodies of interest); after `answers` of them it only closes."""

    def __init__(self, path: Path, answers: int) -> None:
        self.path = path
        self.requests = 0
        self._answers = answers

    def __enter__(self) -> UnixUpstream:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.settimeout(0.1)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping = True
        self._thread.join(5)
        self._listener.close()

    def _serve(self) -> None:
        while not self._is_stopping:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(2.0)
                while connection.recv(65536):
                    self.requests += 1
                    if self.requests > self._answers:
                        break
                    connection.sendall(RESPONSE)
