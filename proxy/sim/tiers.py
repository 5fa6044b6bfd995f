"""Service tiers that the simulator has: standard, priority and flex processing.

Others are refused as OpenAI refuses a tier that a model does not offer, so that nobody takes a standard
answer for a discounted one.
"""

from __future__ import annotations

from proxy.sim.body import Json, one_of

FLEX = "flex"
_ANSWERED_AS = {
    "auto": "default",
    "default": "default",
    "priority": "priority",
    "fast": "priority",
    # No scale units have been bought here: OpenAI then works on the request as a standard one.
    "scale": "default",
    FLEX: FLEX,
}


def read_tier(body: Json, offers_flex: bool = False) -> str:
    """Return the tier in which a request is worked on and billed. Raises ApiError for one not on offer."""
    offered = tuple(name for name in _ANSWERED_AS if offers_flex or name != FLEX)
    return _ANSWERED_AS[one_of(body, "service_tier", offered, "auto")]
