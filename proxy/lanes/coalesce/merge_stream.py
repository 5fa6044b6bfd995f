"""The answer to a merged call as a stream: who has been told what, and who can still be sent singly.

A caller is told the head together with the first of its own choices, since until then its request can be sent
singly. It owns what happens when a stream does not go on as it should:

    an error that may be about one prompt,  who has heard nothing yet is sent singly, once; who has all of its
    or an event that is nobody's            choices is done; the others are told that it broke off
    an end without somebody's choices       they are sent singly, or told so if they have heard something
    an error about all, or no end           each caller gets it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from proxy.core.document import DocumentError
from proxy.core.errors import UPSTREAM_CLOSED, UPSTREAM_PROTOCOL, ProxyError
from proxy.http.head import ResponseHead
from proxy.lanes.coalesce.lagging import Lagging
from proxy.lanes.coalesce.member import Member
from proxy.lanes.coalesce.merge_events import Dealer, Dealt, Undealable
from proxy.lanes.coalesce.merge_heads import own_response_head

HOLD_SECONDS = 1.0
"""How long a caller may hear nothing of a stream that has begun, so that its request can be sent singly."""


class StreamHost(Protocol):
    """Whose stream it is: the merged call."""

    def account(self, member: Member) -> None:
        """Note on a member's exchange what became of the call so far."""
        ...

    def learn(self, most_items: int) -> None:
        """Take note of how many inputs the upstream takes in one call."""
        ...

    def stop(self) -> None:
        """Give the upstream call up."""
        ...

    def regroup(self, staying: Sequence[Member]) -> None:
        """Take note that only these stay in the call."""
        ...

    def send_singly(self, members: Sequence[Member], refusal: bytes | None, is_lesson: bool) -> None:
        """Take the call back for some; `refusal` is what the upstream said to all."""
        ...


class MergedStream:
    """Deals events out to the members that are left in the stream."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: StreamHost,
        head: ResponseHead,
        dealer: Dealer,
        members: Sequence[Member],
    ) -> None:
        self._host = host
        self._head = head
        self._dealer = dealer
        self._members = dict(enumerate(members))
        self._lagging = Lagging(members)
        self._waiting: dict[int, list[bytes]] = {number: [] for number in self._members}
        """What is kept for those that have heard nothing yet."""
        self._timer = loop.call_later(HOLD_SECONDS, self._tell_all)

    @property
    def is_left(self) -> bool:
        """Whether nobody listens any more."""
        return all(member.is_over for member in self._members.values())

    # --- the upstream's side --------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Deal the next bytes out."""
        self._step(lambda: self._dealer.feed(data))

    def finish(self) -> None:
        """The stream has ended: so has everybody's, as far as it came."""
        self._step(self._dealer.finish)
        if self._dealer.failure is None and not self._dealer.is_refused:
            self._miss()
        self._tell_all()
        for member in self._members.values():
            self._lagging.end(member)

    def failed(self, error: ProxyError) -> None:
        """The stream has broken: tell everybody."""
        self._timer.cancel()
        for member in self._members.values():
            self._fail(member, error)

    def flush(self) -> None:
        """Let heads leave that nothing followed yet."""
        for number, member in self._members.items():
            if number not in self._waiting:
                member.tell(lambda reply: reply.flush())

    # --- the callers' side ----------------------------------------------------------------------------

    def left(self, member: Member) -> None:
        """Keep nothing for a caller that is gone."""
        self._lagging.forget(member)
        if self.is_left:
            self._timer.cancel()

    def paused(self, member: Member) -> None:
        """Keep what is for this caller; the others go on."""
        self._lagging.pause(member)

    def resumed(self, member: Member) -> None:
        """Give it what was kept."""
        self._lagging.resume(member)

    # --- dealing --------------------------------------------------------------------------------------

    def _step(self, step: Callable[[], Dealt]) -> None:
        dealer = self._dealer
        try:
            dealt = step()
        except (Undealable, DocumentError):
            message = "The upstream's answer to a merged call cannot be told apart."
            self._break_off(ProxyError(UPSTREAM_PROTOCOL, message), None)
            return
        for number, events in dealt.items():
            self._give(number, events)
        if dealer.failure is not None:
            message = "The upstream broke a merged call off with an error that may be about another's prompt."
            self._break_off(ProxyError(UPSTREAM_CLOSED, message), dealer.failure)
        elif dealer.is_refused:
            self._tell_all()
        elif dealer.is_done:
            self._miss()

    def _give(self, number: int, events: Sequence[bytes]) -> None:
        member = self._members.get(number)
        if member is None:
            return
        waiting = self._waiting.get(number)
        if waiting is None:
            self._lagging.give(member, b"".join(events))
            return
        waiting += events
        if self._dealer.has_begun(number):
            self._tell(number, member)

    def _tell(self, number: int, member: Member) -> None:
        """Tell a caller the head, and what has been kept for it since."""
        events = self._waiting.pop(number)
        if not self._waiting:
            self._timer.cancel()
        self._host.account(member)
        own = own_response_head(self._head, member.exchange.request_id, None)
        member.tell(lambda reply: reply.head_received(own))
        if events:
            self._lagging.give(member, b"".join(events))
        else:
            member.tell(lambda reply: reply.flush())

    def _tell_all(self) -> None:
        self._timer.cancel()
        for number in tuple(self._waiting):
            self._tell(number, self._members[number])

    # --- ends -----------------------------------------------------------------------------------------

    def _break_off(self, error: ProxyError, refusal: bytes | None) -> None:
        """End it for everybody, in the way that is left for each."""
        self._host.stop()
        heard = [number for number in self._members if number not in self._waiting]
        self._part(tuple(self._waiting))
        for number in heard:
            member = self._members.pop(number)
            if self._dealer.is_finished(number):
                self._lagging.end(member)
            else:
                self._fail(member, error)
        if heard and refusal is None:
            self._host.learn(1)
        self._send_singly(tuple(self._waiting), refusal, is_lesson=not heard)

    def _miss(self) -> None:
        """Look after those whose choices the upstream has left out."""
        missing = [number for number in self._members if not self._dealer.is_answered(number)]
        missing = [number for number in missing if not self._members[number].is_over]
        if not missing:
            return
        self._part(missing)
        unheard = [number for number in missing if number in self._waiting]
        for number in missing:
            if number not in self._waiting:
                self._host.learn(1)
                message = "The upstream left out a part of its answer to a merged call."
                self._fail(self._members.pop(number), ProxyError(UPSTREAM_PROTOCOL, message))
        self._send_singly(unheard, None, is_lesson=True)
        if self.is_left:
            self._host.stop()

    def _part(self, leaving: Sequence[int]) -> None:
        staying = [member for number, member in self._members.items() if number not in leaving]
        self._host.regroup([member for member in staying if not member.is_over])

    def _send_singly(self, numbers: Sequence[int], refusal: bytes | None, is_lesson: bool) -> None:
        for number in numbers:
            del self._waiting[number]
        if not self._waiting:
            self._timer.cancel()
        if numbers:
            members = [self._members.pop(number) for number in numbers]
            self._host.send_singly(members, refusal, is_lesson)

    def _fail(self, member: Member, error: ProxyError) -> None:
        self._host.account(member)
        self._lagging.forget(member)
        member.fail(error)
