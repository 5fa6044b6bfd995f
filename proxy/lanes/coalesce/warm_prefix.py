"""The beginnings of a request that a provider may cache, and how long each is. Pure.

A prefix ends behind the system text (with tools and answer format) or behind a message; it is known by a
digest of everything up to there. Which ends count follows the provider: automatic caches find any common
beginning, others only what ends at a marker. Lengths are estimated from bytes: nothing is counted here.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeVar

import msgspec

from proxy.core.decision import Urgency
from proxy.core.price import Price, PromptCache
from proxy.dialects.conversation import conversation_fields, has_cache_mark
from proxy.dialects.prompt_caching import takes_breakpoints
from proxy.lanes.lane import Pooling

BYTES_PER_TOKEN = 4
"""Of JSON with English text. Code and other scripts have fewer: their prefixes seem longer than they are, and
what is at stake is a wait of one first byte."""

T = TypeVar("T")

DIGEST_BYTES = 16
_LEAST_BYTES = 512 * BYTES_PER_TOKEN
_BEFORE_ELEMENTS = ("tools", "functions", "tool_choice", "response_format", "text")
_MOST_ENDS_EACH_SIDE = 32


class Prefix(msgspec.Struct, frozen=True):
    """The ends of a request's prefixes that are long enough to be cached, shortest first.

    least_tokens      what the provider caches at least
    lifetime_seconds  how long it keeps a prefix after its last use
    """

    digests: tuple[bytes, ...]
    tokens: tuple[int, ...]
    least_tokens: int
    lifetime_seconds: float


def may_be_warmed(pooling: Pooling) -> bool:
    """Tell whether a request could wait for a warm cache, whatever its model costs.

    Not where a person waits, and not where no provider would cache anything.
    """
    is_patient = pooling.urgency is not Urgency.INTERACTIVE and bool(conversation_fields(pooling.dialect))
    return is_patient and len(pooling.document.raw) >= _LEAST_BYTES


def pays_to_warm(pooling: Pooling, price: Price | None) -> bool:
    """Tell whether waiting could pay: the request is long enough, and tokens from the cache are cheaper."""
    if price is None or price.cache is None or saved_usd_per_million(price) <= 0:
        return False
    return len(pooling.document.raw) >= price.cache.minimum_tokens * BYTES_PER_TOKEN


def saved_usd_per_million(price: Price) -> float:
    """Return what a token costs less that is read from the cache than one that misses it."""
    rates = price.standard
    return max(rates.input, rates.cache_write) - rates.cached


def cacheable_prefix(key: bytes, pooling: Pooling, cache: PromptCache) -> Prefix | None:
    """Return the prefixes of a request among those with one `key`, `None` where none may be cached."""
    document = pooling.document
    list_name, *fixed_names = conversation_fields(pooling.dialect)
    elements = document.array(list_name) or ()
    base = [document.get(name) or b"" for name in (*_BEFORE_ELEMENTS, *fixed_names)]
    only_marked = not cache.is_automatic or takes_breakpoints(pooling.model)
    chain = blake2b(key, digest_size=DIGEST_BYTES)
    length_bytes = 0
    digests: list[bytes] = []
    tokens: list[int] = []
    for number, raw in enumerate((b"".join(map(_framed, base)), *elements)):
        chain.update(_framed(raw))
        length_bytes += len(raw)
        estimate = length_bytes // BYTES_PER_TOKEN
        ends = not only_marked or has_cache_mark(raw) or number == len(elements)
        if ends and estimate >= cache.minimum_tokens:
            digests.append(chain.digest())
            tokens.append(estimate)
    if not digests:
        return None
    return Prefix(_both_sides(digests), _both_sides(tokens), cache.minimum_tokens, cache.lifetime_seconds)


def _framed(raw: bytes) -> bytes:
    # The length keeps two values from being taken for one that holds both.
    return len(raw).to_bytes(8, "big") + raw


def _both_sides(values: list[T]) -> tuple[T, ...]:
    """Return the first and the last ends: a burst differs at one side or the other of a long conversation."""
    if len(values) <= 2 * _MOST_ENDS_EACH_SIDE:
        return tuple(values)
    return (*values[:_MOST_ENDS_EACH_SIDE], *values[-_MOST_ENDS_EACH_SIDE:])
