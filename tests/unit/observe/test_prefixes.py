"""What was sent is remembered for as long as asked, per scope, in bounded memory."""

from __future__ import annotations

from proxy.core.clock import ManualClock
from proxy.core.prefixes import SeenPrefix, SentPrefix
from proxy.observe.prefixes import PrefixMemory

KEYS = (b"1", b"2", b"3", b"4")


def test_the_longest_prefix_that_was_sent_is_found() -> None:
    memory = PrefixMemory(ManualClock())
    for key in (b"1", b"3"):
        memory.remember(b"a", SentPrefix(key, ((1, 2),)))
    assert memory.scoped(b"a").seen(KEYS, 60) == SeenPrefix(3, ((1, 2),))
    assert memory.seen(b"a", KEYS[:2], 60) == SeenPrefix(1, ((1, 2),))
    assert memory.seen(b"a", (b"5",), 60) is None
    assert memory.seen(b"a", (), 60) is None


def test_what_was_sent_too_long_ago_is_unknown() -> None:
    clock = ManualClock()
    memory = PrefixMemory(clock)
    memory.remember(b"a", SentPrefix(b"2"))
    clock.advance(60)
    assert memory.seen(b"a", KEYS, 60) is not None
    clock.advance(1)
    assert memory.seen(b"a", KEYS, 60) is None
    memory.remember(b"a", SentPrefix(b"2"))
    assert memory.seen(b"a", KEYS, 60) is not None


def test_a_stale_long_prefix_does_not_hide_a_fresh_short_one() -> None:
    clock = ManualClock()
    memory = PrefixMemory(clock)
    memory.remember(b"a", SentPrefix(b"4"))
    clock.advance(100)
    memory.remember(b"a", SentPrefix(b"2"))
    assert memory.seen(b"a", KEYS, 60) == SeenPrefix(2, ())


def test_scopes_see_nothing_of_each_other() -> None:
    memory = PrefixMemory(ManualClock())
    memory.remember(b"a", SentPrefix(b"2"))
    assert memory.scoped(b"b").seen(KEYS, 60) is None


def test_the_oldest_goes_first() -> None:
    memory = PrefixMemory(ManualClock(), max_entries=2)
    for key in (b"1", b"2", b"1", b"3"):
        memory.remember(b"a", SentPrefix(key))
    assert len(memory) == 2
    assert memory.seen(b"a", (b"2",), 60) is None
    assert memory.seen(b"a", (b"1",), 60) is not None
