from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.core.decision import Urgency, UrgencyDecision
from proxy.policy.model import Match, Route, UrgencyPolicy, UrgencyWhen
from proxy.policy.urgency import UrgencyFacts, classify

RULE = Match(model=("x",))
ROUTE = Route(
    "r",
    Match(),
    urgency=UrgencyPolicy(Urgency.DEFERRABLE, rules=(UrgencyWhen(RULE, Urgency.SOON),)),
    allow_caller=frozenset({"x-weir-urgency"}),
)
CLOSED = Route("closed", Match(), urgency=UrgencyPolicy(Urgency.SOON))


def decide(
    route: Route = ROUTE,
    *,
    header: str | None = None,
    service_tier: str | None = None,
    background: bool = False,
    stream: bool = False,
    waits: str | None = None,
    holds: Callable[[Match], bool] = lambda match: False,
) -> tuple[str, str]:
    decision = classify(route, UrgencyFacts(header, service_tier, background, stream, lambda: waits, holds))
    assert isinstance(decision, UrgencyDecision)
    return decision.value.value, decision.reason


def test_an_allowed_header_comes_before_everything_in_the_body() -> None:
    assert decide(header="deferrable", service_tier="priority", stream=True) == (
        "deferrable",
        "header x-weir-urgency",
    )
    assert decide(header=" Soon ") == ("soon", "header x-weir-urgency")


def test_a_header_that_is_not_allowed_decides_nothing_and_is_said_to() -> None:
    assert decide(CLOSED, header="interactive") == (
        "soon",
        "route default; x-weir-urgency ignored: the route does not allow it",
    )


def test_an_invalid_header_decides_nothing_and_is_never_echoed() -> None:
    value, reason = decide(header="now\r\nX-Evil: 1", stream=True)
    assert value == "interactive"
    assert reason == ("stream requested; x-weir-urgency ignored: not one of interactive, soon, deferrable")


@pytest.mark.parametrize(
    ("tier", "urgency"),
    [
        ("flex", "deferrable"),
        ("priority", "interactive"),
        ("fast", "interactive"),
        ("ultrafast", "interactive"),
    ],
)
def test_a_service_tier_that_means_something_comes_before_stream(tier: str, urgency: str) -> None:
    assert decide(service_tier=tier, stream=tier == "flex") == (urgency, f"service_tier {tier}")


@pytest.mark.parametrize("tier", ["auto", "default", "scale", "standard_only", "nonsense"])
def test_other_service_tiers_decide_nothing(tier: str) -> None:
    assert decide(CLOSED, service_tier=tier) == ("soon", "route default")


def test_background_is_deferrable() -> None:
    assert decide(CLOSED, background=True) == ("deferrable", "background requested")
    assert decide(CLOSED, background=True, service_tier="priority")[0] == "interactive"


def test_a_stream_is_interactive_before_the_routes_rules() -> None:
    assert decide(stream=True, holds=lambda match: True) == ("interactive", "stream requested")


def test_the_first_rule_that_holds_comes_before_the_default() -> None:
    assert decide(holds=lambda match: match is RULE) == ("soon", "route rule 1")
    assert decide() == ("deferrable", "route default")


def test_a_tool_loop_is_never_deferrable_whatever_said_so() -> None:
    waits = "tool loop in progress"
    for value, reason in (
        decide(header="deferrable", waits=waits),
        decide(service_tier="flex", waits=waits),
        decide(background=True, waits=waits),
        decide(waits=waits),
    ):
        assert value == "interactive"
        assert reason.startswith("tool loop in progress: never deferrable (")


def test_a_guard_leaves_other_urgencies_alone() -> None:
    assert decide(header="soon", waits="tool loop in progress") == ("soon", "header x-weir-urgency")


def test_reasons_can_stand_in_a_structured_header() -> None:
    for header in (None, "x", "soon"):
        for route in (ROUTE, CLOSED):
            for waits in (None, "tool loop in progress"):
                reason = decide(route, header=header, waits=waits)[1]
                assert reason.isascii()
                assert not set('"\\\r\n') & set(reason)
