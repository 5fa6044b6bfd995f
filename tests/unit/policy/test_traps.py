from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.traps import DECIMAL, INTEGER, trap


@pytest.mark.parametrize(
    ("read_as", "words"),
    [
        ("a boolean", "no No NO off on yes y n Y true False"),
        ("null", "~ null Null NULL"),
        ("a number", "1 -1 +1 0755 0o17 0x1F 0b11 1_000 1.5 .5 1. 1e3 1E+3 1.5e3 .inf -.INF .nan .NaN"),
        ("a base-60 number", "12:30 190:20:30 1:30.5"),
        ("a date", "2024-01-01 2024-1-1 2024-01-01T12:30:00Z"),
        ("a special key", "<< ="),
    ],
)
def test_knows_what_yaml_may_read_differently(read_as: str, words: str) -> None:
    assert {word: trap(word) for word in words.split()} == dict.fromkeys(words.split(), read_as)


def test_nothing_and_spaced_timestamps_are_traps_too() -> None:
    assert trap("") == "null"
    assert trap("2024-01-01 12:30:00") == "a date"


@pytest.mark.parametrize(
    "text",
    "gpt-4o o1 o3-mini gpt-4o* 4o 3.5-turbo nope offset yesterday 1.2.3 v1 /v1/chat nightly-* 10m 24h 64KiB "
    "12:30pm a:b ٣ 1-2-3 http://x:80/".split(),
)
def test_leaves_plain_words_alone(text: str) -> None:
    assert trap(text) is None


@given(
    st.text("0123456789.eE+-_:xobnyTZ~<= ", min_size=1, max_size=12)
    | st.from_regex(r"\A[-+]?[0-9_]{1,4}(:[0-5]?[0-9]){0,2}(\.[0-9_]{0,3})?([eE][-+]?[0-9]+)?\Z")
    | st.from_regex(r"\A[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ][0-9]{1,2}:[0-9]{2}:[0-9]{2}(\.[0-9]*)?Z?)?\Z")
)
def test_misses_nothing_that_the_yaml_library_resolves(text: str) -> None:
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(text[0], [])
    if any(pattern.match(text) for _, pattern in resolvers):
        assert trap(text) is not None


def test_integers_are_those_that_all_versions_read_alike() -> None:
    assert all(INTEGER.fullmatch(text) for text in ("0", "12", "-12", "9" * 18))
    assert not any(INTEGER.fullmatch(text) for text in ("012", "1_0", "0x1", "", "1" * 19, "٣", "1.0"))


def test_decimals_are_those_that_all_versions_read_alike() -> None:
    assert all(DECIMAL.fullmatch(text) for text in ("0.5", "-1.25", "1.5e+3"))
    assert not any(DECIMAL.fullmatch(text) for text in (".5", "1.", "1e3", "1.5e3", "01.5"))
