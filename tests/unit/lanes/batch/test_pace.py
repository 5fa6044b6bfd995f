from __future__ import annotations

import asyncio

import pytest

from proxy.core.upstream import Provider, Upstream
from proxy.jobs.memory_store import MemoryStore
from proxy.jobs.model import JobTier
from proxy.jobs.store import StoreUnavailable
from proxy.lanes.batch.pace import Pace
from proxy.upstream.providers.prices import load_prices
from tests.unit.lanes.batch.benches import MemoryStoreThatFails

PRICES = load_prices()
UPSTREAM = Upstream("openai", "https://api.example/v1", provider=Provider.OPENAI)


def test_what_was_observed_replaces_what_was_assumed() -> None:
    async def main() -> None:
        store, pace = MemoryStore(), Pace(PRICES)
        assumed = pace.p95_seconds(UPSTREAM, "gpt-5-mini")
        for _ in range(10):
            await store.observe_completion("openai", "gpt-5-mini", JobTier.FLEX, 7.0)
        assert pace.p95_seconds(UPSTREAM, "gpt-5-mini") == assumed, "nobody has looked yet"
        await pace.refresh(store)
        observed = pace.p95_seconds(UPSTREAM, "gpt-5-mini")
        assert observed[JobTier.FLEX] == 7.0 < assumed[JobTier.FLEX]
        assert observed[JobTier.DIRECT] == assumed[JobTier.DIRECT]
        assert pace.p95_seconds(UPSTREAM, "gpt-5-nano")[JobTier.FLEX] == assumed[JobTier.FLEX]

    asyncio.run(main())


def test_a_store_that_is_away_leaves_what_is_known() -> None:
    async def main() -> None:
        store, pace = MemoryStoreThatFails(), Pace(PRICES)
        pace.p95_seconds(UPSTREAM, "gpt-5-mini")
        for _ in range(10):
            await store.observe_completion("openai", "gpt-5-mini", JobTier.FLEX, 7.0)
        await pace.refresh(store)
        store.is_away = True
        with pytest.raises(StoreUnavailable):
            await pace.refresh(store)
        assert pace.p95_seconds(UPSTREAM, "gpt-5-mini")[JobTier.FLEX] == 7.0

    asyncio.run(main())


def test_callers_cannot_fill_it() -> None:
    async def main() -> None:
        store, pace = MemoryStore(), Pace(PRICES)
        for number in range(2_000):
            pace.p95_seconds(UPSTREAM, f"model-{number}")
        await pace.refresh(store)
        assert len(pace._known) <= 256

    asyncio.run(main())
