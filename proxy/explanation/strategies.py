"""How the coalesce lane would carry a request: which strategy could, and why the others do not."""

from __future__ import annotations

from typing import Any

from proxy.core.decision import Lane
from proxy.core.price import PriceLookup
from proxy.lanes.coalesce.prospects import prospects
from proxy.lanes.lane import Pooling
from proxy.pipeline import Decision, Request
from proxy.policy.model import CoalescePolicy


def strategies(request: Request, decision: Decision, prices: PriceLookup | None) -> list[dict[str, Any]]:
    """Return each strategy in the order in which they are asked, with what keeps it from this request.

    The first without an obstacle carries it. None on other lanes, and of a body that could not be read.
    """
    route, document, dialect = decision.route, decision.document, decision.dialect
    if decision.lane.value is not Lane.COALESCE or route is None or document is None or dialect is None:
        return []
    pooling = Pooling(
        policy=route.coalesce or CoalescePolicy(),
        dialect=dialect,
        document=document,
        model=decision.model,
        urgency=decision.urgency.value,
        is_stream=decision.is_stream,
        asks_usage=decision.asks_usage,
    )
    provider = decision.upstream.provider
    price = None if prices is None else prices.price(provider.value, decision.model)
    found = prospects(pooling, provider, request.method, price)
    return [{"name": each.strategy.value, "obstacle": each.obstacle or None} for each in found]
