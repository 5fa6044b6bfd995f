"""A server connection on one end of a wire in memory, a caller on the other, and time that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from proxy.core.clock import ManualClock
from proxy.core.errors import ProxyError
from proxy.http.deadlines import Deadlines
from proxy.http.head import RequestHead
from proxy.http.limits import ServerLimits
from proxy.http.memory import MemoryTransport, connect
from proxy.http.server import ServerConnection
from proxy.http.serving import RequestHandler

ROUNDS = 30


async def settle(rounds: int = ROUNDS) -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class Caller(asyncio.Protocol):
    """The other end: what it received, and whether it was told of an end."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_ended = False
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(MemoryTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.is_ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


@dataclass
class Handler:
    """A request handler that notes what it is told and answers when the test says so."""

    connection: ServerConnection
    faults: list[str]
    events: list[str] = field(default_factory=list)
    body: bytes = b""
    is_complete: bool = False
    is_over: bool = False
    on_head: Callable[[Handler], None] | None = None
    on_end: Callable[[Handler], None] | None = None

    def head_received(self, head: RequestHead) -> None:
        self.head = head
        self._note("head")
        if self.on_head is not None:
            self.on_head(self)

    def body_received(self, data: bytes) -> None:
        assert data
        self._note("body")
        self.body += data

    def request_ended(self) -> None:
        self._note("end")
        self.is_complete = True
        if self.on_end is not None:
            self.on_end(self)

    def writable(self, is_writable: bool) -> None:
        self._note(f"writable {is_writable}")

    def gone(self, reason: str) -> None:
        self._note(f"gone {reason}")
        self.is_over = True

    def refused(self, error: ProxyError) -> None:
        self._note(f"refused {error.kind.code}")
        self.answer(b"refused", keep_alive=False)

    def crashed(self, problem: Exception) -> None:
        self._note(f"crashed {type(problem).__name__}")
        self.answer(b"crashed", keep_alive=False)

    def _note(self, event: str) -> None:
        if self.is_over:
            self.faults.append(f"{event} after the end")
        if self.events[-1:] != ["body"] or event != "body":
            self.events.append(event)

    def answer(self, body: bytes, keep_alive: bool = True) -> None:
        """Send a whole answer."""
        self.connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        self.is_over = True
        self.connection.finish(keep_alive)


class FakeService:
    """What connections share, with its handlers at hand."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: ServerLimits) -> None:
        self.clock = ManualClock()
        self.limits = limits
        self.deadlines = Deadlines(loop, self.clock, interval_seconds=0.001)
        self.connections: set[ServerConnection] = set()
        self.is_draining = False
        self.handlers: list[Handler] = []
        self.refusals: list[str] = []
        self.faults: list[str] = []
        self.on_head: Callable[[Handler], None] | None = None
        self.on_end: Callable[[Handler], None] | None = None

    def handler(self, connection: ServerConnection) -> RequestHandler:
        handler = Handler(connection, self.faults, on_head=self.on_head, on_end=self.on_end)
        self.handlers.append(handler)
        return handler

    def refuse(self, error: ProxyError) -> bytes:
        self.refusals.append(error.kind.code)
        return b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\n\r\n" % error.kind.status


class Wire:
    """Both ends. `pass_time` moves the clock and lets every deadline look at it."""

    def __init__(self, limits: ServerLimits | None = None, read_bytes: int | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.service = FakeService(loop, limits or ServerLimits())
        self.connection = ServerConnection(self.service, loop)
        self.caller = Caller()
        connect(loop, self.caller, self.connection, read_bytes)

    @property
    def handlers(self) -> list[Handler]:
        return self.service.handlers

    async def send(self, *pieces: bytes) -> None:
        """Send each piece as a read of its own."""
        for piece in pieces:
            self.caller.transport.write(piece)
        await settle(len(pieces) + 5)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and everything that follows from it."""
        self.service.clock.advance(seconds)
        self.service.deadlines.sweep()
        await settle()

    @property
    def is_over(self) -> bool:
        """Whether nothing of the connection is left."""
        return not self.service.connections and len(self.service.deadlines) == 0 and self.connection.is_closed
