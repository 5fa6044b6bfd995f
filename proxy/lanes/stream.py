"""The stream lane: straight to the upstream and straight back.

It owns what may be sent again before anything has reached the caller: a stale pooled connection, a failed
connect or a status that the upstream's policy lists, and a body whose rewriting the upstream refused.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from proxy.core.clock import Clock
from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.client import ClientConnection, ResponseHandler
from proxy.http.framing import LAST_CHUNK, chunk
from proxy.http.head import ResponseHead
from proxy.lanes.lane import Call, Outgoing
from proxy.lanes.take_back import REFUSED, TakeBack
from proxy.upstream.pool import Lease
from proxy.upstream.refusals import Refusals
from proxy.upstream.request_head import BodyPlan, write_request_head

_MAX_REFUSAL_BYTES = 64 * 1024
_LONG_BYTES = 16 * 1024
"""The event loop joins what is written: to copy a longer body costs more than a second write."""
_MAX_STALE_RESENDS = 1
"""After a reset, on a connection of its own: whether the request had arrived cannot be known for sure."""
_MAX_CERTAIN_RESENDS = 5
"""After a close that the request is known not to have outrun."""
_BACKOFF_SECONDS = 0.5
_REQUEST_TIMEOUT = 408
_CROSSING_SECONDS = 1.0
"""How long two messages in opposite directions may take to cross."""


class StreamLane:
    """Carries every request that is not pooled or deferred."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, refusals: Refusals) -> None:
        self.loop = loop
        self.clock = clock
        self.refusals = refusals

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Send the request at once, on an idle connection if there is one."""
        call = StreamCall(self, outgoing, exchange, reply)
        call.start()
        return call


class _Phase(Enum):
    """Where a call is. After `RELAYED` the reply hears from the connection directly."""

    WAITING = "waiting"
    SENT = "sent"
    REFUSED = "refused"
    RELAYED = "relayed"
    OVER = "over"


class StreamCall:
    """One request on the stream lane."""

    __slots__ = (
        "_asked_at",
        "_begun_at",
        "_body",
        "_connection",
        "_exchange",
        "_is_body_ended",
        "_is_paused",
        "_lane",
        "_lease",
        "_outgoing",
        "_phase",
        "_pieces",
        "_refusal",
        "_refusal_head",
        "_reply",
        "_stale_resends",
        "_take_back",
        "_timer",
        "_waits",
    )

    def __init__(
        self, lane: StreamLane, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler
    ) -> None:
        self._lane = lane
        self._outgoing = outgoing
        self._exchange = exchange
        self._reply = reply
        self._body = outgoing.body
        self._phase = _Phase.WAITING
        self._connection: ClientConnection | None = None
        self._lease: Lease | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at = 0.0
        self._begun_at = exchange.decided_at or exchange.started_at
        self._pieces: list[bytes] = []
        self._is_body_ended = outgoing.body is not None
        self._is_paused = False
        self._refusal: list[bytes] = []
        self._refusal_head: ResponseHead | None = None
        self._stale_resends = 0
        self._take_back: TakeBack | None = None
        self._waits = 0

    def start(self) -> None:
        """Find a connection and send. A body that cannot be sent twice gets a connection of its own."""
        self._timer = None
        self._book_attempt()
        self._phase = _Phase.WAITING
        pool = self._outgoing.pool
        may_be_stale = self._body is not None and self._stale_resends < _MAX_STALE_RESENDS
        connection = pool.take() if may_be_stale else None
        if connection is not None:
            self._send(connection)
            return
        self._asked_at = self._lane.clock.monotonic()
        self._lease = pool.ask(self._granted, self._refused, self._dialling, self._spent_seconds())

    def _book_attempt(self) -> None:
        """Book what an earlier attempt took at the upstream: time that was not Weir's own."""
        exchange = self._exchange
        if exchange.sent_at:
            exchange.earlier_seconds += self._lane.clock.monotonic() - exchange.sent_at
            exchange.sent_at = 0.0

    def _spent_seconds(self) -> float:
        """Return how much of the time for the whole exchange is over."""
        return self._lane.clock.monotonic() - self._begun_at

    def _dialling(self) -> None:
        """The wait for a place is over, a connection is being made."""
        now = self._lane.clock.monotonic()
        self._exchange.queue_seconds += now - self._asked_at
        self._asked_at = now

    def _granted(self, connection: ClientConnection) -> None:
        self._book_wait(is_queue=connection.is_reused)
        self._send(connection)

    def _refused(self, error: ProxyError) -> None:
        self._book_wait(is_queue=self._lease is not None and self._lease.task is None)
        self.failed(error)

    def _book_wait(self, is_queue: bool) -> None:
        self._lease = None
        waited_seconds = self._lane.clock.monotonic() - self._asked_at
        if is_queue:
            self._exchange.queue_seconds += waited_seconds
        else:
            self._exchange.connect_seconds += waited_seconds

    def _send(self, connection: ClientConnection) -> None:
        outgoing = self._outgoing
        target = outgoing.pool.target
        self._connection = connection
        self._phase = _Phase.SENT
        connection.start(self, outgoing.head.method, target.wait, self._spent_seconds())
        head = write_request_head(
            outgoing.head, target.request_target(outgoing.head.target), target.sender, self._plan()
        )
        self._exchange.sent_at = self._lane.clock.monotonic()
        body = self._body
        if body is not None:
            if len(body) > _LONG_BYTES:
                connection.write(head)
                connection.write(body)
            else:
                connection.write(head + body)
            connection.request_sent()
            return
        pieces, self._pieces = self._pieces, []
        # Before writing, which may well say that the upstream takes no more for now.
        self._reply.upstream_writable(True)
        connection.write(head + b"".join(pieces))
        if self._is_body_ended:
            connection.request_sent()

    def _plan(self) -> BodyPlan:
        plan = self._outgoing.plan
        if self._body is None or self._body is self._outgoing.body:
            return plan
        return BodyPlan(len(self._body), replaced=plan.replaced)

    # --- the edge's side ------------------------------------------------------------------------------

    def send_body(self, data: bytes) -> None:
        """Send or keep the next bytes of a streamed body."""
        framed = chunk(data) if self._outgoing.plan.is_chunked else data
        if self._connection is not None:
            self._connection.write(framed)
        elif self._phase is _Phase.WAITING:
            self._pieces.append(framed)
            self._reply.upstream_writable(False)

    def end_body(self) -> None:
        """End a streamed body."""
        self._is_body_ended = True
        last = LAST_CHUNK if self._outgoing.plan.is_chunked else b""
        if self._connection is not None:
            if last:
                self._connection.write(last)
            self._connection.request_sent()
        elif last:
            self._pieces.append(last)

    def pause(self) -> None:
        """Stop reading the answer, which may not have begun."""
        self._is_paused = True
        if self._connection is not None and self._phase is _Phase.RELAYED:
            self._connection.pause()

    def resume(self) -> None:
        """Read the answer again."""
        self._is_paused = False
        if self._connection is not None and self._phase is _Phase.RELAYED:
            self._connection.resume()

    def cancel(self) -> None:
        """Close the upstream connection, in whichever phase."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        connection, self._connection = self._connection, None
        is_using = self._phase in (_Phase.SENT, _Phase.RELAYED, _Phase.REFUSED)
        self._phase = _Phase.OVER
        if connection is not None and is_using and connection.handler in (self, self._reply):
            connection.cancel()

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        """Give the upstream's transport away after a 101."""
        connection, self._connection = self._connection, None
        self._phase = _Phase.OVER
        return None if connection is None else connection.detach()

    # --- the upstream's side, until the answer is relayed ---------------------------------------------

    def head_received(self, head: ResponseHead) -> None:
        """Relay the answer, or keep it back where the request may be sent again."""
        connection = self._connection
        if connection is None:
            return
        if self._is_goodbye(head, connection):
            self._connection = None
            connection.cancel()
            self._resend_stale()
            return
        if self._may_retry_status(head):
            self._retry_later(self._delay_seconds(_retry_after_seconds(head)))
            return
        if head.status in REFUSED and self._may_take_back():
            self._phase = _Phase.REFUSED
            self._refusal_head = head
            return
        self._relay(head)

    def _is_goodbye(self, head: ResponseHead, connection: ClientConnection) -> bool:
        """Tell whether an answer is about the silence before the request, which it has crossed on its way.

        Some servers say 408 to a connection that they close for being idle.
        """
        if head.status != _REQUEST_TIMEOUT or head.keep_alive or not connection.is_reused:
            return False
        since_seconds = self._lane.clock.monotonic() - self._exchange.sent_at
        return self._may_resend_stale(_MAX_STALE_RESENDS) and since_seconds < _CROSSING_SECONDS

    def _may_take_back(self) -> bool:
        rewrite = self._outgoing.rewrite
        if rewrite is None:
            return False
        if self._take_back is None:
            upstream = self._outgoing.pool.target.name
            self._take_back = TakeBack(rewrite, upstream, self._lane.refusals, self._exchange)
        return not self._take_back.is_over

    def _relay(self, head: ResponseHead) -> None:
        self._phase = _Phase.RELAYED
        if self._take_back is not None:
            self._take_back.answered(head.status)
        if self._connection is not None:
            self._connection.handler = self._reply
            if self._is_paused:
                self._connection.pause()
        self._reply.head_received(head)

    def body_received(self, data: bytes) -> None:
        """Collect a refusal's body."""
        self._refusal.append(data)
        if sum(map(len, self._refusal)) > _MAX_REFUSAL_BYTES and self._refusal_head is not None:
            self._relay(self._refusal_head)
            self._reply.body_received(b"".join(self._refusal))

    def flush(self) -> None:
        """Nothing is relayed yet."""

    def response_ended(self) -> None:
        """A refusal is complete: take back what the policy changed, or pass it on."""
        self._connection = None
        head, take_back = self._refusal_head, self._take_back
        if head is None or take_back is None:
            return
        text = b"".join(self._refusal)
        body = take_back.next_body(text, head.fields.get(b"content-encoding", b""))
        if body is not None:
            self._resend(body)
        else:
            self._phase = _Phase.RELAYED
            self._reply.head_received(head)
            self._reply.body_received(text)
            self._reply.response_ended()

    def _resend(self, body: bytes) -> None:
        self._exchange.retries += 1
        self._body = body
        self._refusal_head = None
        self._refusal = []
        self.start()

    def failed(self, error: ProxyError) -> None:
        """Send again where the upstream cannot have begun work, else report."""
        self._connection = None
        if self._phase is _Phase.OVER:
            return
        is_stale = error.retryable and error.kind is UPSTREAM_CLOSED
        most = _MAX_CERTAIN_RESENDS if error.never_arrived else _MAX_STALE_RESENDS
        if is_stale and self._may_resend_stale(most):
            self._resend_stale()
        elif (
            error.retryable
            and self._body is not None
            and self._has_retries()
            and self._is_worth_waiting(self._delay_seconds(None))
        ):
            self._retry_later(self._delay_seconds(None))
        else:
            self._phase = _Phase.OVER
            self._reply.failed(error)

    def _may_resend_stale(self, most: int) -> bool:
        return self._body is not None and self._stale_resends < most

    def _resend_stale(self) -> None:
        self._stale_resends += 1
        self._exchange.retries += 1
        self.start()

    def upstream_writable(self, is_writable: bool) -> None:
        """Pass backpressure on a streamed body to the edge."""
        self._reply.upstream_writable(is_writable)

    # --- retries --------------------------------------------------------------------------------------

    def _has_retries(self) -> bool:
        return self._waits < self._outgoing.pool.target.upstream.retries

    def _may_retry_status(self, head: ResponseHead) -> bool:
        upstream = self._outgoing.pool.target.upstream
        if head.status not in upstream.retry_statuses or self._body is None or not self._has_retries():
            return False
        return self._is_worth_waiting(self._delay_seconds(_retry_after_seconds(head)))

    def _delay_seconds(self, asked_seconds: float | None) -> float:
        return _BACKOFF_SECONDS * 2**self._waits if asked_seconds is None else asked_seconds

    def _is_worth_waiting(self, delay_seconds: float) -> bool:
        """Tell whether the caller will still be there: it has waited for all earlier attempts already."""
        if self._spent_seconds() + delay_seconds >= self._outgoing.pool.target.wait.total:
            return False
        waited_seconds = self._lane.clock.monotonic() - self._exchange.started_at
        return waited_seconds + delay_seconds <= self._outgoing.patience_seconds

    def _retry_later(self, delay_seconds: float) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.handler is self:
            connection.cancel()
        self._phase = _Phase.WAITING
        self._book_attempt()
        self._waits += 1
        self._exchange.retries += 1
        self._exchange.queue_seconds += delay_seconds
        self._timer = self._lane.loop.call_later(delay_seconds, self.start)


def _retry_after_seconds(head: ResponseHead) -> float | None:
    """Return what `retry-after-ms` or `Retry-After` (seconds) asks for; `None` for dates and nonsense."""
    for name, scale in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        try:
            seconds = float(head.fields[name]) / scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None
