"""The provider's side of the data path: one HTTP/1.1 connection to an upstream as an asyncio protocol.

It owns the request in flight, waiting limits and the question whether a failure may have reached the
upstream. Pooling belongs to `upstream.pool`, retries to the lanes, the meaning of a response to its handler.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import Protocol, cast

from proxy.core.errors import (
    INTERNAL,
    UPSTREAM_CLOSED,
    UPSTREAM_FIRST_BYTE_TIMEOUT,
    UPSTREAM_IDLE_TIMEOUT,
    UPSTREAM_TOTAL_TIMEOUT,
    ErrorCode,
    ProxyError,
)
from proxy.http.deadlines import NEVER, Deadlines
from proxy.http.delivery import acknowledged_bytes, is_local, unread_bytes
from proxy.http.head import ResponseHead
from proxy.http.limits import ClientLimits
from proxy.http.response_reader import ResponseReader

_KEPT_SECONDS = re.compile(rb"\btimeout\s*=\s*\"?(\d{1,9})")
_log = logging.getLogger("weir")


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long one response may take, in seconds; `NEVER` is no limit."""

    first_byte: float = NEVER
    idle: float = NEVER
    total: float = NEVER


class ResponseHandler(Protocol):
    """What is done with one response. After `response_ended` or `failed` nothing more comes."""

    def head_received(self, head: ResponseHead) -> None:
        """Take the head."""
        ...

    def body_received(self, data: bytes) -> None:
        """Take the body bytes of one read, chunked coding removed."""
        ...

    def flush(self) -> None:
        """Take note that nothing more came in the read that brought the head."""
        ...

    def response_ended(self) -> None:
        """Take note that the response is complete."""
        ...

    def failed(self, error: ProxyError) -> None:
        """Take note that there will be no (complete) response."""
        ...

    def upstream_writable(self, is_writable: bool) -> None:
        """Take note that the upstream takes the request body too slowly, or takes it again."""
        ...


class ConnectionOwner(Protocol):
    """Who keeps connections between requests."""

    def released(self, connection: ClientConnection) -> None:
        """Take back a connection that can serve another request."""
        ...

    def lost(self, connection: ClientConnection) -> None:
        """Forget a connection that is closed."""
        ...


