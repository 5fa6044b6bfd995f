from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from proxy.tokens.cache import CountCache
from proxy.tokens.port import Count


def test_returns_what_was_stored() -> None:
    cache = CountCache(2)
    assert cache.get(("a", b"1")) is None
    cache.put(("a", b"1"), Count(5, True))
    assert cache.get(("a", b"1")) == Count(5, True)
    assert cache.get(("b", b"1")) is None


def test_drops_what_was_used_longest_ago() -> None:
    cache = CountCache(2)
    cache.put(("a", b"1"), Count(1, True))
    cache.put(("a", b"2"), Count(2, True))
    cache.get(("a", b"1"))
    cache.put(("a", b"3"), Count(3, True))
    assert cache.get(("a", b"2")) is None
    assert cache.get(("a", b"1")) == Count(1, True)
    assert len(cache) == 2


def test_looking_does_not_make_younger() -> None:
    cache = CountCache(2)
    cache.put(("a", b"1"), Count(1, True))
    cache.put(("a", b"2"), Count(2, True))
    assert ("a", b"1") in cache
    cache.put(("a", b"3"), Count(3, True))
    assert ("a", b"1") not in cache


def test_without_room_nothing_is_kept() -> None:
    cache = CountCache(0)
    cache.put(("a", b"1"), Count(1, True))
    assert cache.get(("a", b"1")) is None


def test_threads_may_share_it() -> None:
    cache = CountCache(8)

    def use(seed: int) -> None:
        for step in range(500):
            key = ("a", bytes([seed * step % 16]))
            count = cache.get(key)
            assert count is None or count.tokens == key[1][0]
            cache.put(key, Count(key[1][0], True))

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(use, range(1, 9)))
    assert len(cache) == 8
