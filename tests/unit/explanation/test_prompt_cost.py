from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.document import Document
from proxy.core.price import Price, PromptCache, Rates
from proxy.core.stages import Stage
from proxy.core.upstream import Upstream
from proxy.explanation.prompt_cost import Prompt, SeenPrefixes, read_prompt
from proxy.tokens.fixed import FixedCounter
from tests.unit.explanation.conftest import RoundPrices

UPSTREAM = Upstream("up", "http://up.invalid/v1")


def prompt(model: str = "big", upstream: Upstream = UPSTREAM, dialect: str = "chat", **fields: Any) -> Prompt:
    document = Document.parse(json.dumps({"model": model} | fields).encode())
    return read_prompt(Stage(document, upstream, model), dialect, FixedCounter(), RoundPrices())


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text * 40} for text in texts]


def test_a_longer_conversation_hits_what_came_by_before() -> None:
    seen = SeenPrefixes()
    first, second = prompt(messages=turns("a", "b")), prompt(messages=turns("a", "b", "c"))
    assert seen.cached_tokens(first) == 0
    assert seen.cached_tokens(second) == first.tokens
    assert seen.cached_tokens(second) == second.tokens


@pytest.mark.parametrize(
    "other",
    [
        {"messages": turns("x", "b", "c")},
        {"messages": turns("a", "b", "c"), "tools": [{"type": "function"}]},
        {"messages": turns("a", "b", "c"), "model": "small"},
        {"messages": turns("a", "b", "c"), "upstream": Upstream("other", "http://o.invalid/v1")},
    ],
)
def test_another_beginning_model_or_upstream_hits_nothing(other: dict[str, Any]) -> None:
    seen = SeenPrefixes()
    seen.cached_tokens(prompt(messages=turns("a", "b")))
    assert seen.cached_tokens(prompt(**other)) == 0


def test_short_prefixes_are_not_cached() -> None:
    seen = SeenPrefixes()
    short = prompt(messages=[{"role": "user", "content": "hi"}])
    assert [seen.cached_tokens(short) for _ in range(2)] == [0, 0]


def test_marked_caches_hold_only_what_is_marked() -> None:
    price = Price(Rates(1, 5, 0.1, 1.25), cache=PromptCache(False, 20, 300))
    for is_marked, cached in ((False, 0), (True, 90)):
        seen = SeenPrefixes()
        said = Prompt((90,), (1,), price, is_marked)
        assert [seen.cached_tokens(said) for _ in range(2)] == [0, cached]
    assert prompt(messages=[{"content": [{"cache_control": {}}]}]).is_marked


def test_what_is_written_to_a_cache_costs_its_own_price() -> None:
    written = Price(Rates(1, 5, 0.1, 1.25), cache=PromptCache(True, 20, 300))
    assert Prompt((100,), (1,), written).input_usd() == pytest.approx(125e-6)
    assert Prompt((100,), (1,), written).input_usd(60) == pytest.approx((6 + 50) * 1e-6)
    assert Prompt((10,), (1,), written).input_usd() == pytest.approx(10e-6)
    assert Prompt((100,), (1,), None).input_usd() is None


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("responses", {"instructions": "i" * 80, "input": "q" * 80}),
        ("messages", {"system": "i" * 80, "messages": [{"role": "user", "content": "q" * 80}]}),
        ("completions", {"prompt": ["i" * 80, "q" * 80]}),
        ("embeddings", {"input": ["i" * 80, "q" * 80]}),
    ],
)
def test_each_api_is_read(dialect: str, fields: dict[str, Any]) -> None:
    measured = prompt(dialect=dialect, **fields)
    assert len(measured.totals) == 2
    assert 40 <= measured.tokens <= 60


def test_what_is_not_understood_has_no_tokens() -> None:
    assert prompt(messages=7).tokens > 0
    stage = Stage(Document.parse(b"{}"), UPSTREAM, "")
    assert read_prompt(stage, None, FixedCounter(), None).tokens == 0
