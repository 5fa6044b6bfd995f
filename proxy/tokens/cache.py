"""A bounded least-recently-used cache of counts, safe to share between threads.

Owns eviction and locking. Refuses to know what a key means; keys must not hold message bodies (they
would stay in memory), only digests of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from proxy.tokens.port import Count

CacheKey = tuple[str, bytes]


class CountCache:
    """At most `max_entries` counts; about 350 bytes of memory each."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._counts: OrderedDict[CacheKey, Count] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, key: CacheKey) -> bool:
        """Tell whether a key is there, without making it younger."""
        return key in self._counts

    def get(self, key: CacheKey) -> Count | None:
        """Return a count and make it the youngest."""
        with self._lock:
            count = self._counts.get(key)
            if count is not None:
                self._counts.move_to_end(key)
            return count

    def put(self, key: CacheKey, count: Count) -> None:
        """Store a count, dropping the oldest when there are too many."""
        with self._lock:
            self._counts[key] = count
            self._counts.move_to_end(key)
            while len(self._counts) > self._max_entries:
                self._counts.popitem(last=False)
