"""What one text loses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.steps.dedupe_context.config import Config
from proxy.steps.dedupe_context.likeness import Seen
from proxy.steps.dedupe_context.sift import sift

A = "The bridge opened in 1932 and carries eight lanes of traffic and two railway tracks across the harbour."
B = "Its main span is 503 metres long, and the top of the arch stands 134 metres above the water."
C = "Painters began at one end and, once they had come to the other, began again with a new coat of grey."


def left(text: str, *earlier: str, **options: Any) -> str:
    """Return what is left of a text after others."""
    config = Config(**options)
    seen = Seen(config.similarity, config.compare)
    for other in earlier:
        sift(other, seen, config)
    sifted = sift(text, seen, config)
    assert sifted.has_passages
    return sifted.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Sources:\n[1] {A}\n[2] {A}\n[3] {B}\n\nWhy?", f"Sources:\n[1] {A}\n[3] {B}\n\nWhy?"),
        (f"[1] {A}\n\n[2] {B}\n\n[3] {A}\n\nWhy?", f"[1] {A}\n\n[2] {B}\n\nWhy?"),
        (f"[1] {A}\n[2] {A}", f"[1] {A}"),
        (f"[1] {A}\n[2] {A}\n \nWhy?", f"[1] {A}\n \nWhy?"),
        (f"<doc>{A}</doc>\n<doc>{A}</doc>\n\nWhy?", f"<doc>{A}</doc>\n\nWhy?"),
        (f"See <doc>{A}</doc> and <doc>{A}</doc> there", f"See <doc>{A}</doc> and there"),
        (
            f"<documents>\n<document id='1'>{A}</document>\n<document id='2'>{A}</document>\n</documents>",
            f"<documents>\n<document id='1'>{A}</document>\n</documents>",
        ),
        (f"Facts:\n{A}\n---\n{B}\n---\n{A}\n---\nWhy?", f"Facts:\n{A}\n---\n{B}\n---\nWhy?"),
        (f"Facts:\n---\n{A}\n---\n{B}\n---\n{A}\n\nWhy?", f"Facts:\n---\n{A}\n---\n{B}\n\nWhy?"),
        (f'Context: ["{A}", "{B}", "{A}"]\nWhy?', f'Context: ["{A}", "{B}"]\nWhy?'),
    ],
)
def test_the_first_of_two_stays_and_so_does_everything_around(text: str, expected: str) -> None:
    assert left(text) == expected
    assert left(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"[1] {A}\n[2] {B}\n\nWhy?",
        f"[1] {A}\n[2] {A}\nWhich of them is right?",
        f"[1] {A}\n[2] {A} Which of them is right?",
        f"[1] {A}\n[2] {A[:-1]}\n\nWhich of them is right?",
        f"{A}\n---\n{B}\n---\n{A} But why?",
        f"{A}\n---\n{A}!\n---\nWhy?",
        f"But {A}\n---\n{A}\n---\nWhy?",
        f"Compare:\n{A}\n---\n{A}",
        "[1] short\n[2] short\n[3] short",
    ],
)
def test_nothing_goes_where_it_is_not_certain(text: str) -> None:
    """The question may stand right behind the last passage; near it only equal words are a repetition."""
    assert left(text) == text


def test_near_duplicates_go_where_a_retriever_is_at_work() -> None:
    near = A.replace("and carries", "and it carries").upper()
    for text in (f"<doc>{A}</doc><doc>{near}</doc>!", f"[1] {A}\n[2] {near}\n[3] {B}"):
        assert near not in left(text, similarity=0.7, compare="words")
        assert left(text, similarity=1) == text
    text = f"---\n{A}\n---\n{near}\n---\nWhy?"
    assert left(text, similarity=0.7, compare="words") == text, (
        "rules part anything, YAML documents for instance"
    )
    assert near not in left(text, similarity=0.7, compare="words", separator="---")


def test_passages_of_earlier_texts_are_known() -> None:
    text = f"[7] {A}\n[8] {B}\n\nAnd now?"
    assert left(text, f"[1] {A}\n\nWhy?") == f"[8] {B}\n\nAnd now?"
    assert left(text, f"[1] {A}\n[2] {B}\n\nWhy?") == "And now?"
    assert left(text, text) == "And now?", "a question that is asked again is asked again"
    assert left(text, f"[1] {A} Why?") == text
    assert left(f'{{"hits": ["{A}", "{B}"]}}', f"<doc>{A}</doc>") == f'{{"hits": ["{B}"]}}'
    assert left(f"<doc>{A}</doc>", f"<doc>{A}</doc>") == ""


def test_a_fixed_text_stays_and_its_passages_are_known() -> None:
    config = Config()
    seen = Seen(0.9)
    text = f"[1] {A}\n[2] {A}\n[3] {B}\n\nWhy?"
    assert sift(text, seen, config, is_fixed=True).text == text
    assert sift(f"<doc>{B}</doc> <doc>{C}</doc>", seen, config).text == f"<doc>{C}</doc>"


def scored(*pairs: tuple[str, float | None]) -> str:
    return json.dumps([{"text": text} | ({} if score is None else {"score": score}) for text, score in pairs])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_score": 0.5}, [(A, 0.9), (C, 0.5)]),
        ({"top_k": 1}, [(A, 0.9)]),
        ({"top_k": 2}, [(A, 0.9), (C, 0.5)]),
        ({"top_k": 2, "min_score": 0.6}, [(A, 0.9)]),
        ({"min_score": 1.0}, []),
        ({"top_k": 9}, [(A, 0.9), (B, 0.2), (C, 0.5)]),
    ],
)
def test_scores_decide_who_stays_and_not_the_order(options: Any, expected: Any) -> None:
    text = scored((A, 0.9), (B, 0.2), (C, 0.5))
    assert left(f"Context: {text}. Why?", **options) == f"Context: {scored(*expected)}. Why?"


def test_a_list_of_passages_without_scores_is_no_ranking() -> None:
    text = scored((A, None), (B, None), (C, None))
    assert left(text, top_k=1, min_score=0.9) == text
    assert left(scored((A, 0.1), (B, None), (C, 0.2)), top_k=1) == scored((B, None), (C, 0.2))


def test_copies_count_once_and_by_the_best_of_their_scores() -> None:
    text = scored((A, 0.3), (B, 0.5), (A, 0.9), (C, 0.4))
    assert left(text, top_k=2) == scored((A, 0.3), (B, 0.5))
    assert left(text, min_score=0.4) == scored((B, 0.5), (A, 0.9), (C, 0.4)), "the copy that is left is one"


def test_what_scores_removed_is_not_known_to_later_texts() -> None:
    earlier = scored((A, 0.9), (B, 0.2))
    for options in ({"top_k": 1}, {"min_score": 0.5}):
        assert left(f"[1] {A}\n[2] {B}", earlier, **options) == f"[2] {B}"


def test_scores_in_tags_and_labels_count_too() -> None:
    text = f"<doc score='0.9'>{A}</doc>\n<doc score='0.1'>{B}</doc>\nWhy?"
    assert left(text, min_score=0.5) == f"<doc score='0.9'>{A}</doc>\nWhy?"
    text = f"[1] (score: 0.1) {A}\n[2] (score: 0.9) {B}\n[3] (score: 0.2) {C}\n\nWhy?"
    assert left(text, min_score=0.5) == text.removeprefix(f"[1] (score: 0.1) {A}\n"), "nothing marks its end"


def test_short_passages_repeat_as_they_like() -> None:
    text = "[1] Yes, of course.\n[2] Yes, of course.\n[3] No.\n\nWhy?"
    assert left(text) == text
    assert left(text, min_chars=5) == "[1] Yes, of course.\n[3] No.\n\nWhy?"


def test_one_text_has_one_shape_and_json_comes_first() -> None:
    text = f'["{A}", "{A}"]\n<doc>{B}</doc><doc>{B}</doc>'
    assert left(text) == f'["{A}"]\n<doc>{B}</doc><doc>{B}</doc>'


def test_it_says_when_what_is_left_reads_otherwise() -> None:
    config = Config(min_score=0.5)

    def sifted(text: str) -> bool:
        return sift(text, Seen(0.9), config).is_reshaped

    assert sifted(scored((A, 0.1)))
    assert not sifted(scored((A, 0.1), (B, 0.9)))
    assert not sifted(f"[1] {A}\n[2] {A}")
    # The second is the last one now, and begins with the words of the first.
    assert sifted(f"[1] {A}\n[2] {A}\n\n{B} {C}\n[3] {A}\n\nWhy?")
