"""Which lane carries a request, and how where it is deferred: the facts for the table of `proxy.policy.lane`.

Owns what is asked in which order: nothing about deferring is worked out for what is not deferrable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from proxy.core.decision import Lane, LaneDecision, Urgency
from proxy.core.document import Document
from proxy.core.upstream import Upstream
from proxy.dialects.dialect import Dialect
from proxy.jobs.model import Delivery
from proxy.lanes.batch.deferring import Candidate, Deferring
from proxy.lanes.batch.plan import DeferralPlan, HeaderLookup, asks_ticket
from proxy.policy.lane import LaneCapabilities, LaneFacts, choose_lane
from proxy.policy.model import Route
from proxy.policy.waiting import DEADLINE_HEADER, Waiting, answer_deadline, caller_patience_seconds
from proxy.policy.webhook_choice import named_webhook

_INTERACTIVE = LaneFacts(
    endpoint=None, stream=True, ticket=False, batch=False, deadline_seconds=None, patience_seconds=0.0
)

_UNREADABLE = "only a JSON object is deferred"
_NOTHING_DEFERS = "batch lane not enabled"
_NO_TICKETS = "prefer ignored: the route does not allow it"


class Asked(msgspec.Struct, frozen=True):
    """A request after its steps. `is_named_so` tells whether its path is a name of an API's path."""

    dialect: Dialect | None
    document: Document | None
    upstream: Upstream
    model: str
    is_stream: bool
    header: HeaderLookup
    method: str
    is_named_so: Callable[[str], bool]


def interactive_lane(route: Route, dialect: Dialect | None, capabilities: LaneCapabilities) -> LaneDecision:
    """Return the lane of an interactive request, for which nothing else has to be known."""
    facts = _INTERACTIVE
    if route.coalesce is not None and dialect is not None:
        facts = replace(facts, endpoint=dialect.name, coalesce=True)
    return choose_lane(Urgency.INTERACTIVE, facts, capabilities)


def lane_for(
    route: Route,
    urgency: Urgency,
    asked: Asked,
    capabilities: LaneCapabilities,
    deferring: Deferring | None,
    wall: Callable[[], float],
) -> tuple[LaneDecision, DeferralPlan | None]:
    """Return the lane of what is not interactive and, for the batch lane, how. `wall`: since the epoch."""
    deadline = answer_deadline(route, asked.header(DEADLINE_HEADER), wall())
    lane, plan = _lane_for(route, urgency, asked, capabilities, deferring, deadline)
    if deadline.is_ignored:
        lane = LaneDecision(lane.value, f"{lane.reason}; {deadline.reason}")
    if urgency is Urgency.DEFERRABLE and _asks_in_vain(route, asked, plan):
        lane = LaneDecision(lane.value, f"{lane.reason}; {_NO_TICKETS}")
    return lane, plan


def _asks_in_vain(route: Route, asked: Asked, plan: DeferralPlan | None) -> bool:
    """Tell whether a ticket is asked for that the route would give if it let callers ask."""
    if route.batch is None or "prefer" in route.allow_caller:
        return False
    is_promised = plan is not None and plan.delivery is not Delivery.HOLD
    return not is_promised and asks_ticket(asked.header("prefer") or "")


def _lane_for(
    route: Route,
    urgency: Urgency,
    asked: Asked,
    capabilities: LaneCapabilities,
    deferring: Deferring | None,
    deadline: Waiting,
) -> tuple[LaneDecision, DeferralPlan | None]:
    endpoint = None if asked.dialect is None else asked.dialect.name
    facts = LaneFacts(
        endpoint=endpoint,
        stream=asked.is_stream,
        ticket=False,
        batch=route.batch is not None,
        deadline_seconds=deadline.seconds,
        patience_seconds=caller_patience_seconds(route, asked.header),
        coalesce=route.coalesce is not None,
    )
    if urgency is not Urgency.DEFERRABLE:
        return choose_lane(urgency, facts, capabilities), None
    candidate = _candidate(route, asked, facts)
    plan: DeferralPlan | str = _UNREADABLE
    if candidate is not None:
        facts = replace(facts, stream=candidate.needs_tokens, ticket=not candidate.waits_silently)
        plan = _NOTHING_DEFERS if deferring is None else deferring.consider(candidate)
    if isinstance(plan, str):
        # Nothing carries it on the batch lane without a plan: the obstacle keeps it off.
        return choose_lane(urgency, replace(facts, obstacle=plan), capabilities), None
    lane = choose_lane(urgency, facts, capabilities)
    return lane, plan if lane.value is Lane.BATCH else None


def _candidate(route: Route, asked: Asked, facts: LaneFacts) -> Candidate | None:
    """Return a request as the batch lane sees it, `None` where there is nothing to see."""
    dialect, document = asked.dialect, asked.document
    if dialect is None or document is None or route.batch is None:
        return None
    return Candidate(
        policy=route.batch,
        upstream=asked.upstream,
        is_known_path=asked.is_named_so(dialect.path),
        dialect=dialect,
        document=document,
        model=asked.model,
        is_stream=asked.is_stream,
        header=asked.header,
        method=asked.method,
        is_ticket_allowed="prefer" in route.allow_caller,
        deadline_seconds=facts.deadline_seconds,
        patience_seconds=facts.patience_seconds,
        webhook=named_webhook(route, asked.header) or route.batch.webhook,
    )
