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
from proxy.lanes.batch.deferring import Candidate, Deferring
from proxy.lanes.batch.plan import DeferralPlan, HeaderLookup
from proxy.policy.lane import LaneCapabilities, LaneFacts, choose_lane
from proxy.policy.model import Route
from proxy.policy.waiting import DEADLINE_HEADER, answer_deadline, caller_patience_seconds

_INTERACTIVE = LaneFacts(
    endpoint=None, stream=True, ticket=False, batch=False, deadline_seconds=None, patience_seconds=0.0
)


class Asked(msgspec.Struct, frozen=True):
    """A request after its steps. `is_named_so` tells whether its path is a name of an API's path."""

    dialect: Dialect | None
    document: Document | None
    upstream: Upstream
    model: str
    is_stream: bool
    header: HeaderLookup
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
    endpoint = None if asked.dialect is None else asked.dialect.name
    deadline = answer_deadline(route, asked.header(DEADLINE_HEADER), wall())
    facts = LaneFacts(
        endpoint=endpoint,
        stream=asked.is_stream,
        ticket=False,
        batch=route.batch is not None,
        deadline_seconds=deadline.seconds,
        patience_seconds=caller_patience_seconds(route, asked.header),
        coalesce=route.coalesce is not None,
    )
    candidate = _candidate(route, asked, facts) if urgency is Urgency.DEFERRABLE else None
    if candidate is None:
        return choose_lane(urgency, facts, capabilities), None
    facts = replace(facts, stream=candidate.needs_tokens, ticket=not candidate.waits_silently)
    plan = None if deferring is None else deferring.consider(candidate)
    if isinstance(plan, str):
        facts, plan = replace(facts, obstacle=plan), None
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
        is_ticket_allowed="prefer" in route.allow_caller,
        deadline_seconds=facts.deadline_seconds,
        patience_seconds=facts.patience_seconds,
    )
