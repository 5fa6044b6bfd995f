"""Lines that begin alike run next to each other, in an order that a restart does not change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.batch_server.arrangement import arranged
from proxy.batch_server.lines import InputLine


def line(number: int, beginning: str = "", model: str = "m") -> InputLine:
    levels = b"".join(letter.encode() * 4 for letter in beginning)
    return InputLine(number, 0, 1, str(number), model, levels)


def order(*beginnings: str) -> list[int]:
    return [each.number for each in arranged([line(*pair) for pair in enumerate(beginnings)])]


def test_models_stay_together_in_the_order_of_the_file() -> None:
    lines = [line(0, model="b"), line(1, model="a"), line(2, model="b"), line(3, model="a")]
    assert [each.number for each in arranged(lines)] == [0, 2, 1, 3]


def test_what_begins_alike_lies_together() -> None:
    assert order("x", "y", "x", "y") == [0, 2, 1, 3]


def test_the_longest_beginnings_in_common_are_neighbours() -> None:
    assert order("abc", "xyz", "ab", "xyw", "abc", "a") == [0, 4, 2, 5, 1, 3]


def test_what_has_nothing_in_common_stays_as_it_is() -> None:
    assert order("d", "a", "", "c", "", "b") == [0, 1, 2, 4, 3, 5]


beginnings = st.lists(st.text("ab", max_size=4), max_size=30)


@given(beginnings, st.sets(st.integers(0, 30)))
def test_a_restart_keeps_the_order_of_what_is_left(texts: list[str], done: set[int]) -> None:
    lines = [line(number, text, "ab"[number % 2]) for number, text in enumerate(texts)]
    whole = [each.number for each in arranged(lines)]
    assert sorted(whole) == list(range(len(texts)))
    assert [each.number for each in arranged(lines, done)] == [one for one in whole if one not in done]


@given(beginnings)
def test_every_common_beginning_is_one_run(texts: list[str]) -> None:
    ordered = [texts[number] for number in order(*texts)]
    for length in range(1, 5):
        runs: list[str] = []
        for text in ordered:
            if len(text) >= length and (not runs or runs[-1] != text[:length]):
                runs.append(text[:length])
            elif len(text) < length:
                runs.append("")
        real = [run for run in runs if run]
        assert len(real) == len(set(real))
