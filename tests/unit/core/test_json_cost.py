"""Reading and editing cost what the text is long, whatever it says: operations are counted, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.document import Document, DocumentError

FRAGMENTS = [
    b'"a":1,',
    b'"a" : 1 , ',
    b'"a":{"b":{"c":9},"b":5},',
    b'"a":[1,2,[3]],',
    b'"a":"\\ud800",',
    b'"\\u0061":NaN,',
    b'"a":"x\\\\\\"",',
    b'"%d":[{}],',
    b'"%d":"%d",',
    b'"A":null,',
]
ELEMENTS = [b"1,", b'"",', b"[],", b'{"a":1},', b'{"b":1,"b":2},', b"NaN,", b'"\\ud800",', b" 1 , "]
PATHS = [("a",), ("a", "b", "c"), ("a", "0"), ("1", "0", "x"), ("stop", "-1"), ("stop", 3), ("none", "b")]


def operations(work: Callable[[], object]) -> int:
    """Return how many lines and calls, into C too, some work takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += 1

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count


def numbered(fragments: list[bytes], times: int) -> bytes:
    unit = b"".join(fragments)
    return b"".join(unit.replace(b"%d", b"%d" % number) for number in range(times))


def use(body: bytes) -> None:
    try:
        document = Document.parse(body)
    except DocumentError:
        return
    assert document.duplicates is not None
    assert document.has_odd_keys() in (True, False)
    for path in PATHS:
        document.get_path(path)
        document.every_path(path)
        document.lookalike(path)
        document.set_path(path, b"7").without_duplicates().to_bytes()
        document.delete_path(path).to_bytes()
    document.array("stop")
    document.keep_elements("stop", range(0, 1_000, 2)).to_bytes()


@settings(max_examples=25, deadline=None)
@given(
    fragments=st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3),
    elements=st.lists(st.sampled_from(ELEMENTS), min_size=1, max_size=2),
)
def test_four_times_the_text_costs_four_times_the_work(fragments: list[bytes], elements: list[bytes]) -> None:
    def body(times: int) -> bytes:
        stop = numbered(elements, times) + b"1"
        return b"{" + numbered(fragments, times) + b'"stop":[' + stop + b'],"model":"m"}'

    few, many = (operations(lambda n=n: use(body(n))) for n in (40, 160))  # type: ignore[misc]
    assert many <= 4 * few + 200


@pytest.mark.parametrize(
    "piece",
    [b'"a":1,', b'"a":[],', b'"a":"\\ud800",', b'"a":{"b":[1]},', b'"x,y":"[{",'],
)
def test_beyond_the_limits_more_text_costs_no_more_than_measuring_it(piece: bytes) -> None:
    def work(times: int) -> int:
        return operations(lambda: use(b"{" + piece * times + b'"b":1}'))

    assert work(200_000) <= work(100_000) + 200
