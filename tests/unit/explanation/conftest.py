"""Pipelines to explain with: policies as YAML text, the token counter's twin, prices that are easy to add."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.core.clock import ManualClock
from proxy.core.price import Price, PromptCache, Rates
from proxy.pipeline import Pipeline, Request
from proxy.policy.builtin import PLACEHOLDER
from proxy.policy.lane import LaneCapabilities
from proxy.policy.load import load
from proxy.tokens.fixed import FixedCounter

CACHE = PromptCache(is_automatic=True, minimum_tokens=20, lifetime_seconds=300)


class RoundPrices:
    """`big` costs a dollar a million tokens and a tenth of it cached, `small` a tenth of `big`."""

    def price(self, provider: str, model: str) -> Price | None:
        factor = {"big": 1.0, "small": 0.1}.get(model)
        if factor is None:
            return None
        return Price(Rates(factor, 5 * factor, factor / 10, factor), cache=CACHE)


MakePipeline = Callable[..., Pipeline]


@pytest.fixture
def make_pipeline(tmp_path: Path) -> MakePipeline:
    """Return a function from policy text to a pipeline."""

    def make(policy: str, *, is_priced: bool = True, is_pooling: bool = False) -> Pipeline:
        file = tmp_path / "policy.yaml"
        file.write_text(policy, encoding="utf-8")
        policies = load([str(file)], {}, PLACEHOLDER)
        prices = RoundPrices() if is_priced else None
        lanes = LaneCapabilities(coalesce=is_pooling)
        return Pipeline(policies, FixedCounter(), ManualClock(), lanes, prices=prices)

    return make


def chat(body: bytes, **headers: str) -> Request:
    """Return a chat request."""
    return Request("POST", "/v1/chat/completions", headers.get, body)
