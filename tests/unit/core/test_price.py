"""A bill is reckoned as providers do: cached and written tokens apart, cliffs on the whole request."""

from __future__ import annotations

import pytest

from proxy.core.price import LongContext, Price, Rates, Tier

RATES = Rates(input=4, output=20, cached=0.4, cache_write=5)
HALF = Rates(input=2, output=10, cached=0.2, cache_write=2.5)
PRICE = Price(RATES, batch=HALF, long_context=LongContext(272_000, 2, 1.5))


def test_plain_tokens_cost_their_rate() -> None:
    assert PRICE.cost_usd(1_000, 100) == pytest.approx(0.004 + 0.002)


def test_cached_and_written_tokens_are_part_of_the_input() -> None:
    cost = PRICE.cost_usd(1_000, 0, cached_tokens=600, cache_write_tokens=300)
    assert cost == pytest.approx((100 * 4 + 600 * 0.4 + 300 * 5) / 1e6)


def test_beyond_the_cliff_the_whole_request_costs_more() -> None:
    assert PRICE.cost_usd(272_000, 1_000) == pytest.approx(272_000 * 4e-6 + 0.02)
    assert PRICE.cost_usd(272_001, 1_000) == pytest.approx(272_001 * 8e-6 + 0.03)


def test_a_tier_has_its_own_rates_or_no_price() -> None:
    assert PRICE.cost_usd(1_000, tier=Tier.BATCH) == pytest.approx(0.002)
    assert PRICE.cost_usd(1_000, tier=Tier.FLEX) is None
    assert PRICE.rates(Tier.STANDARD) is RATES


def test_more_cached_than_sent_is_no_refund() -> None:
    assert PRICE.cost_usd(10, cached_tokens=20) == pytest.approx(20 * 0.4e-6)
