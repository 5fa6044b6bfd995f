"""What the exchange of a shared call tells about those that it served: times, and what was taken back.

Pure bookkeeping. Whoever joined a call waited for its connection only since it joined, and counts as sent
when the call was, or when it joined one that had been.
"""

from __future__ import annotations

from proxy.core.exchange import Exchange
from proxy.lanes.lane import Rewrite
from proxy.lanes.take_back import ORIGINAL


def exchange_for_call(leader: Exchange) -> Exchange:
    """Return an exchange for a call that is made for a caller and others."""
    call = Exchange(leader.request_id, leader.started_at)
    call.decided_at = leader.decided_at
    call.steps, call.model = leader.steps, leader.model
    call.tokens_before, call.tokens_after = leader.tokens_before, leader.tokens_after
    return call


def settle(member: Exchange, call: Exchange, joined_at: float, now: float) -> None:
    """Give a member its share of the call's times. `now` counts as sent where nothing could be."""
    sent_at = call.sent_at or now
    waited_seconds = max(0.0, sent_at - joined_at)
    queue_seconds = min(call.queue_seconds, waited_seconds)
    member.queue_seconds += queue_seconds
    connect_seconds = min(call.connect_seconds, waited_seconds - queue_seconds)
    member.connect_seconds += connect_seconds
    member.earlier_seconds += min(call.earlier_seconds, waited_seconds - queue_seconds - connect_seconds)
    if call.sent_at:
        member.sent_at = max(joined_at, call.sent_at)


def has_same_answer(leader: Rewrite | None, member: Rewrite | None, taken_back: tuple[str, ...]) -> bool:
    """Tell whether a call from which something was taken back is still what a member would have sent.

    Bodies are equal as they were rewritten. What the callers wrote before that need not be.
    """
    if not taken_back or leader is member:
        return True
    if leader is None or member is None:
        return False
    if ORIGINAL in taken_back:
        return member.original is not None and member.original == leader.original
    return member.added.issuperset(taken_back)


def adopt(member: Exchange, rewrite: Rewrite | None, taken_back: tuple[str, ...]) -> None:
    """Note on a member what the call that served it had to take back."""
    if not taken_back or rewrite is None:
        return
    member.taken_back = taken_back
    for param in taken_back:
        if param != ORIGINAL:
            member.steps = tuple(step.without(param) for step in member.steps)
    if ORIGINAL in taken_back:
        member.steps = tuple(step.taken_back() for step in member.steps)
        member.model = rewrite.given_model
        member.tokens_before = member.tokens_after = None
