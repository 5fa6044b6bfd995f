"""Owns the choice of a lane: one pure table from urgency, endpoint and waiting time, with a reason each.

    interactive                                  stream; coalesce where the route has a `coalesce` section
    soon        known API shape                  coalesce
    deferrable  nothing speaks against it        batch
                otherwise                        as soon, and the reason says why it was not deferred

A lane that the table wants but that this process does not run becomes stream, and the reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core.decision import Lane, LaneDecision, Urgency

SHORTEST_HOLD_SECONDS = 30.0
"""Below this a caller who holds the connection is served directly: cheaper tiers take seconds to minutes."""


@dataclass(frozen=True, slots=True)
class LaneCapabilities:
    """Which lanes besides stream this process runs."""

    coalesce: bool = False
    batch: bool = False


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """What the choice depends on besides urgency.

    endpoint          the dialect's name; `None` when the API shape is unknown
    stream            the caller asked for an event stream and needs its tokens as they come
    ticket            the caller does not wait on this connection (`Prefer: respond-async`, `background`)
    batch             the route has a `batch` section
    coalesce          the route has a `coalesce` section
    deadline_seconds  how long the answer may take; `None` when nobody said
    patience_seconds  how long the caller holds the connection
    obstacle          what else speaks against deferring: credentials, tiers, the store; asked last
    """

    endpoint: str | None
    stream: bool
    ticket: bool
    batch: bool
    deadline_seconds: float | None
    patience_seconds: float
    coalesce: bool = False
    obstacle: str | None = None


_INTERACTIVE = LaneDecision(Lane.STREAM, "interactive")
_INTERACTIVE_POOLED = LaneDecision(Lane.COALESCE, "interactive, and the route pools")
_SOON_POOLED = LaneDecision(Lane.COALESCE, "soon")
_SOON_STREAMED = LaneDecision(Lane.STREAM, "coalesce lane not enabled (soon)")
_SOON_UNKNOWN = LaneDecision(Lane.STREAM, "unknown API shape is not pooled (soon)")
_DEFERRED = LaneDecision(Lane.BATCH, "deferrable")


def choose_lane(urgency: Urgency, facts: LaneFacts, capabilities: LaneCapabilities) -> LaneDecision:
    """Return the lane for a request, or the next best one with the reason why not the first."""
    match urgency:
        case Urgency.INTERACTIVE:
            is_pooled = facts.coalesce and facts.endpoint is not None and capabilities.coalesce
            return _INTERACTIVE_POOLED if is_pooled else _INTERACTIVE
        case Urgency.SOON:
            return _pooled(facts, capabilities)
        case Urgency.DEFERRABLE:
            refusal = _refusal(facts, capabilities)
            if refusal is None:
                return _DEFERRED
            fallback = _pooled(facts, capabilities)
            return LaneDecision(fallback.value, f"{refusal} (deferrable)")


def _pooled(facts: LaneFacts, capabilities: LaneCapabilities) -> LaneDecision:
    if facts.endpoint is None:
        return _SOON_UNKNOWN
    return _SOON_POOLED if capabilities.coalesce else _SOON_STREAMED


def _refusal(facts: LaneFacts, capabilities: LaneCapabilities) -> str | None:
    """Return why a deferrable request is not deferred; what the caller can change comes first."""
    if facts.endpoint is None:
        return "unknown API shape cannot be deferred"
    if facts.stream:
        return "a stream that needs its tokens as they come is not deferred"
    if not facts.batch:
        return "the route has no batch section"
    if not capabilities.batch:
        return "batch lane not enabled"
    deadline = facts.deadline_seconds
    if deadline is not None and deadline < SHORTEST_HOLD_SECONDS:
        return f"deadline of {deadline:g} s is too short to defer"
    if not facts.ticket and facts.patience_seconds < SHORTEST_HOLD_SECONDS:
        return f"caller waits only {facts.patience_seconds:g} s"
    return facts.obstacle
