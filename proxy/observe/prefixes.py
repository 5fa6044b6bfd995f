"""Remembers which conversations were sent, so that steps can tell what a provider has likely cached.

Owns the time and the bound. It holds digests, never text; one entry is made per request, about 300 bytes.
Every scope (caller, upstream, model) sees only what it sent itself. Safe to share between threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from proxy.core.clock import Clock
from proxy.core.prefixes import Ranges, SeenPrefix, SentPrefix

# A conversation grows by a few elements per turn; whoever sends more new ones than this finds a cold cache.
_MOST_LOOKS = 4_096


class PrefixMemory:
    """At most `max_entries` prefixes; the one that was sent longest ago goes first."""

    def __init__(self, clock: Clock, max_entries: int = 16_384) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._sent: OrderedDict[bytes, tuple[float, Ranges]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sent)

    def remember(self, scope: bytes, prefix: SentPrefix) -> None:
        """Note that a conversation is sent now."""
        key = scope + prefix.key
        with self._lock:
            self._sent[key] = (self._clock.monotonic(), prefix.dropped)
            self._sent.move_to_end(key)
            while len(self._sent) > self._max_entries:
                self._sent.popitem(last=False)

    def scoped(self, scope: bytes) -> ScopedPrefixes:
        """Return what one scope may see; scopes must have one length, so that no two can be confused."""
        return ScopedPrefixes(self, scope)

    def seen(self, scope: bytes, keys: Sequence[bytes], within_seconds: float) -> SeenPrefix | None:
        """Return the longest of these prefixes that this scope sent within a time."""
        oldest = self._clock.monotonic() - within_seconds
        with self._lock:
            for index in range(len(keys) - 1, max(-1, len(keys) - 1 - _MOST_LOOKS), -1):
                found = self._sent.get(scope + keys[index])
                if found is not None and found[0] >= oldest:
                    return SeenPrefix(index + 1, found[1])
        return None


class ScopedPrefixes:
    """`proxy.core.prefixes.PrefixLookup` for one scope."""

    __slots__ = ("_memory", "_scope")

    def __init__(self, memory: PrefixMemory, scope: bytes) -> None:
        self._memory = memory
        self._scope = scope

    def seen(self, keys: Sequence[bytes], within_seconds: float) -> SeenPrefix | None:
        """Return the longest of these prefixes that was sent within a time."""
        return self._memory.seen(self._scope, keys, within_seconds)
