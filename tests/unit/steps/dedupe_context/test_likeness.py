"""Which passages say the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from random import Random
from typing import Literal

import pytest

from proxy.steps.dedupe_context.likeness import LONGEST_NEAR_CHARS, Passage, Seen

WORDS = [f"word{chr(97 + index % 26)}{index}" for index in range(400)]
PLAIN = [word.rstrip("0123456789") * 2 + chr(97 + index // 26) for index, word in enumerate(WORDS)]


def text(seed: int, words: int = 60) -> str:
    """Return words without digits, different for each seed."""
    chance = Random(seed)
    return " ".join(chance.choice(PLAIN) for _ in range(words))


def same(
    first: str,
    second: str,
    similarity: float = 0.9,
    is_exact: bool = False,
    compare: Literal["sentences", "words"] = "sentences",
) -> bool:
    seen = Seen(similarity, compare)
    seen.find_or_add(Passage(first, is_exact=is_exact))
    return not seen.find_or_add(Passage(second, is_exact=is_exact))[1]


A = text(1)


@pytest.mark.parametrize("similarity", [0.5, 0.9, 1])
@pytest.mark.parametrize(
    "other", [A, A.replace(" ", "  ", 5), A.replace(" ", "\n", 9), f"\n {A}\t"], ids=range(4)
)
def test_whitespace_makes_no_difference(other: str, similarity: float) -> None:
    assert same(A, other, similarity)


@pytest.mark.parametrize(
    "other",
    [
        A.title(),
        A.replace(" ", ", ", 20) + ".",
        A.rsplit(" ", 1)[0],
        A.replace(" ", " “", 1).replace(" ", "” ", 2),
    ],
    ids=["case", "punctuation", "cut short", "quotes"],
)
def test_what_says_nothing_else_is_the_same(other: str) -> None:
    for compare in ("sentences", "words"):
        assert same(A, other, compare=compare)
    assert not same(A, other, 1)


@pytest.mark.parametrize("other", [f"{A} indeed", A.replace(A.split()[7], "another", 1)], ids=range(2))
def test_a_word_more_or_less_makes_no_other_passage_of_a_long_one_where_words_are_compared(
    other: str,
) -> None:
    assert same(A, other, compare="words")
    assert not same(A, other)


OPPOSITES = [
    ("It is not safe for children.", "It is safe for children."),
    ("Do not drive. It is safe.", "Do not drive. It is not safe."),
    ("It takes three days.", "It takes seven days."),
    ("The switch is enabled.", "The switch is disabled."),
    ("Alice is responsible.", "Bob is responsible."),
    ("See Article IV.", "See Article VI."),
    ("It costs 5 dollars.", "It costs 5 euros."),
    ("Only authorized people may enter.", "Only unauthorized people may enter."),
    ("There is something in it.", "There is nothing in it."),
    ("Is it safe?", "It is safe."),
    ("第三条适用。", "第五条适用。"),
    ("これはできます。", "これはできません。"),
    ("Det är tillåtet.", "Det är inte tillåtet."),
    ("Det er tilladt.", "Det er ikke tilladt."),
]


@pytest.mark.parametrize("pair", OPPOSITES, ids=range(len(OPPOSITES)))
@pytest.mark.parametrize("around", [0, 300])
def test_what_says_something_else_is_kept_whatever_it_has_in_common(
    pair: tuple[str, str], around: int
) -> None:
    before, after = (text(20, around), text(21, around)) if around else ("", "")
    first, second = (f"{before}. {each} {after}." for each in pair)
    assert not same(first, second, 0.5)
    assert not same(second, first, 0.5)


CODE = [
    ("if (ready && loaded) { start(engine); }", "if (!ready && loaded) { start(engine); }"),
    ("call max_tokens here", "call max tokens here"),
    ("for x in y:\n    f(x)\n    return", "for x in y:\n    f(x)\nreturn"),
    ("a < b decides", "a > b decides"),
    ("x = y", "x == y"),
]


@pytest.mark.parametrize("pair", CODE, ids=range(len(CODE)))
def test_in_code_each_character_counts(pair: tuple[str, str]) -> None:
    first, second = (f"{text(22, 100)}\n{each}\n{text(23, 100)}" for each in pair)
    for similarity in (0.5, 0.9, 1):
        assert same(first, first, similarity)
        assert not same(first, second, similarity)
        assert not same(second, first, similarity)


@pytest.mark.parametrize("similarity", [0.5, 0.75, 0.9])
def test_other_passages_are_others(similarity: float) -> None:
    assert not same(A, text(2), similarity)
    half = " ".join([*A.split()[:30], *text(3, 30).split()])
    assert not same(A, half, similarity)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("costs 5 euros", "costs 6 euros"),
        ("costs 5 euros", "costs -5 euros"),
        ("costs 3.5 euros", "costs 35 euros"),
        ("is allowed", "is not allowed"),
        ("is allowed", "isn't allowed"),
        ("ist erlaubt", "ist nicht erlaubt"),
        ("at 10:30", "at 10:45"),
        ("in version v2", "in version v3"),
    ],
)
def test_a_number_or_a_negation_more_makes_another_passage(first: str, second: str) -> None:
    said = text(4, 200)
    for compare in ("sentences", "words"):
        one, other = f"{said} {first} {said}", f"{said} {second} {said}"
        assert not same(one, other, 0.5, compare=compare)
        assert not same(other, one, 0.5, compare=compare)


def test_a_sentence_more_of_the_known_passage_is_no_reason_to_keep_the_other() -> None:
    said = text(5, 200)
    assert same(f"{said}. It was not built before 1932.", f"{said}.")
    assert same(f"It was not built before 1932. {said}.", f"{said}.")
    assert not same(f"{said}.", f"{said}. It was not built before 1932.")


def test_a_sentence_that_breaks_off_before_what_matters_is_kept() -> None:
    said = text(5, 200)
    assert same(f"{said} unless it rains.", f"{said} unless it")
    assert not same(f"{said} unless it rains.", said)
    assert not same(f"{said} in 1932.", f"{said} in")


def test_a_short_paragraph_that_is_nowhere_else_is_not_lost() -> None:
    said = text(6, 300)
    assert same(said, f"{said}\n\n{text(6, 30)}"), "a paragraph that is there is no reason"
    assert not same(said, f"{said}\n\nanswer in verse")
    assert not same(f"{said}\n\nanswer in prose", f"{said}\n\nanswer in verse")
    assert same(f"{said}\n\nanswer in verse", f"{said}\n \nAnswer in verse.")


def test_languages_without_spaces_are_compared_by_characters() -> None:
    said = (
        "桥于一九三二年通车它横跨港口连接两岸每天有十六万辆汽车经过是这座城市最著名的建筑之一游客可以登上桥拱"
    )
    other = said.replace("著名", "有名")
    assert same(said, other, 0.8, compare="words")
    assert not same(said, other, 0.8)
    assert not same(said, said[::-1], 0.8, compare="words")
    assert not same(said, said.replace("可以", "不可以"), 0.8, compare="words")


def test_what_else_a_passage_says_must_be_equal() -> None:
    seen = Seen(0.9, "words")
    assert seen.find_or_add(Passage(A, "red")) == (0, True)
    assert seen.find_or_add(Passage(A, "blue")) == (1, True)
    assert seen.find_or_add(Passage(f"{A} indeed", "blue")) == (1, False)


def test_exact_passages_keep_their_whitespace_apart() -> None:
    assert same("if x:\n  y()", "if x:\n  y()", is_exact=True)
    assert not same("if x:\n  y()", "if x:\n y()", is_exact=True)
    assert not same(A, f"{A} indeed", is_exact=True)


def test_what_was_forgotten_is_new_again() -> None:
    seen = Seen(0.9, "words")
    number, _ = seen.find_or_add(Passage(A))
    seen.forget([number])
    assert seen.find_or_add(Passage(f"{A} indeed")) == (1, True)
    assert seen.find_or_add(Passage(A)) == (1, False)


def test_passages_of_unusual_length_are_compared_exactly() -> None:
    long = text(7, 6000)
    assert len(long) > LONGEST_NEAR_CHARS
    assert same(long, long)
    assert not same(long, f"{long} indeed")


@pytest.mark.parametrize("odd", ["", " ", "...", "\ud800", "\x00", "a", "a b", "—"])
def test_odd_texts_are_passages_like_any_other(odd: str) -> None:
    assert same(odd, odd)
    assert not same(odd, A)
    assert not same(A, odd)


def test_every_similar_pair_is_found() -> None:
    """Against the plain definition, which compares everything with everything."""
    chance = Random(8)
    texts: list[str] = []
    for number in range(120):
        words = (
            texts[chance.randrange(len(texts))] if texts and chance.random() < 0.6 else text(number)
        ).split()
        for _ in range(chance.randrange(5)):
            words[chance.randrange(len(words))] = chance.choice(PLAIN)
        texts.append(" ".join(words))

    def triples(said: str) -> set[tuple[str, ...]]:
        words = said.split()
        return set(zip(words, words[1:], words[2:], strict=False))

    for similarity in (0.5, 0.7, 0.9):
        seen = Seen(similarity, "words")
        kept: list[str] = []
        for said in texts:
            mine = triples(said)
            expected = any(
                len(mine & triples(other)) >= similarity * len(mine | triples(other))
                and len(mine & triples(other)) >= similarity * len(mine)
                for other in kept
            )
            is_new = seen.find_or_add(Passage(said))[1]
            assert is_new is not expected
            if is_new:
                kept.append(said)
        assert 10 < len(kept) < 110


def test_work_is_linear_even_if_all_passages_begin_alike() -> None:
    def seconds(count: int) -> float:
        passages = [Passage(f"{text(9, 30)} {text(100 + number, 10)}") for number in range(count)]
        seen = Seen(0.9)
        start = time.process_time()
        for passage in passages:
            seen.find_or_add(passage)
        return time.process_time() - start

    seconds(50)
    assert seconds(2000) < 25 * max(seconds(200), 0.002)


_PRINTS = """
from random import Random
from proxy.steps.dedupe_context.likeness import Passage, Seen
chance = Random(1)
words = [chr(97 + a) + chr(97 + b) for a in range(26) for b in range(4)]
seen = Seen(0.6)
print([seen.find_or_add(Passage(" ".join(chance.choices(words[:30], k=40))))[0] for _ in range(400)])
"""


def test_every_process_finds_the_same() -> None:
    """Python hashes text differently in each process; nothing may hang on that."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _PRINTS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
