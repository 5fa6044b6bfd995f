"""Dealing out the stream of a merged completions call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.sse import EventSplitter, event_data
from proxy.lanes.coalesce.merge_events import Dealer, Undealable
from tests.unit.lanes.coalesce.test_merge_answers import mould

DONE = b"data: [DONE]\n\n"


def chunk(index: int, text: str, **more: Any) -> bytes:
    choice = {"text": text, "index": index, "logprobs": None, "finish_reason": None} | more
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [choice], "usage": None}).encode() + b"\n\n"


def usage(**figures: int) -> bytes:
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [], "usage": figures}).encode() + b"\n\n"


def dealt(pieces: list[bytes], counts: list[int], choices: int = 1) -> list[bytes]:
    """Return what each member got in the end."""
    dealer = Dealer(mould("completions", counts, choices))
    got = [b""] * len(counts)
    for step in [*(dealer.feed(piece) for piece in pieces), dealer.finish()]:
        for number, events in step.items():
            got[number] += b"".join(events)
    return got


def read(stream: bytes) -> list[Any]:
    """Return the JSON of a stream's events, `[DONE]` as `None`."""
    found = [event_data(event) for event in EventSplitter().feed(stream)]
    return [None if data == b"[DONE]" else json.loads(data) for data in found if data]


def test_chunks_go_to_whom_they_belong_with_their_own_index_and_id() -> None:
    first, second = dealt([chunk(0, "a"), chunk(2, "c"), chunk(1, "b"), DONE], [1, 2])
    assert first == chunk(0, "a") + DONE
    assert [
        (each["id"], each["choices"][0]["index"], each["choices"][0]["text"]) for each in read(second)[:-1]
    ] == [
        ("cmpl-1-1", 1, "c"),
        ("cmpl-1-1", 0, "b"),
    ]
    assert second.endswith(DONE)


def test_several_choices_in_one_event_are_parted() -> None:
    event = {"id": "x", "choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}
    first, second = dealt([b"data: " + json.dumps(event).encode() + b"\n\n"], [1, 1])
    assert [each["choices"] for each in read(first)] == [[{"index": 0, "text": "a"}]]
    assert [each["choices"] for each in read(second)] == [[{"index": 0, "text": "b"}]]


def test_usage_comes_to_everybody_before_the_end_and_adds_up() -> None:
    whole = usage(prompt_tokens=3, completion_tokens=8, total_tokens=11)
    streams = dealt([chunk(0, "aaa"), chunk(1, "b"), whole, DONE], [1, 1])
    told = [read(stream)[-2]["usage"] for stream in streams]
    assert told == [
        {"prompt_tokens": 1, "completion_tokens": 6, "total_tokens": 7},
        {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
    ]
    assert all(stream.endswith(DONE) for stream in streams)


def test_usage_told_with_a_choice_is_taken_out_and_told_at_the_end() -> None:
    event = {"id": "x", "choices": [{"index": 0, "text": "a"}], "usage": {"prompt_tokens": 3}}
    for end in ([DONE], []):
        first, second = dealt([b"data: " + json.dumps(event).encode() + b"\n\n", *end], [1, 1])
        events = [each for each in read(first) if each is not None]
        assert events[0]["usage"] is None
        assert events[1] == {"id": "x", "choices": [], "usage": {"prompt_tokens": 1}}
        assert [each for each in read(second) if each] == [
            {"id": "x-1", "choices": [], "usage": {"prompt_tokens": 2}}
        ]


def test_comments_and_errors_go_to_everybody() -> None:
    for event in (b": ping\n\n", b'data: {"error":{"message":"no"}}\n\n', b"event: x\n\n"):
        assert dealt([event], [1, 1]) == [event, event]


@pytest.mark.parametrize(
    "event",
    [
        chunk(2, "c"),
        b'data: {"choices":[{"text":"a"}]}\n\n',
        b'data: {"choices":[{"te\n\n',
        b"data: text\n\n",
    ],
)
def test_what_cannot_be_anybodys_ends_the_stream(event: bytes) -> None:
    with pytest.raises(Undealable):
        dealt([event], [1, 1])


def test_an_event_without_end_ends_the_stream() -> None:
    with pytest.raises(Undealable):
        dealt([b"data: " + b"x" * 2_000_000], [1, 1])


def test_half_an_event_is_nobodys() -> None:
    assert dealt([chunk(0, "a"), b'data: {"choices":[{"index":0,"text":"secr'], [1, 1]) == [
        chunk(0, "a"),
        b"",
    ]


def test_a_last_event_without_its_blank_line_counts() -> None:
    assert dealt([chunk(0, "a"), DONE[:-1]], [1, 1])[1] == DONE


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(1, 3), st.data())
def test_whatever_the_interleaving_and_the_cuts_everybody_reads_its_own_texts(
    counts: list[int], choices: int, data: st.DataObject
) -> None:
    total = sum(counts) * choices
    events = data.draw(st.lists(st.tuples(st.integers(0, total - 1), st.text(max_size=5)), max_size=20))
    stream = b"".join(chunk(index, text) for index, text in events)
    stream += usage(prompt_tokens=50, completion_tokens=31, total_tokens=81) + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    streams = dealt(pieces, counts, choices)
    owners = [(number, place) for number, count in enumerate(counts) for place in range(count * choices)]
    for number, own in enumerate(streams):
        told = read(own)
        got = [(c["index"], c["text"]) for each in told if each for c in each["choices"]]
        assert got == [(owners[i][1], text) for i, text in events if owners[i][0] == number]
        assert told[-1] is None
    used = [read(own)[-2]["usage"] for own in streams]
    assert sum(each["completion_tokens"] for each in used) == 31
    assert sum(each["total_tokens"] for each in used) == 81
