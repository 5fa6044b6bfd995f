"""Carry an answer back: hold the head until the first content, then pass bytes as they come.

It owns the moment of commitment and how a break shows before and after it. Until the head is written every
failure still becomes a true status; afterwards it becomes an explicit error event or a broken connection.
"""

from __future__ import annotations

from typing import Protocol

from proxy.core.clock import Clock
from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from proxy.core.exchange import Exchange
from proxy.dialects.dialect import Dialect
from proxy.dialects.half_events import ending
from proxy.edge.answer import Answer
from proxy.edge.errors import error_body, error_response
from proxy.edge.event_tap import EventTap
from proxy.edge.learnt import note_body, note_stream
from proxy.edge.report import report_headers, timing_comment
from proxy.edge.response_head import is_event_stream, is_json, is_plain, own_head
from proxy.http.deadlines import NEVER, Deadlines
from proxy.http.head import ResponseHead
from proxy.lanes.take_back import ORIGINAL
from proxy.pipeline import Decision
from proxy.policy.model import HeaderLevel

MAX_HELD_BYTES = 256 * 1024
"""A body or a run of contentless events larger than this is not held any longer."""

AFTER_LAST_EVENT_SECONDS = 1.0
"""How long an upstream may take to end its answer after the terminal event."""

_ASKING = frozenset({"stream_options", ORIGINAL})
_HEARTBEAT = b": keep-alive\n\n"
_WHITESPACE = b" "


class RelayContext(Protocol):
    """What relays share."""

    clock: Clock
    deadlines: Deadlines


class Owner(Protocol):
    """Who the relay belongs to: the handler of the request."""

    def switch_protocols(self, head: ResponseHead) -> None:
        """Join caller and upstream after a 101."""
        ...

    def upload_writable(self, is_writable: bool) -> None:
        """Pass backpressure on the request body."""
        ...

    def relay_done(self) -> None:
        """Take note that the answer is over, one way or another."""
        ...


