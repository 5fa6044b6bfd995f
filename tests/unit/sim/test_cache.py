from __future__ import annotations

from proxy.core.clock import ManualClock
from proxy.sim.cache import Block, PrefixCache, automatic_marks, breakpoint_marks, written_tokens
from proxy.sim.scenario import CacheRules

RULES = CacheRules(min_tokens=6, granularity_tokens=4, lifetime_seconds=100)


def words(count: int, prefix: str = "w") -> tuple[str, ...]:
    return tuple(f" {prefix}{index}" for index in range(count))


def test_marks_stand_at_multiples_of_the_granularity_from_the_minimum_on() -> None:
    assert [mark.tokens for mark in automatic_marks(words(18), RULES)] == [8, 12, 16]
    assert automatic_marks(words(5), RULES) == ()


def test_no_marks_where_the_cache_is_off() -> None:
    rules = CacheRules(enabled=False, min_tokens=1, granularity_tokens=1)
    assert automatic_marks(words(9), rules) == ()
    assert breakpoint_marks([Block(words(9), True)], rules) == ()


def test_a_prefix_is_cached_only_after_it_was_written() -> None:
    cache = PrefixCache(RULES, ManualClock())
    marks = automatic_marks(words(18), RULES)
    assert cache.read("a", marks) == 0
    assert cache.read("a", marks) == 0
    cache.write("a", marks)
    assert cache.read("a", marks) == 16


def test_the_longest_shared_prefix_is_cached() -> None:
    cache = PrefixCache(RULES, ManualClock())
    cache.write("a", automatic_marks(words(18), RULES))
    longer = automatic_marks(words(13) + words(20, "other"), RULES)
    assert cache.read("a", longer) == 12
    changed_start = automatic_marks((" x", *words(18)[1:]), RULES)
    assert cache.read("a", changed_start) == 0


def test_scopes_do_not_share() -> None:
    cache = PrefixCache(RULES, ManualClock())
    marks = automatic_marks(words(18), RULES)
    cache.write("a", marks)
    assert cache.read("b", marks) == 0


def test_a_prefix_is_forgotten_and_a_hit_lets_it_live_on() -> None:
    clock = ManualClock()
    cache = PrefixCache(RULES, clock)
    marks = automatic_marks(words(8), RULES)
    cache.write("a", marks)
    clock.advance(90)
    assert cache.read("a", marks) == 8
    clock.advance(90)
    assert cache.read("a", marks) == 8
    clock.advance(101)
    assert cache.read("a", marks) == 0


def test_breakpoints_write_only_where_they_stand() -> None:
    cache = PrefixCache(RULES, ManualClock())
    system, question = Block(words(7), True), Block(words(5, "q"))
    marks = breakpoint_marks([system, question], RULES)
    assert written_tokens(marks, 0) == 7
    cache.write("a", marks)
    other = breakpoint_marks([system, Block(words(5, "r"), True)], RULES)
    assert cache.read("a", other) == 7
    assert written_tokens(other, 7) == 5


def test_a_breakpoint_reads_back_twenty_blocks_at_most() -> None:
    def ask(blocks_behind: int) -> int:
        cache = PrefixCache(RULES, ManualClock())
        first = Block(words(7), True)
        cache.write("a", breakpoint_marks([first], RULES))
        later = [Block((f" {index}",), index == blocks_behind - 1) for index in range(blocks_behind)]
        return cache.read("a", breakpoint_marks([Block(words(7)), *later], RULES))

    assert ask(20) == 7
    assert ask(21) == 0


def test_no_breakpoint_no_cache() -> None:
    assert breakpoint_marks([Block(words(9)), Block(words(9))], RULES) == ()


def test_a_prefix_below_the_minimum_is_not_kept() -> None:
    assert breakpoint_marks([Block(words(5), True)], RULES) == ()


def test_a_block_may_ask_for_a_longer_life() -> None:
    clock = ManualClock()
    cache = PrefixCache(RULES, clock)
    marks = breakpoint_marks([Block(words(7), True, 3600.0)], RULES)
    cache.write("a", marks)
    clock.advance(3000)
    assert cache.read("a", marks) == 7
