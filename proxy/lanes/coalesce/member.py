"""One request among others: what its caller may ask of it, whoever holds it at the moment.

A request waits in a pool, is part of a shared call, or goes alone; these are its holders, one after another.
It owns nothing but the way from the caller to the holder, and that nothing is told after its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from proxy.core.errors import INTERNAL, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.http.head import ResponseHead
from proxy.lanes.lane import Call, Lane, Outgoing

_log = logging.getLogger("weir")


class Holder(Protocol):
    """Who a request is with."""

    def left(self, member: Member) -> None:
        """The caller is gone; the member is over already."""
        ...

    def paused(self, member: Member) -> None:
        """The caller reads too slowly."""
        ...

    def resumed(self, member: Member) -> None:
        """The caller reads again."""
        ...


class Member:
    """A request and its caller: a `Call` to the edge. Ends once."""

    __slots__ = ("arrived_at", "exchange", "holder", "is_over", "is_paused", "outgoing", "reply")

    def __init__(
        self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler, arrived_at: float
    ) -> None:
        self.outgoing = outgoing
        self.exchange = exchange
        self.reply = reply
        self.arrived_at = arrived_at
        self.holder: Holder | None = None
        self.is_over = False
        self.is_paused = False

    def send_body(self, data: bytes) -> None:
        """Do nothing: only requests whose body is there are carried with others."""

    def end_body(self) -> None:
        """Do nothing, as `send_body`."""

    def pause(self) -> None:
        """Hold the answer back."""
        self.is_paused = True
        if self.holder is not None and not self.is_over:
            self.holder.paused(self)

    def resume(self) -> None:
        """Go on."""
        self.is_paused = False
        if self.holder is not None and not self.is_over:
            self.holder.resumed(self)

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        """Return nothing: what asks for another protocol is not carried with others."""
        return None

    def cancel(self) -> None:
        """Give up; nothing is told to the reply any more."""
        if not self.is_over:
            self.is_over = True
            if self.holder is not None:
                self.holder.left(self)

    # --- ends, used by holders that tell the reply themselves ------------------------------------------

    def answer(self, head: ResponseHead, body: bytes) -> None:
        """Tell the reply a whole answer."""
        self.tell(lambda reply: reply.head_received(head))
        if body:
            self.tell(lambda reply: reply.body_received(body))
        self.end()

    def end(self) -> None:
        """Tell the reply that its answer, told before, is complete."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self.reply.response_ended()
        except Exception as problem:
            self._broken(problem)

    def fail(self, error: ProxyError) -> None:
        """Tell the reply that there will be no (complete) answer."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self.reply.failed(error)
        except Exception as problem:
            self._broken(problem)

    def tell(self, told: Callable[[ResponseHandler], None]) -> None:
        """Tell the reply something that is not its end."""
        if self.is_over:
            return
        try:
            told(self.reply)
        except Exception as problem:
            self._broken(problem)

    def _broken(self, problem: Exception) -> None:
        """One caller's relay raised: that is its end, and nobody else's."""
        _log.error("an answer could not be relayed", exc_info=problem)
        self.is_over = True
        try:
            self.reply.failed(ProxyError(INTERNAL, f"Weir failed on this answer ({type(problem).__name__})."))
        except Exception:
            # The relay that raised already may raise again; the other callers must not pay for it.
            _log.exception("a caller could not be told that its answer failed")


class Alone:
    """Carries one member by itself and says when that is over: holder and reply in one.

    `over` is called once, with the status that was answered, 0 for none.
    """

    __slots__ = ("_call", "_member", "_over", "_status")

    def __init__(self, member: Member, over: Callable[[int], None]) -> None:
        self._member = member
        self._over: Callable[[int], None] | None = over
        self._call: Call | None = None
        self._status = 0

    def start(self, lane: Lane) -> None:
        """Send the request; the upstream's bytes reach the caller as they come."""
        member = self._member
        member.holder = self
        try:
            call = lane.carry(member.outgoing, member.exchange, self)
        except Exception as problem:
            _log.error("a request could not be sent", exc_info=problem)
            self.failed(ProxyError(INTERNAL, f"Weir failed to send ({type(problem).__name__})."))
            return
        if member.is_over:
            call.cancel()
            return
        self._call = call
        if member.is_paused:
            call.pause()

    # --- the upstream's side --------------------------------------------------------------------------

    def head_received(self, head: ResponseHead) -> None:
        """Pass the head on."""
        self._status = head.status
        self._member.reply.head_received(head)

    def body_received(self, data: bytes) -> None:
        """Pass body bytes on."""
        self._member.reply.body_received(data)

    def flush(self) -> None:
        """Pass it on."""
        self._member.reply.flush()

    def response_ended(self) -> None:
        """Pass the end on."""
        self._member.is_over = True
        try:
            self._member.reply.response_ended()
        finally:
            self._end()

    def failed(self, error: ProxyError) -> None:
        """Pass the failure on."""
        self._status = 0
        self._member.is_over = True
        try:
            self._member.reply.failed(error)
        finally:
            self._end()

    def upstream_writable(self, is_writable: bool) -> None:
        """Pass it on."""
        self._member.reply.upstream_writable(is_writable)

    # --- the caller's side ----------------------------------------------------------------------------

    def left(self, member: Member) -> None:
        """Give the call up."""
        if self._call is not None:
            self._call.cancel()
        self._end()

    def paused(self, member: Member) -> None:
        """Stop reading the answer."""
        if self._call is not None:
            self._call.pause()

    def resumed(self, member: Member) -> None:
        """Read on."""
        if self._call is not None:
            self._call.resume()

    def _end(self) -> None:
        over, self._over = self._over, None
        self._call = None
        if over is not None:
            over(self._status)
