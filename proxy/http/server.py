"""The caller's side of the data path: one HTTP/1.1 connection as an asyncio protocol.

It owns order (one request at a time, pipelined ones wait), deadlines and the end of a connection. What a
request means and what is answered belongs to the `RequestHandler` that the service makes for each one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from proxy.core.errors import REQUEST_TIMEOUT, ProxyError
from proxy.http.deadlines import NEVER
from proxy.http.delivery import is_peer_gone, reset_on_close, taken_bytes, undelivered_bytes
from proxy.http.request_reader import Incoming, RequestReader
from proxy.http.serving import RequestHandler, Service

_log = logging.getLogger("weir")


class ServerConnection(asyncio.Protocol):
    """One connection from a caller. A response is written with `write` and closed with `finish`."""

    __slots__ = (
        "_early",
        "_handler",
        "_is_lingering",
        "_is_paused_by_handler",
        "_is_reading_paused",
        "_is_request_done",
        "_is_resetting",
        "_is_write_paused",
        "_linger_until",
        "_loop",
        "_reader",
        "_service",
        "_taken_bytes",
        "deadline",
        "has_written",
        "is_closed",
        "transport",
    )

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._reader = RequestReader(service.limits)
        self._handler: RequestHandler | None = None
        self._early: bytes | None = None
        self._is_lingering = False
        self._is_paused_by_handler = False
        self._is_reading_paused = False
        self._is_request_done = False
        self._is_resetting = False
        self._is_write_paused = False
        self._linger_until = NEVER
        self._taken_bytes = 0
        self.deadline = NEVER
        self.has_written = False
        self.is_closed = False
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # --- asyncio's side -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the caller has `header_seconds` to send a head."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._service.limits.write_buffer_bytes)
        self._service.connections.add(self)
        self._service.deadlines.add(self)
        self._expire_in(self._service.limits.header_seconds)

    def data_received(self, data: bytes) -> None:
        """Parse what came and hand it on."""
        if self._early is not None:
            self._early += data
            if len(self._early) > self._service.limits.pipelined_bytes:
                self._pause_reading()
        elif self._is_lingering:
            self._linger_on()
        elif not self.is_closed:
            try:
                self._feed(data)
            except Exception as problem:
                self._crashed(problem)

    def eof_received(self) -> None:
        """A caller that closes its side is gone, in every phase (as nginx has it by default)."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the handler that its caller is gone."""
        self._leave()
        handler, self._handler = self._handler, None
        self._reader.queue.clear()
        if handler is not None:
            handler.gone("client_closed")

    def pause_writing(self) -> None:
        """The caller reads too slowly: it has `write_stall` to take something."""
        self._await_taking()
        if self._handler is not None:
            self._handler.writable(False)

    def resume_writing(self) -> None:
        """The caller reads again."""
        self._is_write_paused = False
        if self._handler is not None:
            self._await_body()
            self._handler.writable(True)
        elif not self._is_lingering:
            self._expire_in(self._service.limits.keep_alive)
            self._loop.call_soon(self._take_next)

    def _await_taking(self) -> None:
        """From now on the caller has `write_stall` to take something of what is written."""
        self._is_write_paused = True
        self._taken_bytes = taken_bytes(self.transport)
        self._expire_in(self._service.limits.write_stall)

    # --- reading --------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        was_idle = self._handler is None and not reader.is_in_head
        reader.feed(data)
        if was_idle and reader.is_in_head:
            self._expire_in(self._service.limits.header_seconds)
        if reader.after_upgrade is not None:
            # What follows a handshake waits for the upstream's word on it.
            self._early, reader.after_upgrade = reader.after_upgrade, None
        self._pump()

    def _pump(self) -> None:
        """Deliver what was read: the current request's bytes, or the next request if none is current."""
        queue = self._reader.queue
        if queue:
            incoming = queue[0]
            if self._handler is None:
                if self._is_write_paused:
                    # A caller that does not take its last answer gets no further one, nor room to ask.
                    self._pause_reading()
                    return
                self._begin(incoming)
            if self._handler is not None and not self._is_request_done:
                self._deliver(self._handler, incoming)
        if len(queue) > 1:
            self._pause_reading()
        failure = self._reader.failure
        if failure is not None and not self._is_lingering and (not queue or not self._is_request_done):
            self._refuse(failure)

    def _begin(self, incoming: Incoming) -> None:
        head = incoming.head
        self.has_written = False
        self._is_request_done = False
        self.deadline = NEVER
        self._handler = self._service.handler(self)
        self._handler.head_received(head)
        is_answered = self._handler is None or self.has_written
        if (
            not is_answered
            and head.fields.get(b"expect", b"").lower() == b"100-continue"
            and head.version == "1.1"  # older callers know no interim answers (RFC 9110 section 10.1.1)
            and not incoming.parts
        ):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _deliver(self, handler: RequestHandler, incoming: Incoming) -> None:
        if incoming.parts:
            handler.body_received(incoming.take_body())
        if self._handler is not handler:
            return
        self._is_request_done = incoming.ended
        self._await_body()
        if incoming.ended:
            handler.request_ended()

    def _await_body(self) -> None:
        """The rest of the body is due, unless it is complete or cannot come; a write stall comes first."""
        if self._is_write_paused:
            return
        if self._is_request_done or self._is_paused_by_handler:
            self.deadline = NEVER
        else:
            self._expire_in(self._service.limits.body_seconds)

    # --- the handler's side ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes of the response."""
        self.has_written = True
        self.transport.write(data)

    def finish(self, keep_alive: bool) -> None:
        """End the response. The connection goes on with the next request, or closes."""
        self._handler = None
        if not keep_alive or not self._is_request_done or self._service.is_draining:
            self._close_gently()
            return
        queue = self._reader.queue
        queue.popleft()
        self._is_request_done = self._is_paused_by_handler = False
        early, self._early = self._early, None
        if early:
            self._loop.call_soon(self.data_received, early)
        if self._is_write_paused:
            return  # until `resume_writing`
        self._expire_in(self._service.limits.keep_alive)
        if queue or self._reader.failure is not None:
            self._loop.call_soon(self._take_next)
        elif self._is_reading_paused:
            self._resume_reading()

    def _take_next(self) -> None:
        if self.is_closed or self._is_lingering or self.transport.is_closing():
            return
        if self._handler is None:
            try:
                self._pump()
            except Exception as problem:
                self._crashed(problem)
        if len(self._reader.queue) <= 1:
            self._resume_reading()

    def ends_body(self, is_whole: bool) -> None:
        """Say whether the end of this connection may pass for the end of a body that only it delimits."""
        reset_on_close(self.transport, not is_whole)

    def break_off(self) -> None:
        """Break the connection (see `ends_body`) as soon as the caller has what was written."""
        self._handler = None
        self.is_closed = self._is_resetting = True
        self._expire_in(self._service.limits.write_stall)
        self._reset_if_delivered()

    def _reset_if_delivered(self) -> None:
        if not undelivered_bytes(self.transport):
            self.transport.abort()

    def pause_body(self) -> None:
        """Stop reading: the upstream does not take the body as fast as it comes."""
        self._is_paused_by_handler = True
        self._await_body()
        self._pause_reading()

    def resume_body(self) -> None:
        """Read on."""
        self._is_paused_by_handler = False
        self._await_body()
        self._resume_reading()

    def detach(self) -> tuple[asyncio.Transport, bytes]:
        """After a 101: give the transport away, with the bytes that followed the handshake."""
        self._handler = None
        self._leave()
        return self.transport, self._early or b""

    def _leave(self) -> None:
        self.is_closed = True
        self._service.connections.discard(self)
        self._service.deadlines.discard(self)
        self._reader.close()

    def close_idle(self) -> None:
        """Close if no request is in progress; otherwise the connection closes after its current one."""
        if self.is_idle:
            self.transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self._handler is None and not self._reader.queue and not self._reader.is_in_head

    @property
    def closes_next(self) -> bool:
        """Whether the connection ends with its current request: the process stops, or not all was read."""
        return self._service.is_draining or not self._is_request_done

    # --- ends -----------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Enforce whichever limit is running: head, body, keep-alive, write stall or linger."""
        if self._is_resetting:
            self._reset_if_delivered()
        if self._is_reading_paused and is_peer_gone(self.transport):
            self.transport.abort()
            return
        if self._is_write_paused:
            taken = taken_bytes(self.transport)
            if taken > self._taken_bytes:
                self.deadline = now + self._service.limits.write_stall
            self._taken_bytes = taken
        if now < self.deadline:
            return
        self.deadline = NEVER
        is_reading_request = self._handler is not None or self._reader.is_in_head
        if is_reading_request and not (self.has_written or self._is_write_paused or self._is_lingering):
            self._refuse(ProxyError(REQUEST_TIMEOUT, "The request did not arrive in time."))
            return
        if self.transport.get_write_buffer_size():
            self.ends_body(is_whole=False)
        elif self._is_lingering:
            self.transport.close()
            return
        self.transport.abort()

    def _refuse(self, error: ProxyError) -> None:
        handler = self._handler
        self._reader.queue.clear()
        if handler is None:
            self.transport.write(self._service.refuse(error))
        elif self.has_written:
            handler.gone(error.kind.code)
        else:
            handler.refused(error)
        self._handler = None
        if not self.is_closed and not self._is_lingering:
            self._close_gently()

    def _crashed(self, problem: Exception) -> None:
        _log.error("a request failed inside Weir", exc_info=problem)
        handler = self._handler
        if handler is not None:
            handler.crashed(problem)
        if not self.is_closed and not self._is_lingering:
            self._close_gently()

    def _close_gently(self) -> None:
        """Send what is written, then discard what comes for a moment, lest a reset destroys the answer."""
        if self._is_request_done and self._reader.failure is None:
            if self.transport.get_write_buffer_size():
                self._await_taking()
            self.transport.close()
            return
        self._is_lingering = True
        self._is_paused_by_handler = False
        self._resume_reading()
        self._linger_until = self._service.deadlines.after(self._service.limits.linger_total_seconds)
        self._linger_on()
        if self.transport.can_write_eof():
            self.transport.write_eof()  # TLS cannot: there the caller is to close, who was told to

    def _linger_on(self) -> None:
        """Wait for the caller to fall silent, or to close."""
        self._expire_in(self._service.limits.linger_seconds)
        self.deadline = min(self.deadline, self._linger_until)

    def _expire_in(self, seconds: float) -> None:
        self.deadline = self._service.deadlines.horizon + seconds

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused and not self._is_paused_by_handler and not self.transport.is_closing():
            self._is_reading_paused = False
            self.transport.resume_reading()
