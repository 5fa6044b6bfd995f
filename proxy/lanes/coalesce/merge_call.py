"""One upstream call for several callers: sent, read, cut up and dealt out.

It owns what happens to everybody when the call ends in this way or that:

    2xx that can be cut up         each caller gets its own answer
    2xx that cannot                each request is sent singly, once
    4xx about what was sent, 500   each request is sent singly, once: the bad one's caller gets its own error
    any other status               each caller gets it, with its body and Retry-After; nothing is sent again
    no (complete) answer           each caller gets the failure; nothing is sent again
    a stream                       see `merge_stream`

The call goes on while any caller is left, and is given up with the last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from proxy.core.clock import Clock
from proxy.core.errors import INTERNAL, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.head import ResponseHead
from proxy.lanes.coalesce.limits import BatchLimits, without_echoes
from proxy.lanes.coalesce.member import Member
from proxy.lanes.coalesce.merge_answers import Mould, Weigh, split_answer
from proxy.lanes.coalesce.merge_events import Dealer
from proxy.lanes.coalesce.merge_heads import own_response_head
from proxy.lanes.coalesce.merge_parts import Part, merged_body, most_choice_tokens
from proxy.lanes.coalesce.merge_stream import MergedStream
from proxy.lanes.coalesce.merge_undo import Undo
from proxy.lanes.coalesce.paced import hand_over, outgoing_for_call
from proxy.lanes.coalesce.taker import taker_of
from proxy.lanes.lane import Call, Lane, Outgoing

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""An answer larger than this is not collected: the requests are sent singly."""

_INLINE_BYTES = 256 * 1024
"""Cutting up a longer answer takes milliseconds, which a thread may spend."""

_FANNED_OUT_AT_ONCE = 32
"""Callers that get their answers before other events have their turn."""

_ABOUT_EVERYBODY = frozenset({401, 402, 404, 405, 407, 408, 425, 426, 429, 451})
"""Client errors that no single input causes: key, money, model, method, pace."""

_CRASHED = 500
"""What a server says that one input has made fail, and also one that everything makes fail."""

_log = logging.getLogger("weir")


