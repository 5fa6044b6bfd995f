from __future__ import annotations

import pytest

from proxy.sim.errors import ApiError
from proxy.sim.tiers import read_tier


def test_answers_in_the_tier_that_was_used() -> None:
    assert read_tier({}) == "default"
    assert read_tier({"service_tier": "auto"}) == "default"
    assert read_tier({"service_tier": "priority"}) == "priority"
    assert read_tier({"service_tier": "fast"}) == "priority"
    assert read_tier({"service_tier": "scale"}) == "default"
    assert read_tier({"service_tier": "flex"}, offers_flex=True) == "flex"


def test_refuses_a_tier_that_is_not_on_offer() -> None:
    with pytest.raises(ApiError) as refused:
        read_tier({"service_tier": "overnight"})
    assert refused.value.param == "service_tier"
    with pytest.raises(ApiError):
        read_tier({"service_tier": "flex"})
