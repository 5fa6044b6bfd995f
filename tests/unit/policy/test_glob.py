from __future__ import annotations

import fnmatch
import re
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.glob import compile_patterns, covers

WORDS = st.text("ab*", max_size=8)
VALUES = st.text("ab", max_size=12)


@pytest.mark.parametrize(
    ("pattern", "value", "accepted"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4o*", "gpt-4o", True),
        ("gpt-4o*", "gpt-4o-mini", True),
        ("gpt-4o*", "GPT-4o", False),
        ("*-mini", "gpt-4o-mini", True),
        ("*-mini", "gpt-4o-mini-high", False),
        ("*", "", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c", False),
        ("ab*ba", "aba", False),
        ("**", "x", True),
        ("gpt-4.1", "gpt-451", False),
        ("[ab]?", "a", False),
        ("[ab]?", "[ab]?", True),
        ("", "", True),
        ("", "x", False),
    ],
)
def test_only_a_star_is_special(pattern: str, value: str, accepted: bool) -> None:
    assert compile_patterns([pattern])(value) is accepted


@given(WORDS, VALUES)
def test_agrees_with_a_regular_expression(pattern: str, value: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), value, re.DOTALL) is not None
    assert compile_patterns([pattern])(value) is expected


@given(st.lists(WORDS, min_size=1, max_size=4), VALUES)
def test_several_patterns_are_any_of_them(patterns: list[str], value: str) -> None:
    assert compile_patterns(patterns)(value) is any(fnmatch.fnmatchcase(value, each) for each in patterns)


@given(WORDS, WORDS, VALUES)
def test_what_covers_a_pattern_accepts_all_that_it_accepts(wide: str, narrow: str, value: str) -> None:
    if covers(wide, narrow) and compile_patterns([narrow])(value):
        assert compile_patterns([wide])(value)


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("*", "gpt-*", True),
        ("gpt-*", "gpt-4o*", True),
        ("gpt-4o*", "gpt-*", False),
        ("gpt-4o", "gpt-4o", True),
        ("a*c", "ab*c", True),
        ("ab", "a*", False),
    ],
)
def test_covering(wide: str, narrow: str, covered: bool) -> None:
    assert covers(wide, narrow) is covered


def test_time_grows_with_the_length_and_not_beyond() -> None:
    """B117: a pattern that would make a backtracking engine hang."""
    accepts = compile_patterns(["a*" * 30 + "b"])
    short, long = "a" * 2_000, "a" * 200_000
    assert accepts(long) is False
    seconds_short = min(timeit.repeat(lambda: accepts(short + "c"), number=20, repeat=3))
    seconds_long = min(timeit.repeat(lambda: accepts(long + "b"), number=20, repeat=3))
    assert seconds_long < 1000 * seconds_short + 0.5
