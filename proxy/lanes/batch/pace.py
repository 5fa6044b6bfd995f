"""How fast tiers are, for deciding without asking the store.

Owns a copy that somebody else keeps fresh (`refresh`, called every few seconds). Deciding happens in threads
as well: everything here is one assignment or one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.core.price import OfferLookup
from proxy.core.upstream import Upstream
from proxy.jobs.model import JobTier
from proxy.jobs.store import JobStore
from proxy.jobs.tiers import PRICE_TIERS, offers_of, p95

_MOST_KEYS = 256

Key = tuple[str, str, str]
"""Upstream, provider, model."""


class Pace:
    """Observed times by upstream and model."""

    def __init__(self, offers: OfferLookup) -> None:
        self._offers = offers
        self._known: dict[Key, Mapping[JobTier, float]] = {}
        self._asked: set[Key] = set()
        self.live_jobs = 0
        """How many jobs had not ended when somebody last counted."""

    def p95_seconds(self, upstream: Upstream, model: str) -> Mapping[JobTier, float]:
        """Return until when 95 of 100 answers are there: as observed, else as the provider's data say."""
        key = (upstream.name, upstream.provider.value, model)
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._asked) < _MOST_KEYS:
            self._asked.add(key)
        offers = offers_of(self._offers, upstream.provider.value)
        return {tier: p95((), offers.get(tier)) for tier in (*offers, JobTier.DIRECT)}

    async def refresh(self, store: JobStore) -> None:
        """Look at the observed times of everything that was asked for. Raises `StoreUnavailable`."""
        asked = (*self._known, *(self._asked - self._known.keys()))
        self._known = {key: await self._look(store, key) for key in asked[:_MOST_KEYS]}
        self._asked.clear()

    async def _look(self, store: JobStore, key: Key) -> Mapping[JobTier, float]:
        upstream, provider, model = key
        offers = offers_of(self._offers, provider)
        return {
            tier: p95(await store.completions(upstream, model, tier), offers.get(tier))
            for tier in PRICE_TIERS
            if tier in offers or tier is JobTier.DIRECT
        }
