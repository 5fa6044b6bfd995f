"""One upstream call with `n` choices, for as many callers.

2xx with a choice for each     each caller gets its own
2xx otherwise, 400, 413, 422   each request is sent singly, once, and the upstream is not asked so for a while
any other status               each caller gets it, with its body and Retry-After; nothing is sent again
no (complete) answer           each caller gets the failure; nothing is sent again
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from proxy.core.errors import ProxyError
from proxy.core.exchange import Exchange
from proxy.http.head import ResponseHead
from proxy.lanes.coalesce.member import Member
from proxy.lanes.coalesce.merge_heads import own_response_head
from proxy.lanes.coalesce.merge_undo import Undo
from proxy.lanes.coalesce.paced import hand_over, outgoing_for_call
from proxy.lanes.coalesce.sample_choices import deal_choices, sampled_body
from proxy.lanes.lane import Call, Lane, Outgoing

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""An answer larger than this is not collected: the requests are sent singly."""

_ABOUT_THE_BODY = frozenset({400, 413, 422})
_log = logging.getLogger("weir")


class Asking(Protocol):
    """What calls share: their carrier."""

    direct: Lane

    def refuses(self, outgoing: Outgoing, model: str) -> None:
        """Take note that the upstream does not give this caller several choices of a model."""
        ...


class SampledCall:
    """The call: a `ResponseHandler` for the upstream, a `Holder` for its members."""

    def __init__(self, asking: Asking, members: tuple[Member, ...], over: Callable[[], None]) -> None:
        self._asking = asking
        self._members = members
        self._over: Callable[[], None] | None = over
        first = members[0].exchange
        self._exchange = Exchange(first.request_id, min(each.exchange.started_at for each in members))
        self._exchange.decided_at = first.decided_at
        self._call: Call | None = None
        self._head: ResponseHead | None = None
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._is_ended = False

    def start(self) -> None:
        """Send the call."""
        for member in self._members:
            member.holder = self
        try:
            call = self._asking.direct.carry(self._outgoing(), self._exchange, self)
        except Exception as problem:
            # What plain forwarding would have served must not fail because sampling does.
            _log.error("a call for several choices could not be sent", exc_info=problem)
            self._undo(b"", is_lesson=False)
            return
        if self._is_ended:
            call.cancel()
        else:
            self._call = call

    def _outgoing(self) -> Outgoing:
        pooling = self._members[0].outgoing.pooling
        assert pooling is not None, "only what may be pooled is"
        return outgoing_for_call(self._members, sampled_body(pooling.document, len(self._members)))

    # --- the callers' side ----------------------------------------------------------------------------

    def left(self, member: Member) -> None:
        """Go on for the others; give the call up if there are none."""
        self._account(member)
        hand_over(member, self._members)
        if all(each.is_over for each in self._members):
            self._end(cancels=True)

    def paused(self, member: Member) -> None:
        """Nothing comes before the whole answer does."""

    def resumed(self, member: Member) -> None:
        """Nothing comes before the whole answer does."""

    # --- the upstream's side --------------------------------------------------------------------------

    def head_received(self, head: ResponseHead) -> None:
        """Keep the head."""
        self._head = head

    def body_received(self, data: bytes) -> None:
        """Collect the answer."""
        if self._is_ended:
            return
        self._pieces.append(data)
        self._piece_bytes += len(data)
        if self._piece_bytes > MAX_ANSWER_BYTES:
            self._end(cancels=True)
            self._undo(b"")

    def flush(self) -> None:
        """Nothing is told before the whole answer is there."""

    def response_ended(self) -> None:
        """Deal the choices out, pass an error on, or send singly."""
        self._end()
        body, self._pieces = b"".join(self._pieces), []
        head = self._head
        if head is None or head.status in _ABOUT_THE_BODY:
            self._undo(body)
        elif head.status >= 300:
            self._fan_out(head, [body] * len(self._members))
        else:
            answers = self._dealt(body)
            if answers is None:
                self._undo(b"")
            else:
                self._fan_out(head, answers)

    def failed(self, error: ProxyError) -> None:
        """Tell everybody, once."""
        self._end()
        for member in self._members:
            self._account(member)
            member.fail(error)

    def upstream_writable(self, is_writable: bool) -> None:
        """Nobody sends a body piece by piece."""

    # --- ends -----------------------------------------------------------------------------------------

    def _dealt(self, body: bytes) -> list[bytes] | None:
        try:
            return deal_choices(body, len(self._members))
        except Exception as problem:
            # A fault of Weir's own is as good as an odd answer: plain forwarding still serves everybody.
            _log.error("choices could not be dealt out", exc_info=problem)
            return None

    def _fan_out(self, head: ResponseHead, answers: list[bytes]) -> None:
        for member, answer in zip(self._members, answers, strict=True):
            self._account(member)
            member.answer(own_response_head(head, member.exchange.request_id, len(answer)), answer)

    def _undo(self, refusal: bytes, is_lesson: bool = True) -> None:
        self._end()
        for member in self._members:
            self._account(member)
        outgoing = self._members[0].outgoing
        model = "" if outgoing.pooling is None else outgoing.pooling.model
        is_refused = self._head is not None and self._head.status >= 400
        Undo(
            self._asking.direct,
            self._members,
            len(self._members),
            refusal if is_refused else None,
            (lambda _: self._asking.refuses(outgoing, model)) if is_lesson else None,
        ).run()

    def _end(self, cancels: bool = False) -> None:
        self._is_ended = True
        call, self._call = self._call, None
        if cancels and call is not None:
            call.cancel()
        over, self._over = self._over, None
        if over is not None:
            over()

    def _account(self, member: Member) -> None:
        """Note on a member's exchange what became of the call so far, once."""
        exchange, call = member.exchange, self._exchange
        if exchange.sent_at or not call.sent_at:
            return
        exchange.sent_at = call.sent_at
        exchange.connect_seconds += call.connect_seconds
        exchange.queue_seconds += call.queue_seconds
        exchange.earlier_seconds += call.earlier_seconds
        if member is self._members[0]:
            exchange.retries += call.retries
