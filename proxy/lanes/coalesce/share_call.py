"""One upstream call and the callers that share it: a `ResponseHandler` that fans out.

Owns who is still there and what is kept for who comes later. The call ends when the last caller leaves, never
when the first does. The upstream is paused only while nobody who is told bytes as they come takes any.
"""

from __future__ import annotations

from typing import Protocol

from proxy.core.decision import ClosedBy, Pooled, Strategy, Urgency
from proxy.core.errors import ProxyError
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.http.head import ResponseHead
from proxy.lanes.coalesce.share_answer import Answer, head_for_joiner
from proxy.lanes.coalesce.share_exchange import adopt, exchange_for_call, has_same_answer, settle
from proxy.lanes.coalesce.share_fields import differ, may_be_about_a_field
from proxy.lanes.coalesce.share_member import Member
from proxy.lanes.coalesce.share_rules import Form, Serving, ShareLimits, serving
from proxy.lanes.coalesce.strategy import is_waiting
from proxy.lanes.lane import Call, Lane, Outgoing, Pooling

_BLOCK_BYTES = 64 * 1024


class Host(Protocol):
    """Who makes shared calls."""

    limits: ShareLimits

    def now(self) -> float:
        """Return monotonic seconds."""
        ...

    def may_keep(self, added_bytes: int) -> bool:
        """Ask for memory to keep a part of an answer in; what is granted must be given back."""
        ...

    def give_back(self, kept_bytes: int) -> None:
        """Give memory back."""
        ...

    def may_lag(self, added_bytes: int) -> bool:
        """Ask for memory for what a caller has not taken yet; a negative number gives some back."""
        ...

    def closed(self, call: SharedCall) -> None:
        """Take note that nobody joins a call any more."""
        ...

    def alone(self, member: Member) -> None:
        """Carry a caller that its call cannot serve by itself."""
        ...

    def later(self, member: Member, head: ResponseHead, kept: list[bytes]) -> None:
        """Have a late joiner told what it missed, when the current callback is over."""
        ...


