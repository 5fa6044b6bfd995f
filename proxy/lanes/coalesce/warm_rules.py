"""Who goes first with a prefix and who waits for that: the arithmetic of `warm`, without clock or sockets.

    somebody is first with a prefix that is long enough, and its answer has not begun   wait for it
    otherwise                                                                          leave at once

A request leads with every prefix that it has and that is not known to be cached. A prefix is cached from the
first byte of an answer to it until the provider forgets it; the time of each look is the caller's to give.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec

from proxy.lanes.coalesce.warm_prefix import Prefix

T = TypeVar("T")

MOST_KNOWN = 16_384
"""Prefixes remembered as cached, about 200 bytes each; what was used longest ago goes first."""

_MOST_PACES = 4_096


class Plan(msgspec.Struct, Generic[T], frozen=True):
    """What a request is to do: wait for `leader`, or leave at once and perhaps lead itself.

    `is_warm` says that some of its prefix is cached already.
    """

    leader: T | None
    leads: bool
    is_warm: bool


class Warmth(Generic[T]):
    """What is cached and who is about to see to it. `T` is a leader."""

    def __init__(self, most_known: int = MOST_KNOWN) -> None:
        self._most_known = most_known
        self._warm_until: OrderedDict[bytes, float] = OrderedDict()
        self._leaders: dict[bytes, T] = {}
        self._paces: OrderedDict[bytes, float] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        """Whether nobody leads."""
        return not self._leaders

    def __len__(self) -> int:
        return len(self._warm_until)

    def plan(self, prefix: Prefix, now: float) -> Plan[T]:
        """Return what a request is to do.

        Waiting has to bring more than leaving now would find in the cache, by what is cached at least.
        """
        least_tokens = prefix.least_tokens
        warm_tokens = self._warm_tokens(prefix, now)
        is_warm = warm_tokens > 0
        for digest, tokens in zip(reversed(prefix.digests), reversed(prefix.tokens), strict=True):
            if tokens - warm_tokens < least_tokens:
                break
            leader = self._leaders.get(digest)
            if leader is not None:
                return Plan(leader, leads=False, is_warm=is_warm)
        return Plan(None, prefix.tokens[-1] - warm_tokens >= least_tokens, is_warm)

    def _warm_tokens(self, prefix: Prefix, now: float) -> int:
        for digest, tokens in zip(reversed(prefix.digests), reversed(prefix.tokens), strict=True):
            if self._warm_until.get(digest, now) > now:
                return tokens
        return 0

    def renew(self, prefix: Prefix, now: float, until: float) -> None:
        """Take note that a request finds its beginning cached, which then is kept for longer."""
        for digest in prefix.digests:
            if self._warm_until.get(digest, now) > now:
                self._warm_until[digest] = until
                self._warm_until.move_to_end(digest)

    def lead(self, prefix: Prefix, leader: T, now: float) -> None:
        """Let a request go first with what is neither cached nor led by another."""
        for digest in prefix.digests:
            if self._warm_until.get(digest, now) <= now:
                self._leaders.setdefault(digest, leader)

    def give_up(self, prefix: Prefix, leader: T) -> None:
        """Forget a leader whose answer will not begin, or has begun."""
        for digest in prefix.digests:
            if self._leaders.get(digest) is leader:
                del self._leaders[digest]

    def began(self, prefix: Prefix, until: float) -> None:
        """Take note that an answer has begun: its prefixes are cached until then."""
        for digest in prefix.digests:
            self._warm_until[digest] = until
            self._warm_until.move_to_end(digest)
        while len(self._warm_until) > self._most_known:
            self._warm_until.popitem(last=False)

    # --- whether waiting has been worth it ------------------------------------------------------------

    def learn_pace(self, kind: bytes, first_byte_seconds: float) -> None:
        """Remember how long a leader of a kind took to begin."""
        known = self._paces.get(kind, first_byte_seconds)
        self._paces[kind] = (known + first_byte_seconds) / 2
        self._paces.move_to_end(kind)
        if len(self._paces) > _MOST_PACES:
            self._paces.popitem(last=False)

    def is_worth_waiting(self, kind: bytes, max_wait_seconds: float) -> bool:
        """Tell whether leaders of a kind are expected to begin before nobody waits any more."""
        return self._paces.get(kind, 0.0) <= max_wait_seconds
