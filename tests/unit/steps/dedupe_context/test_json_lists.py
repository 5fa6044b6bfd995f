"""Passages as elements of JSON arrays."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from proxy.steps.dedupe_context.json_lists import json_lists, without_elements


def found(text: str) -> list[list[tuple[int, str, float | None]]]:
    return [
        [(each.index, each.passage.text, each.score) for each in array.elements] for array in json_lists(text)
    ]


@pytest.mark.parametrize(
    "name",
    ["text", "content", "page_content", "passage", "chunk", "chunk_text", "snippet", "body", "document"],
)
def test_objects_with_a_text_are_passages(name: str) -> None:
    assert found(json.dumps([{"id": 1, name: "a"}, {"id": 2, name: "b"}])) == [
        [(0, "a", None), (1, "b", None)]
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["a", "b"]', [[(0, "a", None), (1, "b", None)]]),
        ('[{"text": "a"}, 7, null, {"title": "t"}, "b"]', [[(0, "a", None), (4, "b", None)]]),
        ('Context: [{"text": "a"}]\n\nWhy [1]?', [[(0, "a", None)]]),
        ('{"hits": {"hits": [ {"text": "a", "_score": 2} ]}, "n": 1}', [[(0, "a", 2.0)]]),
        ('["a"] and ["b"]', [[(0, "a", None)], [(0, "b", None)]]),
        ('["unfinished", [{"text": "a"}]', [[(0, "a", None)]]),
        ("[1, 2, 3]", []),
        ("[[1], [2]]", []),
        ('[{"title": "a"}]', []),
        ('[{"text": 7}]', []),
        ("[]", []),
        ('see [1] and ["', []),
    ],
)
def test_arrays_are_found_wherever_they_stand(text: str, expected: Any) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"ids": ["p1", "p2"], "documents": ["a", "a"]}',
        '{"ids":[["p1","p2"]],"documents":[["a","a"]],"distances":[[0.1,0.2]]}',
        '{"documents": [{"text": "a"}, {"text": "a"}], "scores": [0.1, 0.2]}',
        'Found: {"documents" : [ "a", "a" ], "authors": ["b", "c"]}',
    ],
)
def test_columns_that_belong_together_by_their_places_are_no_passages(text: str) -> None:
    assert found(text) == []


def test_an_array_of_another_length_is_no_column_beside() -> None:
    assert found('{"tags": ["x"], "documents": ["a", "b"]}') == [
        [(0, "x", None)],
        [(0, "a", None), (1, "b", None)],
    ]


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({"score": 0.5}, 0.5),
        ({"relevance_score": 1}, 1.0),
        ({"@search.score": 3.25}, 3.25),
        ({"metadata": {"score": 0.5}}, 0.5),
        ({"score": "high"}, None),
        ({"score": True}, None),
        ({"score": None, "similarity": 0.1}, 0.1),
        ({"distance": 0.5}, None),
        ({"score": 10**400}, None),
    ],
)
def test_scores_are_numbers_under_a_known_name(fields: dict[str, Any], score: float | None) -> None:
    assert found(json.dumps([{"text": "a"} | fields])) == [[(0, "a", score)]]
    assert found('[{"text": "a", "score": NaN}]') == [[(0, "a", None)]]


def rest_of(fields: dict[str, Any]) -> str:
    (array,) = json_lists(json.dumps([{"text": "a"} | fields]))
    return array.elements[0].passage.rest


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 7, "score": 0.5, "rank": 3, "source": "a.txt", "url": "u", "page": 4},
        {"metadata": {"source": "a.txt", "page": 4}},
        {"embedding": [0.1] * 9, "chunk_index": 2, "metadata": {}},
    ],
)
def test_where_a_passage_comes_from_is_not_what_it_says(fields: dict[str, Any]) -> None:
    assert rest_of(fields) == ""


def test_whatever_else_an_object_says_counts() -> None:
    assert rest_of({"product": "A"}) != rest_of({"product": "B"}) != ""
    assert rest_of({"metadata": {"product": "A", "page": 1}}) == rest_of({"metadata": {"product": "A"}}) != ""
    assert rest_of({"role": "user", "id": 1}) == rest_of({"role": "user", "id": 2})


def test_what_is_left_is_json_spelled_as_before() -> None:
    text = 'x [ {"text": "caf\\u00e9 \\/ \U0001f600"} ,\n {"text": "b", "score": 1.50} , "\\ud83d" ] y'
    (array,) = json_lists(text)
    assert without_elements(text, array, {1}) == '[ {"text": "caf\\u00e9 \\/ \U0001f600"} , "\\ud83d" ]'
    assert without_elements(text, array, {0, 2}) == '[ {"text": "b", "score": 1.50} ]'
    assert json.loads(without_elements(text, array, {0, 1, 2})) == []
    assert without_elements(text, array, ()) == text[array.start : array.end]


@pytest.mark.parametrize(
    "text",
    [
        "[{" * 500_000,
        '["' * 300_000,
        '[{"a":' * 160_000,
        "[ " * 500_000,
        "[" + " " * 1_000_000,
        '["a"]' * 200_000,
        '[{"text":"a"}]' * 70_000,
        "[" * 1_000_000 + '"',
        '["' + "a" * 1_000_000,
        "[" + '{"text":"a","score":1},' * 40_000,
    ],
    ids=range(10),
)
def test_no_text_takes_long(text: str) -> None:
    start = time.process_time()
    list(json_lists(text))
    assert time.process_time() - start < 5