class Relay:
    """One answer on its way to the caller: a `ResponseHandler`.

    Holding ends with the first content, the end of the answer, `commit_after` or `MAX_HELD_BYTES`.
    """

    __slots__ = (
        "_answer",
        "_context",
        "_decision",
        "_exchange",
        "_head",
        "_heartbeat_at",
        "_heartbeat_seconds",
        "_held",
        "_held_bytes",
        "_is_stream",
        "_is_watched",
        "_owner",
        "_tap",
        "_was_silent",
        "deadline",
        "is_over",
    )

    def __init__(
        self, context: RelayContext, owner: Owner, answer: Answer, exchange: Exchange, decision: Decision
    ) -> None:
        route = decision.route
        self._context = context
        self._owner = owner
        self._answer = answer
        self._exchange = exchange
        self._decision = decision
        self._head: ResponseHead | None = None
        self._heartbeat_seconds = (
            route.heartbeat_seconds if route is not None and decision.is_stream else None
        )
        self._heartbeat_at = NEVER
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_stream = False
        self._is_watched = False
        self._tap: EventTap | None = None
        self._was_silent = True
        self.deadline = NEVER
        self.is_over = False
        if self._heartbeat_seconds is not None:
            self._heartbeat_at = context.deadlines.after(self._heartbeat_seconds)
            self._watch()

    # --- the upstream's side --------------------------------------------------------------------------

    def head_received(self, head: ResponseHead) -> None:
        """Take the head and decide whether it is held."""
        exchange = self._exchange
        exchange.first_byte_at = self._context.clock.monotonic()
        exchange.upstream_status = head.status
        if self._answer.has_begun:
            self._head_after_heartbeat(head)
            return
        self._head = head
        if head.status == 101:
            self._owner.switch_protocols(head)
            return
        decision = self._decision
        route, dialect = decision.route, decision.dialect
        holds = False
        if route is not None and dialect is not None and is_plain(head):
            if is_event_stream(head):
                self._is_stream = True
                self._tap = self._new_tap(dialect)
                holds = head.status < 300
            elif is_json(head):
                holds = (head.content_length or 0) <= MAX_HELD_BYTES
        elif is_event_stream(head):
            self._is_stream = True
        if holds and route is not None and route.commit_after_seconds > 0:
            self.deadline = self._context.deadlines.after(route.commit_after_seconds)
            self._watch()
        else:
            self._commit()

    def keep_alive(self, seconds: float) -> None:
        """Begin the answer now, with a sign of life every so often: what is asked for takes long."""
        self._heartbeat_seconds = seconds
        self._heartbeat_at = self._context.deadlines.after(seconds)
        self._watch()
        self._beat()
        self._answer.flush()

    def _head_after_heartbeat(self, head: ResponseHead) -> None:
        """The status is spent: what was begun goes on, anything else becomes an error event.

        Where white space was sent the body follows, whatever its status was: an error says so itself.
        """
        if not self._decision.is_stream:
            self._heartbeat_seconds = None
            return
        dialect = self._decision.dialect
        if head.status < 300 and is_event_stream(head) and is_plain(head) and dialect is not None:
            self._tap = self._new_tap(dialect)
            return
        message = f"The upstream answered with status {head.status} after the stream had been opened."
        self.failed(ProxyError(UPSTREAM_CLOSED, message))

    def _new_tap(self, dialect: Dialect) -> EventTap:
        # Where asking for usage was taken back, what comes of it is the upstream's own.
        is_asked = self._decision.asks_usage and _ASKING.isdisjoint(self._exchange.taken_back)
        return EventTap(dialect, is_asked, watches_ids=self._adds_comments)

    def flush(self) -> None:
        """Send a head that came alone."""
        self._answer.flush()

    def body_received(self, data: bytes) -> None:
        """Pass body bytes on, or hold them."""
        tap = self._tap
        if self._answer.has_begun:
            self._was_silent = False
            if tap is None:
                self._answer.write(data)
                return
            had_content = tap.has_content
            self._answer.write(tap.feed(data))
            if not had_content and tap.has_content:
                self._exchange.first_token_at = self._context.clock.monotonic()
        else:
            self._hold(data, tap)
        if tap is not None and tap.is_terminal and self.deadline == NEVER:
            self.deadline = self._context.deadlines.after(AFTER_LAST_EVENT_SECONDS)
            self._watch()

    def _hold(self, data: bytes, tap: EventTap | None) -> None:
        if tap is not None:
            data = tap.feed(data)
        self._held.append(data)
        self._held_bytes += len(data)
        if tap is not None and tap.has_content:
            self._exchange.first_token_at = self._context.clock.monotonic()
            self._commit()
        elif self._held_bytes > MAX_HELD_BYTES or (tap is not None and (tap.has_error or tap.is_terminal)):
            self._commit()

    def response_ended(self) -> None:
        """The upstream is done: end the answer, or say that it is not whole."""
        exchange = self._exchange
        exchange.ended_at = self._context.clock.monotonic()
        if self._tap is not None:
            self._end_stream(self._tap)
            return
        if not self._answer.has_begun:
            note_body(exchange, self._decision.dialect, b"".join(self._held))
            self._commit()
        self._answer.end()
        self._finish()

    def failed(self, error: ProxyError) -> None:
        """There will be no (complete) answer."""
        exchange = self._exchange
        exchange.ended_at = self._context.clock.monotonic()
        tap = self._tap
        if tap is not None:
            note_stream(exchange, tap)
        if tap is not None and self._is_whole(tap):
            # The upstream died after its last word: nothing is missing but the end of the connection.
            self._end_complete(tap)
            return
        exchange.error = error.kind.code
        if not self._answer.has_begun:
            self._book_holding(exchange.ended_at)
            report = report_headers(exchange, self._level, exchange.ended_at, None)
            is_head = exchange.method == "HEAD"
            exchange.response_bytes = 0 if is_head else len(error_body(error))
            response = error_response(error, report, self._answer.keep_alive, is_head)
            self._answer.send_whole(response, error.kind.status)
        else:
            self._break(error)
        self._finish()

    def upstream_writable(self, is_writable: bool) -> None:
        """Pass backpressure on the request body."""
        self._owner.upload_writable(is_writable)

    # --- ends -----------------------------------------------------------------------------------------

    def _end_stream(self, tap: EventTap) -> None:
        rest = tap.finish()
        note_stream(self._exchange, tap)
        status = self._head.status if self._head is not None else 200
        is_no_stream = status >= 300 or not (tap.has_events or self._decision.is_stream)
        if self._is_whole(tap) or tap.has_error or is_no_stream:
            self._write(rest)
            if tap.has_error:
                self._exchange.error = "upstream_error_event"
            self._end_complete(tap, is_torn=bool(rest))
        else:
            message = "The upstream ended its stream before the answer was complete."
            self.failed(ProxyError(UPSTREAM_CLOSED, message))

    def _is_whole(self, tap: EventTap) -> bool:
        """Tell whether the last word was said: the terminal event, or a finish reason for every choice."""
        if tap.is_terminal or not tap.finished:
            return tap.is_terminal
        dialect, document = self._decision.dialect, self._decision.document
        return dialect is None or document is None or len(tap.finished) >= dialect.choices(document)

    def _end_complete(self, tap: EventTap, is_torn: bool = False) -> None:
        if not self._answer.has_begun:
            self._commit()
        route = self._decision.route
        may_add = tap.is_between_events and not is_torn and not tap.has_id
        if route is not None and route.timing_comment and may_add:
            self._answer.write(timing_comment(self._exchange))
        self._answer.end()
        self._finish()

    def _break(self, error: ProxyError) -> None:
        """After commitment: an error event between events, and never a well-formed end."""
        dialect = self._decision.dialect
        if self._is_stream and self._tap is not None and dialect is not None:
            event = dialect.error_event(error.message, error.kind.code, self._tap.next_sequence_number())
            half = self._tap.drop_unfinished()
            self._answer.write(event if half is None else ending(half, event) + event)
        elif self._is_stream and dialect is not None and self._head is None:
            self._answer.write(dialect.error_event(error.message, error.kind.code, None))
        elif not self._is_stream and self._head is None and self._was_silent:
            # Nothing but white space: the error can still be the whole body, if not the status.
            self._answer.write(error_body(error))
            self._answer.end()
            return
        self._answer.break_off()

    def cancelled(self) -> None:
        """The caller is gone: keep what was learnt. Leaving after the last word is no failure."""
        exchange = self._exchange
        exchange.ended_at = self._context.clock.monotonic()
        tap = self._tap
        if tap is not None:
            note_stream(exchange, tap)
        if tap is None or not self._is_whole(tap):
            exchange.error = "client_closed"
        if not self._answer.has_begun:
            self._book_holding(exchange.ended_at)
            exchange.measure_overhead(exchange.ended_at)
        self._finish()

    def _finish(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self._is_watched:
                self._context.deadlines.discard(self)
            self._owner.relay_done()

    # --- commitment -----------------------------------------------------------------------------------

    @property
    def _adds_comments(self) -> bool:
        route = self._decision.route
        return route is not None and (route.timing_comment or self._heartbeat_seconds is not None)

    @property
    def _level(self) -> HeaderLevel:
        route = self._decision.route
        return route.headers if route is not None else HeaderLevel.FULL

    def _commit(self) -> None:
        """Write the head with what is known now, then what was held."""
        self.deadline = NEVER
        head = self._head
        if head is None:
            return
        exchange = self._exchange
        now = self._context.clock.monotonic()
        if self._is_watched:
            self._book_holding(exchange.ended_at or exchange.first_token_at or now)
        report = report_headers(exchange, self._level, now, head)
        # A stream that is read may need an error event at its end, which no announced length could hold.
        self._answer.begin(head, report, self._is_stream, is_rewritten=self._tap is not None)
        held, self._held = self._held, []
        for data in held:
            self._answer.write(data)
        if held:
            self._answer.flush()

    def _book_holding(self, until: float) -> None:
        """Book how long an answer that had begun was held back: that is waiting for the upstream."""
        exchange = self._exchange
        if exchange.first_byte_at:
            exchange.held_seconds = until - exchange.first_byte_at

    def _write(self, data: bytes) -> None:
        if self._answer.has_begun:
            self._answer.write(data)
        elif data:
            self._held.append(data)

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._context.deadlines.add(self)

    def sweep(self, now: float) -> None:
        """Commit a head held long enough; write a heartbeat into a silence; end a finished stream."""
        if now >= self.deadline:
            self._expired()
        if self._heartbeat_seconds is None or self.is_over:
            return
        if not self._was_silent:
            self._was_silent = True
            self._heartbeat_at = self._context.deadlines.after(self._heartbeat_seconds)
        elif now >= self._heartbeat_at:
            self._heartbeat_at = self._context.deadlines.after(self._heartbeat_seconds)
            self._beat()

    def _expired(self) -> None:
        if not self._answer.has_begun:
            self._commit()
            self._answer.flush()
        elif self._tap is not None and self._tap.is_terminal:
            # Some upstreams leave the connection open after their last word.
            self.response_ended()

    def _beat(self) -> None:
        tap = self._tap
        if not self._answer.has_begun:
            if self._head is None:
                is_stream = self._is_stream = self._decision.is_stream
                report = report_headers(self._exchange, self._level, self._context.clock.monotonic(), None)
                self._answer.begin(own_head(is_stream), report, is_stream, True)
            else:
                self._commit()
        # Without a tap nothing is known about where events end, unless none has come yet.
        is_safe = self._head is None if tap is None else tap.is_between_events and not tap.has_id
        if is_safe:
            self._answer.write(_HEARTBEAT if self._is_stream else _WHITESPACE)
