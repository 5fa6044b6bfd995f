"""Decides whether and how a request is deferred, for the pipeline and for whoever explains.

Owns the order of the obstacles. Synchronous and without I/O: what the store knows comes from `Pace`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from proxy.core.document import Document
from proxy.core.price import OfferLookup, PriceLookup
from proxy.core.upstream import Upstream
from proxy.dialects.dialect import Dialect
from proxy.jobs.model import Delivery, JobTier
from proxy.jobs.tiers import TierFacts, choose, offers_of, rescue_window
from proxy.lanes.batch.background import continues_deferred
from proxy.lanes.batch.identity import has_credentials
from proxy.lanes.batch.pace import Pace
from proxy.lanes.batch.plan import (
    DeferralPlan,
    HeaderLookup,
    asks_soonest,
    delivery_of,
    needs_tokens,
    odd_background,
    terms,
)
from proxy.policy.model import BatchPolicy, KeepAlive
from proxy.upstream.providers.batch_apis import line_obstacle
from proxy.upstream.request_head import CREDENTIAL_HEADERS

STORE_UNAVAILABLE = "job store unavailable"
_CREDENTIAL_NAMES = tuple(name.decode() for name in sorted(CREDENTIAL_HEADERS))


class Candidate(msgspec.Struct, frozen=True):
    """A request that would be deferred. `is_known_path`: its API knows it by `dialect.path`."""

    policy: BatchPolicy
    upstream: Upstream
    is_known_path: bool
    dialect: Dialect
    document: Document
    model: str
    is_stream: bool
    header: HeaderLookup
    method: str
    is_ticket_allowed: bool
    deadline_seconds: float | None
    patience_seconds: float
    webhook: str = ""

    @property
    def delivery(self) -> Delivery:
        """How its caller wants to meet the answer."""
        prefer = self.header("prefer") or ""
        return delivery_of(self.document, self.dialect, prefer, self.is_ticket_allowed)

    @property
    def needs_tokens(self) -> bool:
        """Whether its caller needs tokens as they come."""
        return needs_tokens(self.document, self.dialect, self.is_stream, self.policy, self.delivery)

    @property
    def waits_silently(self) -> bool:
        """Whether its caller waits on the connection and hears nothing meanwhile."""
        is_silent = not self.is_stream and self.policy.keep_alive is KeepAlive.OFF
        return is_silent and self.delivery is Delivery.HOLD


class Deferring:
    """What a process that keeps jobs can defer. `keeps_credentials`: it can seal those of callers."""

    def __init__(
        self,
        prices: PriceLookup,
        offers: OfferLookup,
        pace: Pace,
        keeps_credentials: bool,
        is_available: Callable[[], bool],
    ) -> None:
        self._prices = prices
        self._offers = offers
        self._pace = pace
        self._keeps_credentials = keeps_credentials
        self._is_available = is_available

    def consider(self, candidate: Candidate) -> DeferralPlan | str:
        """Return how a request is deferred, or why it is not."""
        obstacle = self._obstacle(candidate)
        if obstacle is not None:
            return obstacle
        document, delivery = candidate.document, candidate.delivery
        allowed = terms(
            document,
            delivery,
            candidate.policy,
            candidate.is_stream,
            candidate.deadline_seconds,
            candidate.patience_seconds,
        )
        upstream, endpoint = candidate.upstream, candidate.dialect.path
        provider = upstream.provider.value
        price = self._prices.price(provider, candidate.model)
        # Callers may name any model: only those that may be deferred are worth knowing more about.
        paces = {} if price is None else self._pace.p95_seconds(upstream, candidate.model)
        unbatched = line_obstacle(upstream.provider, endpoint, document, candidate.header)
        choice = choose(
            TierFacts(
                candidate.policy.upstream_tiers,
                endpoint,
                price,
                offers_of(self._offers, provider),
                paces,
                allowed.deadline_seconds,
                candidate.policy.flush_after_seconds,
                {} if unbatched is None else {JobTier.BATCH: unbatched},
            )
        )
        if not choice.tiers:
            return f"no cheaper tier fits ({choice.reason})"
        return DeferralPlan(
            delivery,
            choice.tiers,
            endpoint,
            allowed.deadline_seconds,
            allowed.hold_seconds,
            paces[JobTier.DIRECT],
            rescue_window(self._pace.live_jobs, paces[JobTier.DIRECT], most=upstream.max_connections),
            candidate.webhook,
        )

    def _obstacle(self, candidate: Candidate) -> str | None:
        if candidate.method != "POST":
            return "only a POST is deferred"
        if not candidate.is_known_path:
            return "this path has no cheaper tier"
        if candidate.header("origin") is not None:
            # Its answer needs the upstream's CORS headers, which no batch has.
            return "a browser asks"
        odd = odd_background(candidate.document, candidate.dialect)
        if odd is not None:
            return odd
        if candidate.delivery is Delivery.BACKGROUND and asks_soonest(candidate.document):
            return "the soonest answer is asked for"
        if continues_deferred(candidate.document):
            return "it continues a deferred response"
        if not self._can_keep(candidate):
            return "credentials cannot be kept without WEIR_SECRET_KEY"
        return None if self._is_available() else STORE_UNAVAILABLE

    def _can_keep(self, candidate: Candidate) -> bool:
        if candidate.upstream.api_key is not None or self._keeps_credentials:
            return True
        return not has_credentials(name for name in _CREDENTIAL_NAMES if candidate.header(name) is not None)
