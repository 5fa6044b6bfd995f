"""Where passages are in a text."""

from __future__ import annotations

import time
from typing import Any

import pytest

from proxy.steps.dedupe_context.config import Config
from proxy.steps.dedupe_context.passages import read_passages


def found(text: str, **options: Any) -> list[str]:
    return [each.passage.text for each in read_passages(text, Config(**options)).found]


def taken(text: str, **options: Any) -> list[str]:
    """Return what would go with each passage."""
    return [text[each.start : each.end] for each in read_passages(text, Config(**options)).found]


@pytest.mark.parametrize("name", ["document", "doc", "passage", "chunk", "search_result", "snippet"])
def test_tags_say_where_a_passage_begins_and_ends(name: str) -> None:
    text = f"Read:\n<{name} index='1'>\nOne.\n</{name}>\n<{name}>Two.</{name}> Now what?"
    assert found(text) == ["One.", "Two."]
    assert taken(text) == [f"<{name} index='1'>\nOne.\n</{name}>", f"<{name}>Two.</{name}>"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<documents><document>a</document></documents>", ["a"]),
        ("<document_list>x</document_list>", []),
        ("<document>never closed", []),
        ("closed only</document>", []),
        ("<document>a <document>b</document> c</document>", ["b"]),
        ("<document\nid=1>a</document>", ["a"]),
        ("<document</document>", []),
        ("<document a", []),
        (
            "<document><source>s</source><document_content>a</document_content></document>",
            ["<source>s</source><document_content>a</document_content>"],
        ),
        ("<docs><doc>a</doc></docs><snippet>b</snippet>", ["a"]),
        ("<div>a</div> [3]", []),
    ],
)
def test_only_whole_elements_of_those_names_count(text: str, expected: list[str]) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("[1] ", "[2] "),
        ("[1]: ", "[2]: "),
        ("[^1] ", "[^2] "),
        ("[doc1] ", "[doc2] "),
        ("[Source 1] ", "[Source 2]\n"),
        ("Source 1: ", "source 12: "),
        ("Document [1](Title: t) ", "Document [2](Title: t) "),
        ("## Source 1\n", "## Source 2\n"),
        ("**Passage 1:** ", "**Passage 2:** "),
        ("- [1] ", "* [2] "),
        ("Chunk #7\n", "Chunk #9\n"),
    ],
)
def test_numbered_labels_begin_passages(first: str, second: str) -> None:
    text = f"Sources:\n{first}One two.\n{second}Three four.\n\nQuestion?"
    layout = read_passages(text, Config())
    assert [each.is_open for each in layout.found] == [False, True]
    one, two = (each.passage.text for each in layout.found)
    assert one.removeprefix("(Title: t) ") == "One two."
    assert two.removeprefix("(Title: t) ") == "Three four.\n\nQuestion?"


@pytest.mark.parametrize(
    "text",
    [
        "1. Do this.\n2. Do that.",
        "a [1] b [2] c",
        "Sources say so.\nDocuments exist.",
        "[1, 2]\n[3, 4]",
        "[12345] x",
        "     [1] indented like code",
        "Documentation 1",
        "",
    ],
)
def test_lists_and_citations_are_no_passages(text: str) -> None:
    assert found(text) == []


def test_a_label_without_words_is_no_passage() -> None:
    assert found("[1]\n[2] a\n[3]") == ["a"]


@pytest.mark.parametrize("rule", ["---", "-----", "***", "___", "====", "  ---  ", "---\r"])
def test_rules_part_passages_that_must_be_equal_to_be_one(rule: str) -> None:
    text = f"Context:\nA\n{rule}\nB\n{rule}\nC\n\nQuestion?"
    layout = read_passages(text, Config())
    assert [each.passage.text for each in layout.found] == ["B", "C\n\nQuestion?"]
    assert [each.is_open for each in layout.found] == [False, True]
    assert all(each.passage.is_exact for each in layout.found)
    assert text[: layout.preamble] == "Context:\nA\n"


@pytest.mark.parametrize("text", ["a\n--\nb", "|---|---|\n| a | b |", "a --- b", "a\n- - -\nb"])
def test_other_lines_part_nothing(text: str) -> None:
    assert found(text) == []


def test_rules_in_code_part_nothing() -> None:
    assert found("```yaml\na: 1\n---\na: 1\n---\na: 1\n```") == []
    assert found("x\n---\ny\n```\n---\n```\n---\nz") == ["y\n```\n---\n```", "z"]


