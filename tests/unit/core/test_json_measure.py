"""Bodies are measured before anything is made of their parts."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import json_measure
from proxy.core.document import Document, DocumentError, TooManyParts
from proxy.core.json_measure import MAX_ELEMENTS, MAX_MARKS, MAX_MEMBERS, check_array, check_object, is_quick

PADDING = b'"p":"' + b"x" * 8192 + b'"'

MANY = {
    "equal keys": b"{" + b'"a":1,' * 300_000 + b'"b":1}',
    "distinct keys": b"{" + b",".join(b'"%d":1' % n for n in range(300_000)) + b"}",
    "spaced keys": b"{ " + b'"a" : 1 , ' * 100_000 + b'"b":1}',
    "equal keys and a lone surrogate": b'{"m":"\\ud800",' + b'"a":1,' * 300_000 + b'"b":1}',
    "numbers": b'{"stop":[' + b"1," * 600_000 + b"1]}",
    "texts": b'{"stop":[' + b'"",' * 600_000 + b"1]}",
    "empty lists": b'{"stop":[' + b"[]," * 200_000 + b"1]}",
    "not numbers": b'{"stop":[' + b"NaN," * 100_000 + b"1]}",
}


def members(count: int) -> bytes:
    return b"{" + PADDING + b"".join(b',"k%d":{"a":[1,2]}' % n for n in range(count - 1)) + b"}"


def test_as_many_members_as_the_limit_are_read_and_no_more() -> None:
    assert len(Document.parse(members(MAX_MEMBERS)).keys()) == MAX_MEMBERS
    with pytest.raises(TooManyParts):
        Document.parse(members(MAX_MEMBERS + 1))


def test_members_deeper_down_are_no_members_of_the_body() -> None:
    inner = {f"k{n}": {"x": [1, 2]} for n in range(5_000)}
    document = Document.parse(json.dumps({"a": inner, "b": 1}).encode())
    assert document.keys() == ("a", "b")
    with pytest.raises(TooManyParts):
        document.get_path(("a", "k1"))


def test_commas_and_brackets_in_texts_are_no_parts() -> None:
    text = 'a,"b\\", [{,' * 200_000
    document = Document.parse(json.dumps({"a": text, "b": [text]}).encode())
    assert document.value("a") == text


@pytest.mark.parametrize("count", [MAX_ELEMENTS, MAX_ELEMENTS + 1])
def test_as_many_elements_as_the_limit_are_taken_apart_and_no_more(count: int) -> None:
    document = Document.parse(b'{"a":[' + b",".join([b"1"] * count) + b"]}")
    if count <= MAX_ELEMENTS:
        assert len(document.elements("a") or ()) == count
        return
    assert document.array("a") is None
    with pytest.raises(TooManyParts):
        document.elements("a")
    with pytest.raises(TooManyParts):
        document.every_path(("a", "0"))


@pytest.mark.parametrize("name", MANY)
def test_a_body_of_very_many_parts_is_refused_in_little_memory(name: str) -> None:
    body = MANY[name]
    tracemalloc.start()
    try:
        with pytest.raises(TooManyParts):
            Document.parse(body)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A piece takes up to 1.5 MB while it is measured, a shadow as much as the body.
    assert peak_bytes < 3_000_000 + 2 * len(body)


@pytest.mark.parametrize("kind", ["members", "elements"])
def test_what_is_read_takes_memory_in_proportion(kind: str) -> None:
    if kind == "members":
        body = b'{"m":"\\ud800",' + b'"a":1,' * (MAX_MEMBERS - 2) + b'"b":1}'
    else:
        body = b'{"a":[' + b"1," * (MAX_ELEMENTS - 1) + b"1]}"
    tracemalloc.start()
    document = Document.parse(body)
    assert document.duplicates == (frozenset({"a"}) if kind == "members" else frozenset())
    document.array("a")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_500_000 + 150 * len(body)


def test_the_marks_of_a_whole_body_are_limited_wherever_they_are() -> None:
    half = b"[" + b"0," * (MAX_MARKS // 2) + b"0]"
    with pytest.raises(TooManyParts):
        Document.parse(b'{"a":' + half + b',"b":' + half + b"}")


TEXTS = st.text(alphabet='ab,[]{}:"\\ é', max_size=12)
VALUES = st.recursive(
    st.one_of(st.integers(), TEXTS, st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=25,
)


def depth(value: Any) -> int:
    match value:
        case list():
            return 1 + max(map(depth, value), default=0)
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case _:
            return 0


@given(value=st.dictionaries(TEXTS, VALUES, max_size=6), piece_bytes=st.integers(1, 7))
def test_depth_and_members_are_those_of_the_value_wherever_pieces_end(
    value: dict[str, Any], piece_bytes: int
) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()
    measure = json_measure.measure
    measure(text, depth(value), max(1, len(value)), piece_bytes)
    with pytest.raises(DocumentError) as problem:
        measure(text, depth(value) - 1, len(value) + 1, piece_bytes)
    assert problem.value.reason == "too_deep"
    if len(value) > 1:
        with pytest.raises(TooManyParts):
            measure(text, depth(value), len(value) - 1, piece_bytes)


def test_a_glance_tells_only_what_is_surely_quick() -> None:
    assert is_quick(b"," * 10, 100, 10)
    assert is_quick(b"x" * 100, 100, 10)
    assert not is_quick(b"x" * 101, 100, 10)
    assert not is_quick(b"x," * 10, 100, 10)


def test_what_is_short_is_not_searched() -> None:
    check_object(b"{" * 10, 5, 1)
    check_array(b"," * 10, 10)
