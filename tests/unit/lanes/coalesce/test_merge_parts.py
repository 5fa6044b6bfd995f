"""What requests put into a merged call."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.document import Document
from proxy.lanes.coalesce.merge_parts import Part, merged_body, most_choice_tokens, part_of


def part(dialect: str, body: bytes) -> Part | None:
    return part_of(dialect, Document.parse(body))


@pytest.mark.parametrize(
    ("inputs", "items", "is_text"),
    [
        (b'"a"', (b'"a"',), True),
        (b'["a", "b\\u00e4"]', (b'"a"', b'"b\\u00e4"'), True),
        (b"[1, 2,3]", (b"[1, 2,3]",), False),
        (b"[[1,2], [3]]", (b"[1,2]", b"[3]"), False),
        (b"[ [ 7 ] ]", (b"[ 7 ]",), False),
        (b'["[1]"]', (b'"[1]"',), True),
    ],
)
def test_reads_texts_and_token_ids_and_never_takes_a_list_of_ids_for_many_inputs(
    inputs: bytes, items: tuple[bytes, ...], is_text: bool
) -> None:
    found = part("embeddings", b'{"model":"m","input":%b}' % inputs)
    assert found == Part(items, is_text)


@pytest.mark.parametrize(
    "inputs",
    [b'""', b'["a",""]', b"[]", b"[[]]", b"[[1],[]]", b'["a",[1]]', b"[1,2.5]", b"[-1]", b'[1,"a"]', b"null",
     b"true", b"{}", b"[{}]", b'[["a"]]', b"[[1,[2]]]"],
)  # fmt: skip
def test_what_is_refused_or_read_differently_elsewhere_stays_alone(inputs: bytes) -> None:
    assert part("embeddings", b'{"model":"m","input":%b}' % inputs) is None


def test_multimodal_moderations_are_one_input_and_stay_alone() -> None:
    assert part("moderations", b'{"input":[{"type":"text","text":"a"}]}') is None
    assert part("moderations", b'{"input":[1,2]}') is None
    assert part("moderations", b'{"input":["a","b"]}') == Part((b'"a"', b'"b"'), True)


def test_a_body_without_inputs_or_with_two_of_them_stays_alone() -> None:
    assert part("embeddings", b'{"model":"m"}') is None
    assert part("embeddings", b'{"input":"a","input":"b"}') is None
    assert part("embeddings", b'{"input":"a","user":"1","user":"2"}') is None
    assert part("embeddings", b'\xef\xbb\xbf{"input":"a"}') is None
    assert part("chat", b'{"input":"a"}') is None


def test_completions_have_so_many_choices_for_each_prompt() -> None:
    assert part("completions", b'{"prompt":["a","b"],"n":3}') == Part((b'"a"', b'"b"'), True, 3)
    assert part("completions", b'{"prompt":"a","n":null}') == Part((b'"a"',), True, 1)
    for odd in (b"0", b"1.0", b'"2"', b"-1", b"true"):
        assert part("completions", b'{"prompt":"a","n":%b}' % odd) is None


def test_a_seed_and_figures_of_the_whole_call_are_not_merged() -> None:
    assert part("completions", b'{"prompt":"a","seed":7}') is None
    assert part("completions", b'{"prompt":"a","seed":null}') is not None
    asked = b'{"prompt":"a","stream":true,"stream_options":{"include_usage": true}}'
    assert part("completions", asked) is not None
    assert part("completions", asked.replace(b"true}", b'true,"continuous_usage_stats":true}')) is None


def test_the_bound_on_tokens_is_exact_for_ids_and_safe_for_text() -> None:
    assert Part((b"[1,2,3]", b"[4]"), False).most_tokens == 4
    assert Part((b'"ab"',), True).most_tokens >= 2


def test_the_merged_body_is_the_firsts_with_everybodys_inputs_as_they_were_written() -> None:
    first = Document.parse(b'{ "input" : "a\\u00e4",  "model":"m", "dimensions": 8.0 }')
    parts = [Part((b'"a\\u00e4"',), True), Part((b'"b"', b'"\xc3\xa4"'), True)]
    merged = merged_body("embeddings", first, parts)
    assert merged == b'{ "input" : ["a\\u00e4","b","\xc3\xa4"],  "model":"m", "dimensions": 8.0 }'


@given(st.lists(st.one_of(st.text(min_size=1), st.lists(st.text(min_size=1), min_size=1)), min_size=1))
def test_a_merged_body_holds_all_texts_in_order(inputs: list[str | list[str]]) -> None:
    documents = [Document.parse(json.dumps({"model": "m", "input": value}).encode()) for value in inputs]
    parts = [found for document in documents if (found := part_of("embeddings", document)) is not None]
    assert len(parts) == len(documents)
    merged = json.loads(merged_body("embeddings", documents[0], parts))
    flat = [text for value in inputs for text in ([value] if isinstance(value, str) else value)]
    assert merged == {"model": "m", "input": flat}


def test_what_is_no_text_goes_alone() -> None:
    assert part("embeddings", b'{"model":"m","input":"\xff"}') is None
    assert part("embeddings", b'{"model":"m","input":["a","\xc3"]}') is None
    assert part("embeddings", '{"model":"m","input":"ä"}'.encode()) == Part(('"ä"'.encode(),), True)


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"max_tokens": 12}, 12),
        ({"max_tokens": 12, "best_of": 1}, 12),
        ({"max_tokens": 12, "best_of": 2}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": "12"}, None),
        ({}, None),
    ],
)
def test_reads_how_long_a_choice_may_be(fields: dict[str, object], most: int | None) -> None:
    assert most_choice_tokens(Document.parse(json.dumps(fields).encode())) == most
