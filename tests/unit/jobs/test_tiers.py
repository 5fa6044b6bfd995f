"""The cheapest tier that fits: what is chosen, what is refused and why, what comes after a miss."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace

import pytest

from proxy.core.price import Price, Rates, Tier, TierOffer
from proxy.jobs.model import JobTier
from proxy.jobs.tiers import (
    NextTier,
    TierFacts,
    after_miss,
    backoff_seconds,
    choose,
    offers_of,
    p95,
    rescue_at,
    rescue_window,
    spread_rescue_at,
)
from proxy.upstream.providers.prices import load_prices

CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
SHIPPED = load_prices()
OFFERS = offers_of(SHIPPED, "openai")
SECONDS = {
    JobTier.DIRECT: 60.0,
    JobTier.FLEX: 900.0,
    JobTier.BACKGROUND_2H: 7200.0,
    JobTier.BACKGROUND_8H: 28800.0,
    JobTier.BATCH: 14400.0,
}
DAY = 24 * 3600.0


def facts(
    model: str = "gpt-5-mini",
    endpoint: str = CHAT,
    allowed: tuple[str, ...] = ("flex", "background", "batch"),
    seconds_left: float = DAY,
) -> TierFacts:
    return TierFacts(allowed, endpoint, SHIPPED.price("openai", model), OFFERS, SECONDS, seconds_left)


def reason(tier: JobTier, given: TierFacts) -> str:
    return dict(choose(given).refused)[tier]


def test_of_equally_cheap_tiers_the_quicker_comes_first() -> None:
    assert choose(facts()).tiers == (JobTier.FLEX, JobTier.BATCH)


def test_windows_are_for_responses_and_dearer_than_flex() -> None:
    choice = choose(facts(endpoint=RESPONSES))
    assert choice.tiers == (JobTier.FLEX, JobTier.BATCH, JobTier.BACKGROUND_8H, JobTier.BACKGROUND_2H)
    assert choice.reason == ""


def test_a_model_without_flex_takes_the_batch() -> None:
    given = facts("gpt-4o-mini", allowed=("flex", "batch"))
    assert choose(given).tiers == (JobTier.BATCH,)
    assert reason(JobTier.FLEX, given) == "the price table has no price for this model"


def test_an_endpoint_that_a_tier_does_not_carry_is_refused() -> None:
    given = facts("text-embedding-3-small", EMBEDDINGS)
    assert choose(given).tiers == (JobTier.BATCH,)
    assert reason(JobTier.FLEX, given) == "it does not carry /v1/embeddings"


def test_a_request_that_a_tier_cannot_carry_takes_another() -> None:
    given = replace(facts(), unfit={JobTier.BATCH: "it has a speed"})
    assert choose(given).tiers == (JobTier.FLEX,)
    assert reason(JobTier.BATCH, given) == "it has a speed"


def test_what_does_not_fit_the_deadline_with_a_rescue_is_refused() -> None:
    given = facts(seconds_left=2 * 3600.0)
    assert choose(given).tiers == (JobTier.FLEX,)
    assert "the deadline is in 7200 s" in reason(JobTier.BATCH, given)
    assert choose(replace(given, seconds_left=959.0)).tiers == ()
    assert choose(replace(given, seconds_left=960.0)).tiers == (JobTier.FLEX,)


def test_the_time_in_the_pool_counts_for_batches_alone() -> None:
    given = facts(seconds_left=SECONDS[JobTier.BATCH] + SECONDS[JobTier.DIRECT])
    assert JobTier.BATCH in choose(given).tiers
    assert choose(replace(given, packing_seconds=1.0)).tiers == (JobTier.FLEX,)


def test_what_is_observed_counts_before_what_is_assumed() -> None:
    given = replace(facts(seconds_left=3600.0), p95_seconds={**SECONDS, JobTier.BATCH: 600.0})
    assert choose(given).tiers == (JobTier.BATCH, JobTier.FLEX)


def test_only_what_the_route_lists_is_considered() -> None:
    assert choose(facts(allowed=("batch",))).tiers == (JobTier.BATCH,)
    assert choose(facts(allowed=("direct",))).tiers == ()
    assert choose(facts(allowed=())).reason == "the route lists no tier"


def test_a_tier_at_the_full_price_is_no_reason_to_wait() -> None:
    standard = Rates(1, 2, 1, 1)
    given = replace(facts(), price=Price(standard, flex=standard, batch=standard))
    assert choose(given).tiers == ()
    assert "no cheaper" in choose(given).reason


def test_a_provider_without_offers_defers_nothing() -> None:
    given = replace(facts(), offers=offers_of(SHIPPED, "vllm"))
    assert choose(given).tiers == ()
    assert "the provider does not offer it" in choose(given).reason


def test_p95_is_the_nearest_rank_and_needs_five() -> None:
    offer = TierOffer((CHAT,), 900.0)
    assert p95((1.0,) * 4, offer) == 900.0
    assert p95((5.0, 1.0, 2.0, 3.0, 4.0), offer) == 5.0
    assert p95([float(second) for second in range(1, 101)], offer) == 95.0
    assert p95((), None) == 60.0


def test_after_a_miss_the_next_that_fits_is_taken_and_direct_at_last() -> None:
    left = (JobTier.BATCH, JobTier.BACKGROUND_8H)
    seconds = {JobTier.DIRECT: 60.0, JobTier.BATCH: 3600.0, JobTier.BACKGROUND_8H: 600.0}
    assert after_miss(left, seconds, 4000.0) == NextTier(JobTier.BATCH, (JobTier.BACKGROUND_8H,))
    assert after_miss(left, seconds, 3659.0) == NextTier(JobTier.BACKGROUND_8H, ())
    assert after_miss(left, seconds, 659.0) == NextTier(JobTier.DIRECT, ())
    assert after_miss((), seconds, DAY) == NextTier(JobTier.DIRECT, ())
    assert after_miss((JobTier.DIRECT,), seconds, DAY) == NextTier(JobTier.DIRECT, ())
    assert after_miss((JobTier.FLEX,), seconds, DAY) == NextTier(JobTier.DIRECT, ())


def test_a_rescue_begins_as_long_before_the_deadline_as_a_call_takes() -> None:
    assert rescue_at(1000.0, 60.0) == 940.0


@pytest.mark.parametrize(
    ("jobs", "most", "window"), [(0, 0, 0.0), (64, 0, 0.0), (65, 0, 30.0), (640, 0, 270.0), (640, 10, 1890.0)]
)
def test_rescues_are_spread_over_as_many_calls_as_go_on_one_after_the_other(
    jobs: int, most: int, window: float
) -> None:
    assert rescue_window(jobs, 30.0, 64, most) == window


def test_a_rescue_has_its_own_time_in_the_window_and_never_one_after_the_latest() -> None:
    ids = [uuid.UUID(int=number).hex for number in range(2000)]
    times = [spread_rescue_at(job_id, 10_000.0, 60.0, 640.0, 0.0) for job_id in ids]
    assert times == [spread_rescue_at(job_id, 10_000.0, 60.0, 640.0, 0.0) for job_id in ids]
    assert min(times) < 9940.0 - 600
    assert all(9940.0 - 640.0 - 10.0 <= time <= 9940.0 for time in times)
    # Few moments, each with its share of the jobs: so few changes have to be written.
    shares = Counter(times).values()
    assert 64 <= len(shares) <= 129
    assert max(shares) < 3 * 2000 / 64


def test_of_the_time_until_a_rescue_half_is_the_cheaper_tiers_however_many_jobs_there_are() -> None:
    ids = [uuid.UUID(int=number).hex for number in range(500)]
    times = [spread_rescue_at(job_id, 1000.0, 100.0, 64_000.0, 500.0) for job_id in ids]
    assert all(695.0 <= time <= 900.0 for time in times)
    assert spread_rescue_at(ids[0], 1000.0, 100.0, 640.0, 950.0) == 900.0


@pytest.mark.parametrize(
    ("failures", "least", "most"), [(1, 1, 2), (2, 2, 4), (3, 4, 8), (4, 5, 10), (400, 5, 10)]
)
def test_backing_off_doubles_up_to_a_limit(failures: int, least: float, most: float) -> None:
    assert backoff_seconds(failures, 2.0, 10.0, 0.0) == least
    assert backoff_seconds(failures, 2.0, 10.0, 1.0) == most


def test_the_shipped_offers_say_where_they_were_read() -> None:
    assert all(offer.source and offer.date for offer in OFFERS.values())
    price = SHIPPED.price("openai", "gpt-5-mini")
    assert price is not None
    window = price.rates(Tier.BACKGROUND_2H)
    assert window is not None
    assert window.input == pytest.approx(0.7 * price.standard.input)
