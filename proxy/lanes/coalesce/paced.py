"""One call for several requests, what pace has to know of it, and of a request that waited before. Pure.

Such a call is nobody's to pool again; but it is in flight, and may be made to wait as long as the one of its
callers that has waited longest still may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from proxy.core.decision import Strategy, Urgency
from proxy.core.exchange import Exchange
from proxy.lanes.coalesce.member import Member
from proxy.lanes.coalesce.merge_heads import merged_request_head
from proxy.lanes.lane import Outgoing, Pooling
from proxy.upstream.request_head import BodyPlan

_WINDOWED = frozenset({Strategy.MERGE, Strategy.SAMPLE})
_BY_URGENCY = (Urgency.INTERACTIVE, Urgency.SOON, Urgency.DEFERRABLE)


def waited_seconds(exchange: Exchange) -> float:
    """Return how long a request has waited for others by the policy's `max_wait`, which pace goes on with."""
    pooled = exchange.pooled
    return exchange.queue_seconds if pooled is not None and pooled.strategy in _WINDOWED else 0.0


def pooling_for_call(members: Sequence[Member]) -> Pooling | None:
    """Return what lets pace, and nothing else, carry one call for these requests; `None` without a limit."""
    pooling = members[0].outgoing.pooling
    if pooling is None or not pooling.policy.max_in_flight:
        return None
    waited = max(waited_seconds(member.exchange) for member in members)
    policy = replace(
        pooling.policy,
        strategies=tuple(each for each in pooling.policy.strategies if each is Strategy.PACE),
        max_wait_seconds=max(0.0, pooling.policy.max_wait_seconds - waited),
    )
    urgencies = {each.outgoing.pooling.urgency for each in members if each.outgoing.pooling is not None}
    urgency = next(each for each in _BY_URGENCY if each in urgencies)
    return msgspec.structs.replace(pooling, policy=policy, urgency=urgency)


def outgoing_for_call(members: Sequence[Member], body: bytes) -> Outgoing:
    """Return the one call with `body` for these requests, none of whose callers waits too long for it."""
    sent = [member.outgoing for member in members]
    replaced = {**sent[0].plan.replaced, b"accept-encoding": b"identity"}
    return Outgoing(
        head=merged_request_head([each.head for each in sent]),
        pool=sent[0].pool,
        body=body,
        plan=BodyPlan(len(body), replaced=replaced),
        patience_seconds=min(each.patience_seconds for each in sent),
        pooling=pooling_for_call(members),
    )


def hand_over(leaver: Member, members: Sequence[Member]) -> None:
    """Book a call on another of its callers when the one that it is booked on leaves before its answer."""
    pooled = leaver.exchange.pooled
    heir = next((each for each in members if not each.is_over and each is not leaver), None)
    if heir is None or pooled is None or not pooled.is_leader or heir.exchange.pooled is None:
        return
    leaver.exchange.pooled = msgspec.structs.replace(pooled, is_leader=False)
    heir.exchange.pooled = msgspec.structs.replace(heir.exchange.pooled, is_leader=True)
