"""Which strategies could carry a request, and why each other one does not: said before anything is sent.

The rules are those of `choice` and the carriers. Whether anybody comes to be carried with is not known here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from proxy.core.decision import Strategy, Urgency
from proxy.core.price import Price
from proxy.core.upstream import Provider
from proxy.lanes.coalesce.merge_parts import FIELDS, part_of
from proxy.lanes.coalesce.sample_choices import may_sample
from proxy.lanes.coalesce.share_fields import is_well_formed
from proxy.lanes.coalesce.share_rules import may_share
from proxy.lanes.coalesce.warm_prefix import cacheable_prefix, may_be_warmed, pays_to_warm
from proxy.lanes.lane import Pooling


class Prospect(msgspec.Struct, frozen=True):
    """A strategy, and what keeps it from carrying the request; nothing does where `obstacle` is empty."""

    strategy: Strategy
    obstacle: str


def prospects(pooling: Pooling, provider: Provider, method: str, price: Price | None) -> list[Prospect]:
    """Return what each strategy says to a request, in the order in which they are asked."""

    def obstacle(strategy: Strategy) -> str:
        if strategy not in pooling.policy.strategies:
            return "not among the route's strategies"
        if method != "POST" and strategy is not Strategy.PACE:
            return "not a POST"
        return _OBSTACLES[strategy](pooling, provider, price)

    return [Prospect(strategy, obstacle(strategy)) for strategy in _OBSTACLES]


def _share(pooling: Pooling, provider: Provider, price: Price | None) -> str:
    if Strategy.MERGE in pooling.policy.strategies and not _merge_kind(pooling):
        return "merged instead"
    if not may_share(pooling):
        return "no temperature 0 and no seed, or it depends on what the provider keeps or looks at"
    return "" if is_well_formed(pooling.document) else "a field that is not compared is not well-formed"


def _merge(pooling: Pooling, provider: Provider, price: Price | None) -> str:
    kind = _merge_kind(pooling)
    if kind:
        return kind
    if pooling.policy.max_items < 2 or len(pooling.document.to_bytes()) > pooling.policy.max_bytes:
        return "larger than a call may be"
    part = part_of(pooling.dialect.name, pooling.document)
    return "its inputs cannot be united with others" if part is None else ""


def _merge_kind(pooling: Pooling) -> str:
    if pooling.dialect.name not in FIELDS:
        return "not embeddings, moderations or completions"
    is_seeded = pooling.dialect.name == "completions" and pooling.document.get("seed") not in (None, b"null")
    return "a seed" if is_seeded else ""


def _sample(pooling: Pooling, provider: Provider, price: Price | None) -> str:
    if not may_sample(pooling, provider):
        return "not a plain chat for one choice, or a provider or model that gives no more at once"
    is_shared = Strategy.SHARE in pooling.policy.strategies and may_share(pooling)
    return "shared instead" if is_shared else ""


def _warm(pooling: Pooling, provider: Provider, price: Price | None) -> str:
    if pooling.urgency is Urgency.INTERACTIVE:
        return "interactive"
    if not may_be_warmed(pooling):
        return "too short for a prompt cache"
    if price is None or price.cache is None or not pays_to_warm(pooling, price):
        return "too short for this model's prompt cache, or no price says that cached tokens are cheaper"
    prefix = cacheable_prefix(b"", pooling, price.cache)
    return "" if prefix is not None else "no prefix that is long enough and marked where that is needed"


def _pace(pooling: Pooling, provider: Provider, price: Price | None) -> str:
    return "" if pooling.policy.max_in_flight else "max_in_flight is not set"


_OBSTACLES: dict[Strategy, Callable[[Pooling, Provider, Price | None], str]] = {
    Strategy.SHARE: _share,
    Strategy.MERGE: _merge,
    Strategy.SAMPLE: _sample,
    Strategy.WARM: _warm,
    Strategy.PACE: _pace,
}
