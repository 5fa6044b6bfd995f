"""Owns how urgent a request is: the first rule that decides, then the guards, each with its reason. Pure.

Order: an allowed `x-weir-urgency` header > `service_tier` / `background` in the body > `stream: true` >
the route's rules > the route's default. The guards come last and always win.

A request that continues a tool loop, or that a person is waiting on, is never deferrable: it becomes
*interactive*, not *soon*, because such calls follow one another and every wait adds up along the chain.
Reasons are ASCII without quotes (they stand in a structured header) and never repeat what a caller sent.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from proxy.core.decision import Urgency, UrgencyDecision
from proxy.policy.model import Match, Route

URGENCY_HEADER = "x-weir-urgency"

_BY_HEADER = {urgency.value: urgency for urgency in Urgency}

# Tier names: OpenAI (auto, default, flex, scale, priority, fast, ultrafast), Groq and Gemini (flex).
# A tier that says nothing about urgency (auto, default, scale, standard_only) decides nothing.
_BY_SERVICE_TIER = {
    "flex": UrgencyDecision(Urgency.DEFERRABLE, "service_tier flex"),
    "priority": UrgencyDecision(Urgency.INTERACTIVE, "service_tier priority"),
    "fast": UrgencyDecision(Urgency.INTERACTIVE, "service_tier fast"),
    "ultrafast": UrgencyDecision(Urgency.INTERACTIVE, "service_tier ultrafast"),
}
_BACKGROUND = UrgencyDecision(Urgency.DEFERRABLE, "background requested")
_STREAM = UrgencyDecision(Urgency.INTERACTIVE, "stream requested")
_DEFAULTS = {urgency: UrgencyDecision(urgency, "route default") for urgency in Urgency}


class UrgencyFacts(msgspec.Struct, frozen=True):
    """What is known about a request when its urgency is decided.

    header            the value of `x-weir-urgency`, if sent (whether it counts is decided here)
    service_tier      the body's `service_tier`, if it is a string
    background        the body says `background: true`
    stream            the caller asked for an event stream
    waits_for_person  returns why the request belongs to a tool loop or a conversation in progress, if it
                      does; asked only for what would be deferred, since it reads the conversation
    holds             whether the match of one of the route's rules holds (`RouteTable.holds`)
    """

    header: str | None
    service_tier: str | None
    background: bool
    stream: bool
    waits_for_person: Callable[[], str | None]
    holds: Callable[[Match], bool]


def classify(route: Route, facts: UrgencyFacts) -> UrgencyDecision:
    """Return the urgency of a request on `route`, with the rule that decided."""
    ignored = ""
    decision = None
    if facts.header is not None:
        if URGENCY_HEADER not in route.allow_caller:
            ignored = f"; {URGENCY_HEADER} ignored: the route does not allow it"
        else:
            wanted = _BY_HEADER.get(facts.header.strip().lower())
            if wanted is None:
                ignored = f"; {URGENCY_HEADER} ignored: not one of {', '.join(_BY_HEADER)}"
            else:
                decision = UrgencyDecision(wanted, f"header {URGENCY_HEADER}")
    if decision is None:
        decision = _by_body(facts) or _by_route(route, facts)
    if decision.value is Urgency.DEFERRABLE and (waits := facts.waits_for_person()) is not None:
        reason = f"{waits}: never deferrable ({decision.reason})"
        decision = UrgencyDecision(Urgency.INTERACTIVE, reason)
    return UrgencyDecision(decision.value, decision.reason + ignored) if ignored else decision


def _by_body(facts: UrgencyFacts) -> UrgencyDecision | None:
    if facts.service_tier is not None:
        decision = _BY_SERVICE_TIER.get(facts.service_tier)
        if decision is not None:
            return decision
    if facts.background:
        return _BACKGROUND
    return _STREAM if facts.stream else None


def _by_route(route: Route, facts: UrgencyFacts) -> UrgencyDecision:
    for number, rule in enumerate(route.urgency.rules, start=1):
        if facts.holds(rule.match):
            return UrgencyDecision(rule.urgency, f"route rule {number}")
    return _DEFAULTS[route.urgency.default]
