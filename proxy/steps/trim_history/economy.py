"""Whether a cut pays: what a request costs with and without it, given what the provider has likely cached.

A cut saves input tokens, but all that stands behind it is no longer the prefix that the provider knows, and
is paid in full (and written again, where writing costs). Only the request at hand is reckoned: nobody knows
whether the conversation goes on. Figures are the price table's; without a price nothing is claimed.

Sources: the rules of OpenAI's and Anthropic's prompt caches as `prices.yaml` holds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from proxy.core.document import Document
from proxy.core.prefixes import Ranges
from proxy.core.price import Price, PromptCache
from proxy.dialects.conversation import Conversation
from proxy.dialects.prefix_keys import prefix_keys
from proxy.steps.step import StepContext


class Cached(msgspec.Struct, frozen=True):
    """What the provider has likely cached: the first `elements`, sent without the groups in `dropped`."""

    elements: int
    dropped: frozenset[int]


class Economy(msgspec.Struct, frozen=True):
    """What is known about the cost of a conversation.

    keys     names of its prefixes, to be remembered; empty where no cache is known
    cached   `None` where nothing of it is likely cached
    """

    price: Price | None
    keys: tuple[bytes, ...] = ()
    cached: Cached | None = None
    writes_until: int = 0

    def cost_usd(
        self,
        conversation: Conversation,
        group_tokens: Sequence[int],
        fixed_tokens: int,
        dropped: frozenset[int],
    ) -> float | None:
        """Return what the conversation's input costs without the groups in `dropped`."""
        price = self.price
        if price is None:
            return None
        total = fixed_tokens
        shared = fixed_tokens
        written = fixed_tokens
        is_shared = self.cached is not None
        for index, group in enumerate(conversation.groups):
            if self.cached is not None and (
                group.end > self.cached.elements or (index in dropped) != (index in self.cached.dropped)
            ):
                is_shared = False
            if index in dropped:
                continue
            total += group_tokens[index]
            if is_shared:
                shared += group_tokens[index]
            if group.end <= self.writes_until:
                written = total
        least_tokens = price.cache.minimum_tokens if price.cache is not None else 0
        cached = shared if self.cached is not None and shared >= least_tokens else 0
        is_written = self.writes_until > 0 and written >= least_tokens
        return price.cost_usd(
            total, cached_tokens=cached, cache_write_tokens=max(0, written - cached) if is_written else 0
        )


def read_economy(document: Document, conversation: Conversation, context: StepContext) -> Economy:
    """Return what price table and memory say of a conversation."""
    price = None if context.prices is None else context.prices.price(context.provider, context.model)
    cache = None if price is None else price.cache
    if cache is None:
        return Economy(price)
    marked = conversation.marked_until()
    writes_until = len(conversation.raws) if cache.is_automatic else marked
    keys = () if context.prefixes is None else prefix_keys(document, conversation)
    cached = _seen(conversation, keys, cache, context) if writes_until else None
    if cached is None and marked and not _was_sent(keys, context):
        # Who sets markers means to come back: the caller may have been here through another process.
        cached = Cached(marked, frozenset())
    return Economy(price, keys, cached, writes_until)


def _seen(
    conversation: Conversation, keys: Sequence[bytes], cache: PromptCache, context: StepContext
) -> Cached | None:
    seen = None if context.prefixes is None else context.prefixes.seen(keys, cache.lifetime_seconds)
    if seen is None:
        return None
    return Cached(seen.elements, groups_in(conversation, seen.dropped))


def _was_sent(keys: Sequence[bytes], context: StepContext) -> bool:
    """Tell whether this conversation was sent from here at all, so that what is cached of it is known."""
    return context.prefixes is not None and context.prefixes.seen(keys, math.inf) is not None


def groups_in(conversation: Conversation, ranges: Ranges) -> frozenset[int]:
    """Return the groups that element ranges are made of; none of a range that fits no groups any more."""
    by_start = {group.start: index for index, group in enumerate(conversation.groups)}
    found: set[int] = set()
    for start, end in ranges:
        members: list[int] = []
        while start < end and (index := by_start.get(start)) is not None:
            members.append(index)
            start = conversation.groups[index].end
        if start == end and not any(conversation.groups[index].stays for index in members):
            found.update(members)
    return frozenset(found)


def ranges_of(conversation: Conversation, dropped: frozenset[int]) -> Ranges:
    """Return the elements of groups as ranges, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for index in sorted(dropped):
        start, end = conversation.groups[index].start, conversation.groups[index].end
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return tuple(ranges)