class ClientConnection(asyncio.Protocol):
    """One connection to an upstream, carrying one request at a time."""

    __slots__ = (
        "_baseline_bytes",
        "_has_head",
        "_is_request_sent",
        "_is_tls",
        "_limits",
        "_owner",
        "_reader",
        "_deadlines",
        "_total_deadline",
        "_waiting_for",
        "_was_touched",
        "_written_bytes",
        "deadline",
        "handler",
        "idle_since",
        "is_closed",
        "is_reused",
        "transport",
    )

    def __init__(self, owner: ConnectionOwner, limits: ClientLimits, deadlines: Deadlines) -> None:
        self._owner = owner
        self._limits = limits
        self._deadlines = deadlines
        self._reader = ResponseReader(limits)
        self._waiting_for = WaitLimits()
        self._total_deadline = NEVER
        self._baseline_bytes: int | None = 0
        self._written_bytes = 0
        self._has_head = False
        self._is_request_sent = False
        self._is_tls = False
        self._was_touched = False
        self.handler: ResponseHandler | None = None
        self.deadline = NEVER
        self.idle_since = 0.0
        self.is_closed = False
        self.is_reused = False
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    @property
    def ended_in_chunks(self) -> bool:
        """Whether the last answer was chunked."""
        head = self._reader.head
        return head is not None and b"transfer-encoding" in head.fields

    @property
    def keep_alive_seconds(self) -> float | None:
        """How long the last answer's `Keep-Alive` field says that the server keeps an unused connection."""
        head = self._reader.head
        said = None if head is None else head.fields.get(b"keep-alive")
        found = None if said is None else _KEPT_SECONDS.search(said)
        return None if found is None else float(found[1])

    # --- the sender's side ----------------------------------------------------------------------------

    def start(
        self, handler: ResponseHandler, method: bytes, wait: WaitLimits, spent_seconds: float = 0.0
    ) -> None:
        """Begin a request; `write` and `request_sent` follow. `spent_seconds` of its total are over."""
        self.handler = handler
        self._reader.expect(method)
        self._has_head = False
        self._is_request_sent = False
        self._waiting_for = wait
        self._baseline_bytes = acknowledged_bytes(self.transport) if self._is_tls else self._written_bytes
        self._total_deadline = self._deadlines.horizon + wait.total - spent_seconds
        self.deadline = self._total_deadline

    def write(self, data: bytes) -> None:
        """Send bytes of the request."""
        if not self.is_closed:
            self._written_bytes += len(data)
            self.transport.write(data)

    def request_sent(self) -> None:
        """Mark the request as complete: from now on the first byte of the answer is due."""
        self._is_request_sent = True
        if not self._has_head:
            self._expire_in(self._waiting_for.first_byte)

    def cancel(self) -> None:
        """Give the request up: the connection closes at once, nothing more is told."""
        self.handler = None
        if not self.is_closed:
            self.transport.abort()

    def pause(self) -> None:
        """Stop reading: the caller does not take the answer as fast as it comes."""
        if not self.is_closed and self.transport.is_reading():
            self.transport.pause_reading()
            self.deadline = self._total_deadline

    def resume(self) -> None:
        """Read on."""
        if not self.is_closed and not self.transport.is_reading():
            self.transport.resume_reading()
            self._expire_in(self._waiting_for.idle)

    def detach(self) -> tuple[asyncio.Transport, bytes]:
        """After a 101: give the transport away, with the bytes that followed the head."""
        self.handler = None
        self._leave()
        return self.transport, self._reader.rest

    # --- asyncio's side -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._deadlines.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came and hand it on: head, body bytes, end."""
        handler = self.handler
        if handler is None:
            self.transport.abort()
            return
        try:
            if not self._has_head:
                self._read_head(handler, data)
                return
            # The steady state of a stream: every call here is made for each of its events.
            reader = self._reader
            reader.feed(data)
            self._was_touched = True
            parts = reader.parts
            if parts:
                reader.parts = []
                handler.body_received(parts[0] if len(parts) == 1 else b"".join(parts))
            if reader.is_ended or reader.failure is not None:
                self._conclude()
        except Exception as problem:
            _log.error("an answer could not be relayed", exc_info=problem)
            if self.handler is not None:
                self._fail(ProxyError(INTERNAL, f"Weir failed on this answer ({type(problem).__name__})."))

    def _read_head(self, handler: ResponseHandler, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        if reader.head is not None:
            self._has_head = True
            self._expire_in(self._waiting_for.idle)
            handler.head_received(reader.head)
            if reader.parts:
                if self.handler is not None:
                    self.handler.body_received(reader.take_body())
            elif self.handler is not None and not reader.is_ended:
                self.handler.flush()
        self._conclude()

    def _conclude(self) -> None:
        """End the answer if it is complete or broken, unless it was given up meanwhile."""
        if self.handler is None:
            return
        if self._reader.is_ended:
            self._end()
        elif self._reader.failure is not None:
            self._fail(self._reader.failure)

    def eof_received(self) -> None:
        """The upstream closed: the end of a body that only this delimits, a failure otherwise."""
        if self.handler is not None:
            if self._has_head and self._reader.until_close:
                self._end()
            else:
                self._fail(self._closed_error(is_orderly=True))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self.handler is not None and isinstance(exc, OSError):
            self._read_last_words()
        if self.handler is not None:
            # Writing to a peer that has closed before is a broken pipe, also when its reset came meanwhile.
            self._fail(self._closed_error(is_orderly=exc is None or isinstance(exc, BrokenPipeError)))
        self._leave()

    def _read_last_words(self) -> None:
        """Read what came before the connection broke under a write: why it was closed, a 413 perhaps."""
        self.is_closed = True
        data = unread_bytes(self.transport)
        if data:
            self.data_received(data)
        is_upload = self._has_head and not self._is_request_sent
        if self.handler is not None and is_upload and self._reader.until_close:
            # Of an upload that was refused the status counts; where its text ends, nobody can tell.
            self._end()

    def pause_writing(self) -> None:
        """The upstream takes the body too slowly: it has as long as for its first byte to take some of it."""
        if self.handler is not None:
            if not self._is_request_sent and not self._has_head:
                self._expire_in(self._waiting_for.first_byte)
            self.handler.upstream_writable(False)

    def resume_writing(self) -> None:
        """The upstream takes the body again."""
        if self.handler is not None:
            if not self._is_request_sent and not self._has_head:
                self.deadline = self._total_deadline
            self.handler.upstream_writable(True)

    # --- ends -----------------------------------------------------------------------------------------

    def _end(self) -> None:
        handler, self.handler = self.handler, None
        head = self._reader.head
        self.deadline = NEVER
        is_taken = not self.transport.get_write_buffer_size()
        may_reuse = (
            head is not None
            and head.keep_alive
            and self._is_request_sent
            and is_taken
            and not self._reader.until_close
            and self._reader.failure is None
            and not self.is_closed
        )
        if may_reuse:
            self.is_reused = True
            if not self.transport.is_reading():
                self.transport.resume_reading()
            self._owner.released(self)
        elif is_taken:
            self.transport.close()
        else:
            # Closing would wait for an upstream to read what it has answered already.
            self.transport.abort()
        if handler is not None:
            handler.response_ended()

    def _fail(self, error: ProxyError) -> None:
        handler, self.handler = self.handler, None
        self.deadline = NEVER
        self.transport.abort()
        if handler is not None:
            handler.failed(error)

    def _closed_error(self, is_orderly: bool) -> ProxyError:
        """Return the failure of an answer that will not come.

        A peer that closed in order (FIN) acknowledged all it had received: where that is nothing, the request
        has not arrived. A reset says less, since an acknowledgement may have been on its way.
        """
        if self._has_head:
            return ProxyError(
                UPSTREAM_CLOSED, "The upstream closed the connection in the middle of its answer."
            )
        message = "The upstream closed the connection without an answer."
        has_arrived = True if self._reader.has_begun else self._has_arrived()
        never_arrived = is_orderly and has_arrived is False
        retryable = never_arrived or (self.is_reused and not has_arrived)
        return ProxyError(UPSTREAM_CLOSED, message, retryable=retryable, never_arrived=never_arrived)

    def closed_before_use(self) -> ProxyError:
        """Return the failure of a connection that closed before a request could be sent."""
        return ProxyError(UPSTREAM_CLOSED, "The upstream closed the connection at once.", retryable=True)

    def _has_arrived(self) -> bool | None:
        """Tell whether the peer acknowledged any of the request; `None` where nobody knows."""
        if is_local(self.transport):
            # Nothing is acknowledged here, and a peer that closed an idle socket was seen to.
            return True
        acked = acknowledged_bytes(self.transport)
        if acked is None or self._baseline_bytes is None:
            return None
        return acked > self._baseline_bytes

    def _leave(self) -> None:
        self.is_closed = True
        self._deadlines.discard(self)
        self._owner.lost(self)
        self._reader.close()

    def _expire_in(self, seconds: float) -> None:
        due = self._deadlines.horizon + seconds
        self.deadline = due if due < self._total_deadline else self._total_deadline

    def sweep(self, now: float) -> None:
        """Enforce the limit that is running: first byte, idle or total."""
        if self._was_touched:
            self._was_touched = False
            if self.transport.is_reading():
                self._expire_in(self._waiting_for.idle)
        if now < self.deadline:
            return
        if self.handler is not None:
            self._fail(self._timeout_error(now))
        else:
            self.transport.close()

    def _timeout_error(self, now: float) -> ProxyError:
        kind: ErrorCode = UPSTREAM_FIRST_BYTE_TIMEOUT
        message = "The upstream did not begin to answer in time."
        if now >= self._total_deadline:
            kind, message = UPSTREAM_TOTAL_TIMEOUT, "The upstream's answer took longer than allowed."
        elif self._has_head:
            kind, message = UPSTREAM_IDLE_TIMEOUT, "The upstream's answer stalled."
        return ProxyError(kind, message)
