"""A server on loopback that takes webhooks, as somebody's own would.

with receiving() as receiver:
    receiver.statuses = [500]          # then 200
    (delivery,) = receiver.wait(1)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_" + "C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


@dataclass(frozen=True)
class Delivery:
    """One call; names of header fields are lower-case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.body)
        return event


@dataclass
class Receiver:
    """What has come, and what the next calls are answered with: 200 when `statuses` is used up."""

    address: str
    statuses: list[int] = field(default_factory=list)
    always: int = 200
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer_body: bytes = b""
    delay_seconds: float = 0.0
    deliveries: list[Delivery] = field(default_factory=list)
    seen: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, count: int, seconds: float = 15.0) -> list[Delivery]:
        """Return what has come once there are `count`; fails if they do not come in time."""
        until = time.monotonic() + seconds
        with self.seen:
            while len(self.deliveries) < count:
                left = until - time.monotonic()
                assert left > 0, f"only {len(self.deliveries)} of {count} came"
                self.seen.wait(left)
            return list(self.deliveries)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            headers = {name.lower(): value for name, value in self.headers.items()}
            delivery = Delivery("POST", self.path, headers, self.rfile.read(length))
            with receiver.seen:
                status = receiver.statuses.pop(0) if receiver.statuses else receiver.always
                receiver.deliveries.append(delivery)
                receiver.seen.notify_all()
            time.sleep(receiver.delay_seconds)
            self._answer(status)

        def do_GET(self) -> None:
            with receiver.seen:
                receiver.deliveries.append(Delivery("GET", self.path, {}, b""))
                receiver.seen.notify_all()
            self._answer(200)

        def _answer(self, status: int) -> None:
            try:
                self.send_response(status)
                for name, value in receiver.answer_headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(receiver.answer_body)))
                self.end_headers()
                self.wfile.write(receiver.answer_body)
            except OSError:
                pass  # Weir has read enough, or has given up

        def log_message(self, format: str, *args: Any) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
