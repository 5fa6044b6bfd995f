"""Whose learnt limit holds for a request: what `limits` keeps, from what the lane carries."""

from __future__ import annotations

from proxy.lanes.coalesce.limits import Taker, owner_of
from proxy.lanes.lane import Outgoing


def taker_of(outgoing: Outgoing, dialect: str, model: str) -> Taker:
    """Return who takes so many inputs where a request goes."""
    caller = b"" if outgoing.pooling is None else outgoing.pooling.caller
    return Taker(owner_of(outgoing.head, caller), outgoing.pool.target.name, dialect, model)