class Shared(Protocol):
    """What merged calls share: their carrier."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    direct: Lane
    limits: BatchLimits

    def weigher(self, model: str, is_in_thread: bool) -> Weigh:
        """Return what weighs texts for that model; in a thread it may take longer."""
        ...


class Merging(msgspec.Struct, frozen=True):
    """What is merged: the members, each with its part, and what they have in common."""

    members: tuple[Member, ...]
    parts: tuple[Part, ...]
    dialect: str
    model: str

    @property
    def items(self) -> int:
        """Inputs in the call."""
        return sum(len(part.items) for part in self.parts)


class MergedCall:
    """The call: a `ResponseHandler` for the upstream, a `Holder` for its members."""

    def __init__(self, shared: Shared, merging: Merging, over: Callable[[], None]) -> None:
        self._shared = shared
        self._merging = merging
        self._over: Callable[[], None] | None = over
        first = merging.members[0].exchange
        self._exchange = Exchange(first.request_id, min(each.exchange.started_at for each in merging.members))
        self._exchange.decided_at = first.decided_at
        self._call: Call | None = None
        self._head: ResponseHead | None = None
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._stream: MergedStream | None = None
        self._accounted: set[Member] = set()
        self._is_ended = False

    def start(self) -> None:
        """Send the call."""
        for member in self._merging.members:
            member.holder = self
        try:
            outgoing = self._outgoing()
            call = self._shared.direct.carry(outgoing, self._exchange, self)
        except Exception as problem:
            # What plain forwarding would have served must not fail because merging does.
            _log.error("a merged call could not be sent", exc_info=problem)
            self._undo(b"", is_lesson=False)
            return
        if self._is_ended:
            call.cancel()
        else:
            self._call = call

    def _outgoing(self) -> Outgoing:
        merging = self._merging
        pooling = merging.members[0].outgoing.pooling
        assert pooling is not None
        body = merged_body(merging.dialect, pooling.document, merging.parts)
        return outgoing_for_call(merging.members, body)

    # --- the callers' side ----------------------------------------------------------------------------

    def left(self, member: Member) -> None:
        """Go on for the others; give the call up if there are none."""
        self.account(member)
        hand_over(member, self._merging.members)
        stream = self._stream
        if stream is not None:
            stream.left(member)
        if all(each.is_over for each in self._merging.members) if stream is None else stream.is_left:
            self.stop()

    def paused(self, member: Member) -> None:
        """Keep what is for this caller; the others go on."""
        if self._stream is not None:
            self._stream.paused(member)

    def resumed(self, member: Member) -> None:
        """Give it what was kept."""
        if self._stream is not None:
            self._stream.resumed(member)

    # --- the upstream's side --------------------------------------------------------------------------

    def head_received(self, head: ResponseHead) -> None:
        """Take the head; an event stream is dealt out as it comes."""
        self._head = head
        content_type = head.fields.get(b"content-type", b"").lower()
        if head.status < 300 and content_type.startswith(b"text/event-stream"):
            dealer = Dealer(self._mould(is_in_thread=False))
            self._stream = MergedStream(self._shared.loop, self, head, dealer, self._merging.members)

    def body_received(self, data: bytes) -> None:
        """Collect an answer; deal events out."""
        if self._is_ended:
            return
        if self._stream is not None:
            self._stream.feed(data)
            return
        self._pieces.append(data)
        self._piece_bytes += len(data)
        if self._piece_bytes > MAX_ANSWER_BYTES:
            self.stop()
            self._undo(b"", is_lesson=True)

    def flush(self) -> None:
        """Let heads of streams leave that nothing followed yet."""
        if self._stream is not None:
            self._stream.flush()

    def response_ended(self) -> None:
        """The upstream is done: cut the answer up, pass an error on, or send singly."""
        self._end()
        if self._stream is not None:
            self._stream.finish()
            return
        head = self._head
        body = b"".join(self._pieces)
        self._pieces = []
        if head is None or (400 <= head.status < 500 and head.status not in _ABOUT_EVERYBODY):
            self._undo(body, is_lesson=True)
        elif head.status == _CRASHED:
            # Halving for an hour what one passing fault has hit would cost more than it saves.
            self._undo(body, is_lesson=False)
        elif head.status >= 300:
            self._fan_out(head, [body] * len(self._merging.members))
        elif len(body) <= _INLINE_BYTES:
            self._answer(head, self._split(body, False))
        else:
            work = self._shared.loop.run_in_executor(None, self._split, body, True)
            work.add_done_callback(lambda done: self._split_in_thread(head, done))

    def failed(self, error: ProxyError) -> None:
        """Tell everybody, once."""
        self._end()
        if self._stream is not None:
            self._stream.failed(error)
            return
        for member in self._merging.members:
            self.account(member)
            member.fail(error)

    def upstream_writable(self, is_writable: bool) -> None:
        """Nobody sends a body piece by piece."""

    # --- ends -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Give the upstream call up."""
        call = self._call
        self._end()
        if call is not None:
            call.cancel()

    def _end(self) -> None:
        """The upstream call is over; what it brought may still be on its way."""
        self._is_ended = True
        self._call = None
        over, self._over = self._over, None
        if over is not None:
            over()

    def _mould(self, is_in_thread: bool) -> Mould:
        merging = self._merging
        weigh = self._shared.weigher(merging.model, is_in_thread)
        pooling = merging.members[0].outgoing.pooling
        most = None if pooling is None else most_choice_tokens(pooling.document)
        return Mould(merging.dialect, merging.parts, weigh, most)

    def _split(self, body: bytes, is_in_thread: bool) -> list[bytes] | None:
        """Cut an answer up. A fault of Weir's own is as good as an odd answer."""
        try:
            return split_answer(body, self._mould(is_in_thread))
        except Exception as problem:
            _log.error("an answer could not be cut up", exc_info=problem)
            return None

    def _split_in_thread(self, head: ResponseHead, done: asyncio.Future[list[bytes] | None]) -> None:
        if done.cancelled():
            error = ProxyError(INTERNAL, "Weir was stopped while it cut up an answer.")
            for member in self._merging.members:
                member.fail(error)
        else:
            self._answer(head, done.result())

    def _answer(self, head: ResponseHead, answers: list[bytes] | None) -> None:
        if answers is None:
            self._undo(b"", is_lesson=True)
        else:
            self._fan_out(head, answers)

    def _fan_out(self, head: ResponseHead, answers: Sequence[bytes], begin: int = 0) -> None:
        """Give each caller its answer, some at a time."""
        end = begin + _FANNED_OUT_AT_ONCE
        for member, answer in zip(self._merging.members[begin:end], answers[begin:end], strict=True):
            self.account(member)
            member.answer(own_response_head(head, member.exchange.request_id, len(answer)), answer)
        if end < len(answers):
            self._shared.loop.call_soon(self._fan_out, head, answers, end)

    def _undo(self, refusal: bytes, is_lesson: bool) -> None:
        self._end()
        merging = self._merging
        is_refused = self._head is not None and self._head.status >= 400
        self.send_singly(merging.members, refusal if is_refused else None, is_lesson)

    def regroup(self, staying: Sequence[Member]) -> None:
        """Take note that only these stay in the call."""
        for position, member in enumerate(staying):
            pooled = member.exchange.pooled
            if pooled is not None:
                is_leader, size = position == 0, len(staying)
                member.exchange.pooled = msgspec.structs.replace(pooled, size=size, is_leader=is_leader)

    def send_singly(self, members: Sequence[Member], refusal: bytes | None, is_lesson: bool) -> None:
        """Take the call back for these. `refusal` is what the upstream said to all, if anything."""
        merging = self._merging
        for member in members:
            self.account(member)
        if refusal is not None:
            refusal = without_echoes(refusal, (item for part in merging.parts for item in part.items))
        learn = self.learn if is_lesson else None
        Undo(self._shared.direct, tuple(members), merging.items, refusal, learn).run()

    def learn(self, most_items: int) -> None:
        """Remember how many inputs this caller's calls to this model may have."""
        merging = self._merging
        taker = taker_of(merging.members[0].outgoing, merging.dialect, merging.model)
        self._shared.limits.learn(taker, most_items)

    def account(self, member: Member) -> None:
        """Note on a member's exchange what became of the call so far, once."""
        if member in self._accounted:
            return
        self._accounted.add(member)
        exchange, call = member.exchange, self._exchange
        exchange.sent_at = call.sent_at
        exchange.connect_seconds += call.connect_seconds
        exchange.queue_seconds += call.queue_seconds
        exchange.earlier_seconds += call.earlier_seconds
        # Whoever is told first takes them: the call was sent again once for all.
        exchange.retries += call.retries
        call.retries = 0
