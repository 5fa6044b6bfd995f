"""Service tiers that the simulator has: standard and priority processing.

Others are refused as OpenAI refuses a tier that a model does not offer, so that nobody takes a standard
answer for a discounted one.
"""

from __future__ import annotations

from proxy.sim.body import Json, one_of

_ANSWERED_AS = {"auto": "default", "default": "default", "priority": "priority"}


def read_tier(body: Json) -> str:
    """Return the tier in which a request is worked on and billed. Raises ApiError for one not on offer."""
    return _ANSWERED_AS[one_of(body, "service_tier", tuple(_ANSWERED_AS), "auto")]
