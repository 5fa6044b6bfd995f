"""Cutting up the answer to a merged call: everybody gets its own, as it was written."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.lanes.coalesce.merge_answers import Mould, split_answer
from proxy.lanes.coalesce.merge_parts import Part


def by_length(members: Sequence[Sequence[str]]) -> Sequence[int]:
    return [sum(map(len, texts)) for texts in members]


def mould(dialect: str, counts: Sequence[int], choices: int = 1) -> Mould:
    """Return a mould for members with so many inputs, each a text of as many letters as its number + 1."""
    parts, number = [], 0
    for count in counts:
        items = tuple(b'"%b"' % (b"x" * (number + index + 1)) for index in range(count))
        number += count
        parts.append(Part(items, True, choices))
    return Mould(dialect, tuple(parts), by_length)


def embeddings(order: Sequence[int], **extra: Any) -> bytes:
    data = [{"object": "embedding", "index": index, "embedding": [index, 0.5]} for index in order]
    total = sum(index + 1 for index in order)
    usage = {"prompt_tokens": total, "total_tokens": total}
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": usage} | extra).encode()


def split(body: bytes, made: Mould) -> list[Any]:
    answers = split_answer(body, made)
    assert answers is not None
    return [json.loads(answer) for answer in answers]


def test_indices_begin_at_zero_for_everybody_and_usage_is_ones_own() -> None:
    first, second = split(embeddings([0, 1, 2]), mould("embeddings", [1, 2]))
    assert [(each["index"], each["embedding"][0]) for each in first["data"]] == [(0, 0)]
    assert [(each["index"], each["embedding"][0]) for each in second["data"]] == [(0, 1), (1, 2)]
    assert first["usage"] == {"prompt_tokens": 1, "total_tokens": 1}
    assert second["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


def test_floats_keep_their_characters_and_unknown_members_stay() -> None:
    body = (
        b'{ "object": "list", "data": [ {"index": 1, "embedding": [1.0, -0.0, 1e-9, 0.10000000149011612]},'
        b'{"embedding": [2.50],"new":{"index":9}, "index":0}], "model": "m" , "usage":null, "x": 1.0}'
    )
    answers = split_answer(body, mould("embeddings", [1, 1]))
    assert answers == [
        b'{ "object": "list", "data": [{"embedding": [2.50],"new":{"index":9}, "index":0}], '
        b'"model": "m" , "usage":null, "x": 1.0}',
        b'{ "object": "list", "data": [{"index": 0, "embedding": [1.0, -0.0, 1e-9, 0.10000000149011612]}], '
        b'"model": "m" , "usage":null, "x": 1.0}',
    ]


@pytest.mark.parametrize(
    "body",
    [
        embeddings([0, 1]),
        embeddings([0, 1, 2, 3]),
        embeddings([0, 1, 1]),
        embeddings([0, 1, 3]),
        b'{"data":[{"index":0},{"index":"1"},{"index":2}]}',
        b'{"data":[{"embedding":[0]},{"embedding":[1]},{"embedding":[2]}]}',
        b'{"data":[[0],[1],[2]]}',
        b'{"data":{}}',
        b'{"data":[],"data":[{"index":0},{"index":1},{"index":2}]}',
        b"[]",
        b"[{}]",
        b"not json",
        b"",
    ],
)
def test_an_answer_that_does_not_have_everybodys_part_is_not_cut_up(body: bytes) -> None:
    assert split_answer(body, mould("embeddings", [1, 2])) is None


def test_moderations_go_by_position_and_ids_are_told_apart() -> None:
    body = b'{"id":"modr-1","model":"m","results":[{"flagged":true},{"flagged":false}]}'
    assert split_answer(body, mould("moderations", [1, 1])) == [
        b'{"id":"modr-1","model":"m","results":[{"flagged":true}]}',
        b'{"id":"modr-1-1","model":"m","results":[{"flagged":false}]}',
    ]


def test_choices_go_to_the_prompt_that_they_belong_to() -> None:
    texts = ["a0", "a1", "b0", "b1", '{"index": 3}', "c1"]
    choices = [{"text": text, "index": index, "logprobs": None} for index, text in enumerate(texts)]
    usage = {"prompt_tokens": 6, "completion_tokens": 20, "total_tokens": 26}
    whole = {"id": "cmpl-1", "choices": choices[::-1], "usage": usage}
    first, second = split(json.dumps(whole).encode(), mould("completions", [1, 2], choices=2))
    assert [(each["index"], each["text"]) for each in first["choices"]] == [(0, "a0"), (1, "a1")]
    assert [(each["index"], each["text"]) for each in second["choices"]] == list(enumerate(texts[2:]))
    assert (first["id"], second["id"]) == ("cmpl-1", "cmpl-1-1")
    assert first["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    assert second["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}


def test_what_azure_says_of_each_prompt_is_its_callers_alone() -> None:
    choices = [{"text": "t", "index": index} for index in range(3)]
    found = [
        {"prompt_index": place, "content_filter_results": {"who": who}} for place, who in enumerate("abc")
    ]
    whole = {"id": "c", "choices": choices, "prompt_filter_results": found[::-1]}
    first, second = split(json.dumps(whole).encode(), mould("completions", [1, 2]))
    assert first["prompt_filter_results"] == [found[0]]
    assert second["prompt_filter_results"] == [found[2] | {"prompt_index": 1}, found[1] | {"prompt_index": 0}]
    odd = whole | {"prompt_filter_results": [{"prompt_index": 3}]}
    assert split_answer(json.dumps(odd).encode(), mould("completions", [1, 2])) is None


vectors = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=4)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.booleans(), st.booleans(), st.data())
def test_whatever_the_order_everybody_gets_its_own_vectors(
    counts: list[int], is_base64: bool, is_spaced: bool, data: st.DataObject
) -> None:
    total = sum(counts)
    wanted = [data.draw(vectors) for _ in range(total)]

    def written(vector: list[float]) -> object:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if is_base64 else vector

    items = [{"object": "embedding", "index": n, "embedding": written(v)} for n, v in enumerate(wanted)]
    order = data.draw(st.permutations(items))
    used = data.draw(st.integers(0, 10_000))
    whole = {"object": "list", "data": order, "usage": {"prompt_tokens": used, "total_tokens": used}}
    body = json.dumps(whole, separators=None if is_spaced else (",", ":")).encode()
    answers = split(body, mould("embeddings", counts))
    got = [each["embedding"] for answer in answers for each in answer["data"]]
    assert got == [written(vector) for vector in wanted]
    for answer, count in zip(answers, counts, strict=True):
        assert [each["index"] for each in answer["data"]] == list(range(count))
    assert sum(answer["usage"]["prompt_tokens"] for answer in answers) == used