class SharedCall:
    """A call on its way. `call` is the direct lane's, once it has one."""

    __slots__ = (
        "_answer",
        "_granted_bytes",
        "_host",
        "_is_over",
        "_kept",
        "_kept_bytes",
        "_leader",
        "_may_turn",
        "_members",
        "_payer",
        "_size",
        "call",
        "dialect_name",
        "exchange",
        "form",
        "is_joinable",
        "key",
    )

    def __init__(self, host: Host, key: bytes, pooling: Pooling, form: Form, leader: Exchange) -> None:
        self._host = host
        self.key = key
        self.form = form
        self.dialect_name = pooling.dialect.name
        self.exchange = exchange_for_call(leader)
        self.call: Call | None = None
        self.is_joinable = True
        self._answer = Answer(pooling, form)
        self._members: list[Member] = []
        self._leader: Member | None = None
        self._payer: Member | None = None
        self._kept: list[bytes] | None = []
        self._kept_bytes = self._granted_bytes = 0
        self._size = 0
        self._may_turn = True
        self._is_over = False

    def start(self, direct: Lane, outgoing: Outgoing) -> None:
        """Send the request of the first caller, which has joined."""
        try:
            call = direct.carry(outgoing, self.exchange, self)
        except BaseException:
            # The caller hears of it where it asked; nobody may wait for this call.
            self._is_over = True
            self._close()
            raise
        if self._is_over:
            call.cancel()
        else:
            self.call = call

    # --- coming and going -----------------------------------------------------------------------------

    def serving(self, outgoing: Outgoing, asked: Form) -> Serving | None:
        """Return how a caller could join now, `None` where it cannot.

        Nobody interactive joins a call that waits for others before it is sent.
        """
        pooling = outgoing.pooling
        if pooling is not None and pooling.urgency is Urgency.INTERACTIVE and is_waiting(self.call):
            return None
        how = serving(self.form, asked, self.dialect_name) if self.is_joinable else None
        head = self._answer.head
        if how is None or head is None:
            return how
        leader = None if self._leader is None else self._leader.outgoing.rewrite
        if not has_same_answer(leader, outgoing.rewrite, self.exchange.taken_back):
            return None
        found = self._answer.serving_now(how)
        is_late = self._kept_bytes > self._host.limits.late and not self._answer.is_assembled
        if (found is Serving.ASSEMBLED and is_late) or (found is not Serving.RAW and not self._may_turn):
            return None
        return found

    def add(
        self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler, form: Form, how: Serving
    ) -> Member:
        """Let a caller join; it may be told everything only after this returned."""
        host = self._host
        member = Member(self, outgoing, exchange, reply, form, how, host.now(), host.limits)
        self._size += 1
        self._members.append(member)
        if self._leader is None:
            self._leader = self._payer = member
        self._note(member)
        head = self._answer.head
        if how is Serving.ASSEMBLED:
            self._answer.assemble(self._kept or [])
        if head is not None:
            self._settle(member)
            if how is Serving.RAW:
                self._host.later(member, self._head_for(member, head), list(self._kept or ()))
            self.flow_changed()
        return member

    def left(self, member: Member) -> None:
        """Forget a member. The last one takes the call with it."""
        if member in self._members:
            self._members.remove(member)
        if not self._is_over:
            self._settle(member)
        if self._members:
            if member is self._payer and not self._is_over:
                self._payer = self._members[0]
                self._note(member)
                self._note(self._payer)
            self.flow_changed()
        elif not self._is_over:
            self._is_over = True
            self._close()
            if self.call is not None:
                self.call.cancel()

    def flow_changed(self) -> None:
        """Pause the upstream while nobody takes what it says, and only then."""
        if self.call is None or self._is_over:
            return
        if all(member.may_fall_behind for member in self._members):
            self.call.pause()
        else:
            self.call.resume()

    def may_lag(self, added_bytes: int) -> bool:
        """Grant a slow member memory, or take some back."""
        return self._host.may_lag(added_bytes)

    def _close(self) -> None:
        """Let nobody join any more, and keep nothing."""
        if self.is_joinable:
            self.is_joinable = False
            self._host.closed(self)
        if self._kept is not None:
            self._host.give_back(self._granted_bytes)
            self._kept, self._kept_bytes, self._granted_bytes = None, 0, 0

    # --- the upstream's side --------------------------------------------------------------------------

    def head_received(self, head: ResponseHead) -> None:
        """Decide how each caller is served from this answer, and tell the head to those who get its bytes."""
        self._answer.begin(head)
        if head.status >= 300:
            self._close()
        for member in tuple(self._members):
            if member.is_open and not self._is_for(member, head):
                self._send_alone(member)
        for member in tuple(self._members):
            if not member.is_open:
                continue
            member.serving = self._answer.serving_now(member.serving) or Serving.RAW
            self._settle(member)
            if member.serving is Serving.RAW:
                member.take_head(self._head_for(member, head))
        self.flow_changed()

    def _is_for(self, member: Member, head: ResponseHead) -> bool:
        """Tell whether this answer can be what the member's own request would have got."""
        leader = self._leader
        if leader is None or member is leader:
            return True
        if self._answer.serving_now(member.serving) is None:
            return False
        if not has_same_answer(leader.outgoing.rewrite, member.outgoing.rewrite, self.exchange.taken_back):
            return False
        sent, own = leader.outgoing.pooling, member.outgoing.pooling
        if sent is None or own is None or not may_be_about_a_field(head.status):
            return True
        return not differ(sent.document, own.document)

    def _send_alone(self, member: Member) -> None:
        """Let a member ask for itself; the call is not its any more, nor booked on it."""
        self._size -= 1
        if member is self._payer:
            others = (each for each in self._members if each is not member and each.is_open)
            self._payer = next(others, None)
        self._host.alone(member)

    def body_received(self, data: bytes) -> None:
        """Keep the bytes as long as somebody may need them, and tell them."""
        if self._kept is not None:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes > self._granted_bytes:
                self._ask_for_room()
        if self._answer.is_assembled:
            self._answer.read(data)
            if self._answer.size_bytes > self._host.limits.told:
                self._stop_turning()
        members = self._members
        # Most calls have one caller, and this is done for each event of its stream.
        for member in members if len(members) == 1 else tuple(members):
            if member.is_open and member.serving is Serving.RAW:
                member.take(data)

    def _ask_for_room(self) -> None:
        """Go on keeping if that is allowed, a block at a time."""
        limits = self._host.limits
        if self._kept_bytes > limits.whole:
            self._stop_turning()
        if self._kept_bytes > limits.kept:
            self._close()
        while self._kept is not None and self._kept_bytes > self._granted_bytes:
            block_bytes = min(_BLOCK_BYTES, limits.kept, limits.whole)
            if self._host.may_keep(block_bytes):
                self._granted_bytes += block_bytes
            else:
                self._stop_turning()
                self._close()

    def _stop_turning(self) -> None:
        """Let those ask for themselves who wait for another form of an answer that is too long for it."""
        self._may_turn = False
        for member in tuple(self._members):
            if member.is_open and member.serving is not Serving.RAW:
                self._send_alone(member)

    def flush(self) -> None:
        """Pass on that the head came alone."""
        for member in tuple(self._members):
            if member.serving is Serving.RAW:
                member.flush()

    def response_ended(self) -> None:
        """End every caller's answer, each in the form that it asked for."""
        self._is_over = True
        kept = self._kept or []
        self._close()
        wholes = {
            member: self._answer.whole(member.serving, member.form, kept)
            for member in self._members
            if member.is_open and member.serving is not Serving.RAW
        }
        for member, whole in wholes.items():
            if whole is None:
                self._send_alone(member)
        for member in tuple(self._members):
            if not member.is_open:
                continue
            self._note(member)
            whole = wholes.get(member)
            if whole is None:
                member.end()
            elif isinstance(whole, ProxyError):
                member.end(whole)
            else:
                member.take_whole(*whole)

    def failed(self, error: ProxyError) -> None:
        """Tell every caller once; whoever waits for a form of its own may still get what came whole."""
        self._is_over = True
        self._close()
        for member in tuple(self._members):
            if not member.is_open:
                continue
            self._settle(member)
            whole = self._answer.whole_despite(member.serving)
            if whole is None:
                member.end(error)
            else:
                member.take_whole(*whole)

    def upstream_writable(self, is_writable: bool) -> None:
        """Bodies of pooled requests are whole: there is nobody to hold back."""

    # --- accounts -------------------------------------------------------------------------------------

    def _settle(self, member: Member) -> None:
        call = self.exchange
        if not member.is_settled:
            member.is_settled = True
            settle(member.exchange, call, member.joined_at, self._host.now())
            adopt(member.exchange, member.outgoing.rewrite, call.taken_back)
            # Whoever is told first takes them: the call was sent again once for all.
            member.exchange.retries += call.retries
            call.retries = 0
        self._note(member)

    def _note(self, member: Member) -> None:
        if self._size == 1 and self.exchange.pooled is not None:
            # Nobody else came: what was done with its call says more.
            member.exchange.pooled = self.exchange.pooled
            return
        # The call is booked on one of its callers, on another when that one leaves.
        is_leader = member is self._payer
        member.exchange.pooled = Pooled(Strategy.SHARE, self._size, ClosedBy.IDLE, is_leader)

    def _head_for(self, member: Member, head: ResponseHead) -> ResponseHead:
        return head if member is self._leader else head_for_joiner(head)
