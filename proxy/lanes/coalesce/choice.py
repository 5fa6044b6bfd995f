"""Which strategy may carry a request, and under which key: one pure function for each.

They are asked in this order, and the first that gives a key carries:

    share    the same answer for whoever asks: temperature 0, a seed, or by policy
    merge    inputs in a list: embeddings, moderations, completions
    sample   the same request, of which each caller wants a draw of its own
    warm     a prompt whose beginning others share; never where somebody waits for the answer
    pace     anything, where the policy limits how many are in flight

A completions request could be shared and merged: it is shared only with a seed, which is not merged, or
where the policy does not merge.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.core.decision import Strategy
from proxy.lanes.coalesce.keys import request_key
from proxy.lanes.coalesce.merge_parts import FIELDS
from proxy.lanes.coalesce.sample_choices import may_sample
from proxy.lanes.coalesce.share_fields import UNCOMPARED, is_well_formed
from proxy.lanes.coalesce.share_rules import may_share
from proxy.lanes.coalesce.warm_prefix import may_be_warmed
from proxy.lanes.lane import Outgoing, Pooling

KeyOf = Callable[[Pooling, Outgoing], bytes | None]


def key_of(strategy: Strategy, pooling: Pooling, outgoing: Outgoing) -> bytes | None:
    """Return the key under which a strategy carries a request, `None` where it does not."""
    if strategy not in pooling.policy.strategies or outgoing.body is None or outgoing.head.upgrade:
        return None
    return _KEYS[strategy](pooling, outgoing)


def _share(pooling: Pooling, outgoing: Outgoing) -> bytes | None:
    is_merged = _may_merge(pooling) and Strategy.MERGE in pooling.policy.strategies
    if is_merged or not _is_posted(outgoing) or not may_share(pooling):
        return None
    if not is_well_formed(pooling.document):
        return None
    without = UNCOMPARED.difference(pooling.policy.split_on)
    return _key(Strategy.SHARE, pooling, outgoing, without=without)


def _merge(pooling: Pooling, outgoing: Outgoing) -> bytes | None:
    if not _is_posted(outgoing) or not _may_merge(pooling):
        return None
    without = frozenset({FIELDS[pooling.dialect.name]})
    return _key(Strategy.MERGE, pooling, outgoing, without=without, any_coding=True)


def _may_merge(pooling: Pooling) -> bool:
    name = pooling.dialect.name
    if name == "completions":
        return pooling.document.get("seed") in (None, b"null")
    return name in FIELDS


def _sample(pooling: Pooling, outgoing: Outgoing) -> bytes | None:
    if not _is_posted(outgoing) or not may_sample(pooling, outgoing.pool.target.upstream.provider):
        return None
    if Strategy.SHARE in pooling.policy.strategies and may_share(pooling):
        # One answer for all was wanted, and this is the call for it.
        return None
    return _key(Strategy.SAMPLE, pooling, outgoing, any_coding=True)


def _warm(pooling: Pooling, outgoing: Outgoing) -> bytes | None:
    if not _is_posted(outgoing) or not may_be_warmed(pooling):
        return None
    return _key_without_body(Strategy.WARM, pooling, outgoing)


def _pace(pooling: Pooling, outgoing: Outgoing) -> bytes | None:
    if not pooling.policy.max_in_flight:
        return None
    return _key_without_body(Strategy.PACE, pooling, outgoing)


def _is_posted(outgoing: Outgoing) -> bool:
    return outgoing.head.method == b"POST"


def _key(
    strategy: Strategy,
    pooling: Pooling,
    outgoing: Outgoing,
    without: frozenset[str] = frozenset(),
    any_coding: bool = False,
) -> bytes:
    return request_key(
        strategy.value,
        id(outgoing.pool),
        outgoing.head,
        pooling.model,
        pooling.document,
        without,
        kind=pooling.caller,
        any_coding=any_coding,
    )


def _key_without_body(strategy: Strategy, pooling: Pooling, outgoing: Outgoing) -> bytes:
    pool_id, head, model = id(outgoing.pool), outgoing.head, pooling.model
    return request_key(strategy.value, pool_id, head, model, None, kind=pooling.caller, any_coding=True)


_KEYS: dict[Strategy, KeyOf] = {
    Strategy.SHARE: _share,
    Strategy.MERGE: _merge,
    Strategy.SAMPLE: _sample,
    Strategy.WARM: _warm,
    Strategy.PACE: _pace,
}
