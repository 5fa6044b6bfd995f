from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.core.decision import LaneDecision, Urgency
from proxy.policy.lane import LaneCapabilities, LaneFacts, choose_lane

FACTS = LaneFacts(
    endpoint="chat", stream=False, ticket=False, batch=True, deadline_seconds=86400.0, patience_seconds=600.0
)
ALL = LaneCapabilities(coalesce=True, batch=True)
NONE = LaneCapabilities()


def choose(
    urgency: Urgency, facts: LaneFacts = FACTS, capabilities: LaneCapabilities = ALL
) -> tuple[str, str]:
    decision = choose_lane(urgency, facts, capabilities)
    assert isinstance(decision, LaneDecision)
    return decision.value.value, decision.reason


def test_interactive_streams_whatever_else_is_true() -> None:
    assert choose(Urgency.INTERACTIVE) == ("stream", "interactive")


def test_soon_is_pooled() -> None:
    assert choose(Urgency.SOON) == ("coalesce", "soon")


def test_soon_streams_where_there_is_no_pool() -> None:
    assert choose(Urgency.SOON, capabilities=NONE) == ("stream", "coalesce lane not enabled (soon)")
    unknown = replace(FACTS, endpoint=None)
    assert choose(Urgency.SOON, unknown) == ("stream", "unknown API shape is not pooled (soon)")


def test_deferrable_becomes_a_job() -> None:
    assert choose(Urgency.DEFERRABLE) == ("batch", "deferrable")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"endpoint": None}, "unknown API shape cannot be deferred"),
        ({"stream": True}, "a stream that needs its tokens as they come is not deferred"),
        ({"batch": False}, "the route has no batch section"),
        ({"deadline_seconds": 5.0}, "deadline of 5 s is too short to defer"),
        ({"patience_seconds": 12.5}, "caller waits only 12.5 s"),
        ({"obstacle": "job store unavailable"}, "job store unavailable"),
    ],
)
def test_each_refusal_to_defer_has_a_reason(changed: dict[str, object], reason: str) -> None:
    facts = replace(FACTS, **changed)  # type: ignore[arg-type]
    lane, said = choose(Urgency.DEFERRABLE, facts)
    assert said == f"{reason} (deferrable)"
    assert lane == ("stream" if facts.endpoint is None else "coalesce")
    assert choose(Urgency.DEFERRABLE, facts, NONE)[0] == "stream"


def test_without_the_batch_lane_deferrable_streams_and_says_so() -> None:
    assert choose(Urgency.DEFERRABLE, capabilities=NONE) == ("stream", "batch lane not enabled (deferrable)")


def test_a_ticket_makes_patience_irrelevant() -> None:
    impatient = replace(FACTS, patience_seconds=1.0, ticket=True)
    assert choose(Urgency.DEFERRABLE, impatient) == ("batch", "deferrable")


def test_no_deadline_is_no_obstacle() -> None:
    assert choose(Urgency.DEFERRABLE, replace(FACTS, deadline_seconds=None)) == ("batch", "deferrable")
