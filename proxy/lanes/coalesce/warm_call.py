"""One request of a burst with a long prefix in common: it goes first, or waits for who did, then is alone.

Owns the way from the caller to the direct lane's call, and for one that goes first the look at its answer's
beginning.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from proxy.core.decision import Pooled, Strategy
from proxy.core.errors import INTERNAL, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.http.head import ResponseHead
from proxy.lanes.coalesce.strategy import is_waiting
from proxy.lanes.coalesce.warm_prefix import Prefix
from proxy.lanes.lane import Call, Lane, Outgoing


class Guide(Protocol):
    """Who decides when requests leave."""

    def began(self, leader: WarmCall) -> None:
        """Take note that a leader's answer has begun."""
        ...

    def lost(self, leader: WarmCall) -> None:
        """Take note that a leader's answer will not begin, or is an error."""
        ...

    def left(self, follower: WarmCall) -> None:
        """Take note that a caller does not wait any more."""
        ...


class WarmCall:
    """A caller's `Call`; for a leader, until its answer has begun, also what the upstream tells."""

    __slots__ = (
        "_call",
        "_guide",
        "_is_gone",
        "_is_paused",
        "_is_watched",
        "arrived_at",
        "exchange",
        "followers",
        "is_late",
        "is_second",
        "kind",
        "leader",
        "outgoing",
        "prefix",
        "reply",
        "sent_at",
        "timer",
    )

    def __init__(
        self,
        guide: Guide,
        prefix: Prefix,
        kind: bytes,
        outgoing: Outgoing,
        exchange: Exchange,
        reply: ResponseHandler,
        arrived_at: float,
    ) -> None:
        self._guide = guide
        self._call: Call | None = None
        self._is_gone = False
        self._is_paused = False
        self._is_watched = False
        self.prefix = prefix
        self.kind = kind
        self.outgoing = outgoing
        self.exchange = exchange
        self.reply = reply
        self.arrived_at = arrived_at
        self.sent_at = 0.0
        self.leader: WarmCall | None = None
        self.followers: list[WarmCall] = []
        self.is_second = False
        self.is_late = False
        self.timer: asyncio.TimerHandle | None = None

    def send(self, direct: Lane, now: float, leads: bool) -> None:
        """Send the request; one that `leads` tells its guide how its answer begins."""
        self.sent_at = now
        self._is_watched = leads
        call = direct.carry(self.outgoing, self.exchange, self if leads else self.reply)
        if self._is_gone:
            call.cancel()
            return
        self._call = call
        if self._is_paused:
            call.pause()

    @property
    def is_waiting(self) -> bool:
        """Whether the request has not left yet, here or further along the chain."""
        return self.leader is not None or is_waiting(self._call)

    def note(self, pooled: Pooled) -> None:
        """Say how the request was carried, unless it is several callers' already."""
        known = self.exchange.pooled
        if known is None or known.size == 1 or known.strategy is Strategy.WARM:
            self.exchange.pooled = pooled

    def refuse(self, problem: Exception) -> None:
        """Tell the caller that its request could not be sent."""
        self._is_gone = True
        self.reply.failed(ProxyError(INTERNAL, f"Weir failed to send ({type(problem).__name__})."))

    # --- the edge's side ------------------------------------------------------------------------------

    def send_body(self, data: bytes) -> None:
        """Bodies of pooled requests are whole before they are carried."""

    def end_body(self) -> None:
        """Bodies of pooled requests are whole before they are carried."""

    def pause(self) -> None:
        """Stop reading the answer, which may not have been asked for yet."""
        self._is_paused = True
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        """Read the answer again."""
        self._is_paused = False
        if self._call is not None:
            self._call.resume()

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        """Give the upstream's transport away, if it has one."""
        return None if self._call is None else self._call.detach()

    def cancel(self) -> None:
        """Give up, waiting or under way."""
        if self._is_gone:
            return
        self._is_gone = True
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        if self.leader is not None:
            self._guide.left(self)
        self._unwatch(is_begun=False)

    # --- the upstream's side, for a leader ------------------------------------------------------------

    def head_received(self, head: ResponseHead) -> None:
        """Pass the head on; of a whole answer it is the beginning, of a stream its first event is."""
        is_stream = head.fields.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        if head.status >= 300:
            self._unwatch(is_begun=False)
        elif not is_stream:
            self._unwatch(is_begun=True)
        self.reply.head_received(head)

    def body_received(self, data: bytes) -> None:
        """Pass body bytes on."""
        if self._is_watched:
            self._unwatch(is_begun=True)
        self.reply.body_received(data)

    def flush(self) -> None:
        """Pass it on."""
        self.reply.flush()

    def response_ended(self) -> None:
        """Pass the end on."""
        self._unwatch(is_begun=False)
        self.reply.response_ended()

    def failed(self, error: ProxyError) -> None:
        """Pass the failure on, which is this caller's alone."""
        self._unwatch(is_begun=False)
        self.reply.failed(error)

    def upstream_writable(self, is_writable: bool) -> None:
        """Pass it on."""
        self.reply.upstream_writable(is_writable)

    def _unwatch(self, is_begun: bool) -> None:
        if not self._is_watched:
            return
        self._is_watched = False
        if is_begun:
            self._guide.began(self)
        else:
            self._guide.lost(self)
