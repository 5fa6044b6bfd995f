from __future__ import annotations

import pytest

from proxy.policy.findings import FindingList
from proxy.policy.nodes import ListNode, MapNode, Node, ScalarNode
from proxy.policy.yaml_source import MAX_DEPTH, MAX_NODES, parse_yaml


def parse(text: str | bytes) -> tuple[Node | None, list[str]]:
    findings = FindingList()
    node = parse_yaml("f", text if isinstance(text, bytes) else text.encode(), findings)
    return node, [str(finding) for finding in findings.in_order()]


def only_problem(text: str | bytes) -> str:
    _, problems = parse(text)
    assert len(problems) == 1, problems
    return problems[0]


def test_keeps_line_and_column_of_every_node() -> None:
    root, problems = parse("a: 1\nb:\n  - x\n  -  {c: y}\n")
    assert not problems
    assert isinstance(root, MapNode)
    inner = root.get("b")
    assert isinstance(inner, ListNode)
    assert (inner.mark.line, inner.mark.column) == (3, 3)
    last = inner.items[1]
    assert isinstance(last, MapNode)
    value = last.get("c")
    assert value is not None
    assert (value.mark.line, value.mark.column) == (4, 10)


def test_converts_nothing() -> None:
    root, _ = parse("[no, 012, 1_000, 2024-01-01, ~, 'no', !!str 7]")
    assert isinstance(root, ListNode)
    scalars = [item for item in root.items if isinstance(item, ScalarNode)]
    assert [item.text for item in scalars] == ["no", "012", "1_000", "2024-01-01", "~", "no", "7"]
    assert [item.plain for item in scalars] == [True] * 5 + [False, False]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('"\\n```"', "\n```"),
        ('"\\\\n"', "\\n"),
        ("'\\n'", "\\n"),
        ('" trailing  "', " trailing  "),
        ('"\\ttab\\t"', "\ttab\t"),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("|-\n  a \n", "a "),
        (">\n  a\n  b\n", "a b\n"),
    ],
)
def test_keeps_text_to_the_code_point(written: str, text: str) -> None:
    root, _ = parse(f"stop: {written}")
    assert isinstance(root, MapNode)
    value = root.get("stop")
    assert isinstance(value, ScalarNode)
    assert value.text == text


def test_a_duplicate_key_is_an_error_with_both_lines() -> None:
    assert (
        only_problem("a:\n  b: 1\n  c: 2\n  b: 3\n") == "f:4:3: a.b: key b is given twice (first in line 2)"
    )


def test_a_merge_fills_in_what_is_not_given() -> None:
    root, problems = parse("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n")
    assert not problems
    assert isinstance(root, MapNode)
    use = root.get("use")
    assert isinstance(use, MapNode)
    assert {key.text: getattr(value, "text", "") for key, value in use.entries} == {"x": "1", "y": "3"}


def test_a_merge_takes_several_mappings_the_first_wins() -> None:
    root, problems = parse("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nuse: {<<: [*a, *b]}\n")
    assert not problems
    assert isinstance(root, MapNode)
    use = root.get("use")
    assert isinstance(use, MapNode)
    assert {key.text: getattr(value, "text", "") for key, value in use.entries} == {"x": "1", "y": "2"}


def test_a_merge_of_something_else_is_an_error() -> None:
    assert "a merge takes a mapping" in only_problem("a: &a [1]\nuse: {<<: *a}\n")


def test_an_alias_bomb_is_refused_without_being_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert f"larger than {MAX_NODES} nodes" in only_problem("\n".join(lines))


def test_an_alias_of_itself_is_refused() -> None:
    assert "alias a stands inside the very thing that it names" in only_problem("a: &a [1, *a]")


def test_nesting_has_a_limit() -> None:
    assert "nested deeper" in only_problem("[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5))


def test_deep_nesting_in_a_large_file_is_no_crash() -> None:
    assert "nested deeper" in only_problem("[" * 20_000)


def test_a_pattern_that_begins_with_a_star_is_explained() -> None:
    assert "quote a pattern that begins with *" in only_problem("path: *chat")
    assert "quote a pattern that begins with *" in only_problem("path: */chat")


def test_a_reference_in_flow_style_without_quotes_is_explained() -> None:
    problem = only_problem("u: {api_key: ${KEY}, x: 1}")
    assert 'quote "${NAME}" between { and }' in problem


def test_tabs_are_explained() -> None:
    problem = only_problem("a:\n\t- b\n")
    assert problem.startswith("f:2:1: ")
    assert "indent with spaces" in problem


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "---\n...\n", "\ufeff"])
def test_an_empty_file_is_an_error(text: str) -> None:
    assert "the file is empty" in only_problem(text)


def test_a_second_document_is_an_error() -> None:
    assert only_problem("a: 1\n---\nb: 2\n").startswith("f:2:1: policy: a second document in one file")


def test_tags_are_refused() -> None:
    assert "tags are not supported" in only_problem("a: !!python/object:os.system x")
    assert "tags are not supported" in only_problem("a: !secret x")


def test_a_byte_order_mark_is_no_content() -> None:
    root, problems = parse(b"\xef\xbb\xbfa: 1\n")
    assert not problems
    assert isinstance(root, MapNode)
    assert root.get("a") is not None


def test_bad_utf8_and_control_characters_have_a_line() -> None:
    assert only_problem(b"a: 1\nb: \xff\n") == "f:2:1: policy: the file is not valid UTF-8"
    assert only_problem(b"a: 1\nb: \x07\n").startswith("f:2:4: policy: not valid YAML")


def test_a_syntax_error_does_not_repeat_the_text() -> None:
    assert "sk-secret" not in only_problem("api_key: sk-secret: oops\n")


def test_a_compound_key_is_refused() -> None:
    assert "a key must be text" in only_problem("{[a]: 1}")
