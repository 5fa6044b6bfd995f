"""The price table that ships is complete in itself, and a table with a mistake is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.core.price import Tier
from proxy.core.upstream import Provider
from proxy.upstream.providers.prices import PriceTable, load_prices

SHIPPED = load_prices()
HEAD = "version: 1\ndate: '2026-11-30'\nsource: somewhere\nproviders:\n"


def load(tmp_path: Path, text: str) -> PriceTable:
    file = tmp_path / "prices.yaml"
    file.write_text(HEAD + text)
    return load_prices(file)


@pytest.mark.parametrize(
    ("provider", "model", "figures"),
    [
        ("openai", "gpt-6-sol", (2, 10, 0.2, 2.5)),
        ("openai", "gpt-5.4-mini-2026-03-17", (0.75, 4.5, 0.075, 0.75)),
        ("openai", "gpt-4o-2024-05-13", (5, 15, 5, 5)),
        ("openai", "gpt-4o-2024-11-20", (2.5, 10, 1.25, 2.5)),
        ("azure", "gpt-4o", (2.5, 10, 1.25, 2.5)),
        ("anthropic", "claude-opus-5-5", (4, 20, 0.2, 5)),
        ("anthropic", "claude-haiku-4-5-20251001", (1, 5, 0.1, 1.25)),
        ("gemini", "gemini-3.8-flash", (0.75, 3.75, 0.075, 0.75)),
        ("openai", "text-embedding-3-small", (0.02, 0, 0.02, 0.02)),
        ("openai", "omni-moderation-latest", (0, 0, 0, 0)),
    ],
)
def test_ships_prices(provider: str, model: str, figures: tuple[float, ...]) -> None:
    price = SHIPPED.price(provider, model)
    assert price is not None
    rates = price.standard
    assert (rates.input, rates.output, rates.cached, rates.cache_write) == figures


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-9"),
        ("openai", ""),
        ("openai", "gpt-4o-audio-preview"),
        ("openai", "gpt-4o-mini-realtime"),
        ("azure", "our-deployment"),
        ("vllm", "gpt-4o"),
        ("generic", "gpt-4o"),
        ("openai", "\ud800"),
    ],
)
def test_what_is_not_listed_has_no_price(provider: str, model: str) -> None:
    assert SHIPPED.price(provider, model) is None


def test_every_shipped_price_is_plausible_and_says_where_it_comes_from() -> None:
    known = {provider.value for provider in Provider}
    for provider, model, price in SHIPPED.every():
        where = f"{provider} {model}"
        rates = price.standard
        assert provider in known, where
        assert price.source, where
        assert price.date >= "2026-11-30", where
        assert 0 <= rates.cached <= rates.input <= rates.cache_write <= 2 * rates.input, where
        for tier in (Tier.BATCH, Tier.FLEX):
            other = price.rates(tier)
            assert other is None or other.input <= rates.input, where
            assert other is None or other.output <= rates.output, where
        if rates.cached == rates.input:
            assert price.cache is None, "no discount, no cache to respect: " + where


def test_batches_and_flex_are_half_price_where_they_are_offered() -> None:
    price = SHIPPED.price("openai", "gpt-5.6-sol")
    assert price is not None
    for tier in (Tier.BATCH, Tier.FLEX):
        assert price.rates(tier) is not None
        assert price.cost_usd(1_000_000, 0, tier=tier) == pytest.approx(2.0 * 2)  # beyond the cliff
    mini = SHIPPED.price("openai", "gpt-4.1-mini")
    assert mini is not None
    assert mini.flex is None


def test_an_exact_name_counts_before_a_pattern(tmp_path: Path) -> None:
    table = load(
        tmp_path,
        "  openai:\n    models:\n"
        "      - {models: ['gpt-*'], input: 1, output: 1}\n"
        "      - {models: [gpt-4o, 'gpt-4o*'], input: 2, output: 2}\n",
    )
    assert [table.price("openai", model).standard.input for model in ("gpt-4o", "gpt-4o-x", "gpt-5")] == [  # type: ignore[union-attr]
        2,
        1,
        1,
    ]


def test_a_cache_can_be_switched_off_for_a_model(tmp_path: Path) -> None:
    table = load(
        tmp_path,
        "  openai:\n    cache: {kind: automatic, minimum_tokens: 1024, lifetime_seconds: 300}\n    models:\n"
        "      - {models: [a], input: 1, output: 1, cached: 0.1}\n"
        "      - {models: [b], input: 1, output: 1, cache: off}\n",
    )
    first, second = table.price("openai", "a"), table.price("openai", "b")
    assert first is not None
    assert second is not None
    assert first.cache is not None
    assert first.cache.is_automatic
    assert second.cache is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  openai:\n    models:\n      - {models: [a], input: 1}\n", "output"),
        ("  openai:\n    models:\n      - {models: [a], input: -1, output: 1}\n", ">= 0"),
        ("  openai:\n    models:\n      - {models: [a], input: 1, output: 1, cashed: 1}\n", "cashed"),
        ("  openai:\n    models:\n      - {models: [a], input: 1, output: 1, cache: maybe}\n", "maybe"),
        ("  azure: {like: openai}\n", "there is no provider openai"),
        ("  openai: [\n", "flow node"),
    ],
)
def test_a_mistake_in_a_table_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        load(tmp_path, text)


def test_windows_cost_a_share_of_the_standard_rates_where_the_provider_offers_them() -> None:
    price = SHIPPED.price("openai", "gpt-5-mini")
    assert price is not None
    two, eight = price.rates(Tier.BACKGROUND_2H), price.rates(Tier.BACKGROUND_8H)
    assert two is not None
    assert eight is not None
    assert (two.output, eight.output) == pytest.approx((0.7 * 2, 0.6 * 2))
    azure = SHIPPED.price("azure", "gpt-5-mini")
    assert azure is not None
    assert azure.rates(Tier.BACKGROUND_2H) is None


def test_offers_say_which_paths_a_tier_carries() -> None:
    offer = SHIPPED.offer("openai", Tier.FLEX)
    assert offer is not None
    assert offer.endpoints == ("/v1/chat/completions", "/v1/responses")
    assert SHIPPED.offer("vllm", Tier.BATCH) is None
    assert SHIPPED.offer("azure", Tier.FLEX) is None


def test_an_operators_file_goes_over_the_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        HEAD + "  generic:\n    tiers: {batch: {endpoints: [/v1/embeddings], typical_seconds: 60}}\n"
        "    models: [{models: [our-model], input: 1, output: 2, batch: 0.5}]\n"
        "  openai: {models: [{models: [gpt-4o], input: 9, output: 9}]}\n"
    )
    table = load_prices(own=own)
    ours, gpt, other = (
        table.price("generic", "our-model"),
        table.price("openai", "gpt-4o"),
        table.price("openai", "gpt-4o-mini"),
    )
    assert ours is not None
    assert ours.batch is not None
    assert ours.batch.output == 1.0
    assert gpt is not None
    assert (gpt.standard.input, gpt.source) == (9, "somewhere")
    assert other == SHIPPED.price("openai", "gpt-4o-mini")
    offer = table.offer("generic", Tier.BATCH)
    assert offer is not None
    assert (offer.endpoints, offer.typical_seconds) == (("/v1/embeddings",), 60.0)


def test_an_offer_with_a_mistake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prices\.yaml"):
        load(tmp_path, "  openai: {tiers: {batch: {typical_seconds: 60}}}\n")
    with pytest.raises(ValueError, match=r"prices\.yaml"):
        load(tmp_path, "  openai: {tiers: {fast: {endpoints: [], typical_seconds: 60}}}\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  generic:\n    models: [{models: [a], input: 1}]\n", "output` - at `providers.generic.models[0]`"),
        (
            "  openai: {}\n  generic: {tiers: {batch: {endpoints: []}}}\n",
            "at `providers.generic.tiers.batch`",
        ),
        ("  generic: {tiers: {flex: {endpoints: 1, typical_seconds: 1}}}\n", "generic.tiers.flex.endpoints`"),
        ("  openei: {}\n", "providers.openei: there is no such provider (did you mean openai?)"),
        ("  house: {}\n", "it is one of openai, azure"),
    ],
)
def test_a_mistake_in_an_operators_file_is_told_with_file_and_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(HEAD + text)
    with pytest.raises(ValueError, match=re.escape(problem)) as told:
        load_prices(own=own)
    assert str(told.value).startswith(f"{own}: ")


def test_an_operators_provider_may_be_like_a_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(HEAD + "  generic: {like: openai}\n")
    price, shipped = (
        load_prices(own=own).price("generic", "gpt-5-mini"),
        SHIPPED.price("openai", "gpt-5-mini"),
    )
    assert price is not None
    assert shipped is not None
    assert (price.batch, price.source) == (shipped.batch, shipped.source)