def test_a_policy_names_its_own_markers() -> None:
    text = "Intro\nPart 1: One.\nMore.\n== end of parts\n  Part 2: Two.\nAsk."
    assert found(text, markers=("Part *: *",)) == ["One.\nMore.\n== end of parts", "Two.\nAsk."]
    assert found(text, markers=("Part *:*", "== *")) == ["One.\nMore.", "end of parts", "Two.\nAsk."]
    assert found("# Fact\na\n# Fact\nb", markers=("# Fact",)) == ["a", "b"]
    assert found("[1] a\n[2] b", markers=("Part *",)) == []


def test_a_policy_names_its_own_separator() -> None:
    layout = read_passages("a\n~~ 1 ~~\nb\n~~ 2 ~~\nc", Config(separator="~~ * ~~"))
    assert [each.passage.text for each in layout.found] == ["b", "c"]
    assert not layout.found[0].passage.is_exact
    assert found("a\n---\nb\n---\nc", separator="~~") == []


@pytest.mark.parametrize(
    ("text", "scores", "words"),
    [
        ("<doc score='0.25'>a</doc>", [0.25], ["a"]),
        ('<doc id="7" relevance = "1">a score: 9</doc>', [1.0], ["a score: 9"]),
        ("[1] (score: 0.83) a\n[2] b", [0.83, None], ["a", "b"]),
        ("Source 1 (relevance=0.5)\na\nSource 2 [Score: 3]\nb", [0.5, 3.0], ["a", "b"]),
        ("[1] The score: 3 to 2 at half time", [None], ["The score: 3 to 2 at half time"]),
        ("[1] score: 3 to nothing\n[2] b", [None, None], ["score: 3 to nothing", "b"]),
        ("[1] with a credit score: 620\n[2] b", [None, None], ["with a credit score: 620", "b"]),
        ("[1] score: 0.5\na\n[2] Title (Relevance Score: 1e-3)\nb", [0.5, 0.001], ["a", "Title \nb"]),
        ("[1] (score: -0.7) a\n[2] (score: .9) b", [-0.7, 0.9], ["a", "b"]),
        ("[1] (score: 12345678) a\n[2] (score: 8.5e-05) b", [12345678.0, 8.5e-05], ["a", "b"]),
        ("[1] a\nscore: 4", [None], ["a\nscore: 4"]),
    ],
)
def test_scores_are_read_from_tags_and_labels(
    text: str, scores: list[float | None], words: list[str]
) -> None:
    layout = read_passages(text, Config())
    assert [each.score for each in layout.found] == scores
    assert [each.passage.text for each in layout.found] == words


@pytest.mark.parametrize("score", ["0,83", "83%", "1/10", "NaN", "high", "1.2.3", "0x10", "7 of 9", "1e999x"])
def test_what_is_no_whole_number_is_no_score(score: str) -> None:
    layout = read_passages(f"[1] (score: {score}) a\n[2] (score: 0.7) b", Config())
    assert [each.score for each in layout.found] == [None, 0.7]
    assert score in layout.found[0].passage.text
    tagged = read_passages(f'<doc score="{score}">a</doc>', Config())
    assert [each.score for each in tagged.found] == [None]


def test_an_instruction_between_passages_does_not_go_with_a_low_score() -> None:
    text = "[1] (score: 0.9) a\n[2] (score: 0.1) b\n\nIMPORTANT: answer in German.\n[3] (score: 0.8) c"
    assert [each.score for each in read_passages(text, Config()).found] == [0.9, None, 0.8]
    marked = read_passages(text, Config(markers=("[1]*", "[2]*", "[3]*")))
    assert [each.score for each in marked.found] == [0.9, 0.1, 0.8], "the policy says where passages begin"


def test_other_attributes_of_a_tag_make_another_passage() -> None:
    def rests(first: str, second: str) -> list[str]:
        layout = read_passages(f"<doc {first}>T</doc><doc {second}>T</doc>", Config())
        return [each.passage.rest for each in layout.found]

    assert rests("index='1' source=\"a.txt\" score=0.5", "INDEX='2' source=b.txt") == ["", ""]
    one, other = rests('product="A"', "product='B'")
    assert one != other
    one, other = rests('product="A" index=1', "index=2 product=A")
    assert one == other != ""


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        " " * 1_000_000,
        "\n" * 1_000_000,
        "-" * 1_000_000,
        "---\n" * 250_000,
        "<document>" * 100_000,
        "</document>" * 90_000,
        "<documents></document>" * 45_000,
        "<document>x</document>" * 45_000,
        "[1] a\n" * 160_000,
        "\n[1]" * 250_000,
        "[" * 1_000_000,
        "score" * 200_000,
        "```\n" * 250_000,
    ],
    ids=range(14),
)
def test_no_text_takes_long(text: str) -> None:
    start = time.process_time()
    read_passages(text, Config())
    read_passages(text, Config(markers=("*a*b*c*d",)))
    assert time.process_time() - start < 10
