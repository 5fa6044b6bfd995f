"""Dealing out the stream of a merged completions call."""

from __future__ import annotations

import json
from typing import Any

import msgspec
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


def test_comments_go_to_everybody() -> None:
    for event in (b": ping\n\n", b"event: x\n\n"):
        assert dealt([event], [1, 1]) == [event, event]


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "prompt 'b' is overloaded with 429", "type": "invalid_request_error"}},
        {"error": "no", "choices": [{"index": 0, "text": "", "finish_reason": "error"}]},
        {"object": "error", "message": "no", "code": 400},
    ],
)
def test_an_error_that_may_be_about_a_prompt_is_nobodys_and_ends_the_dealing(error: Any) -> None:
    dealer = Dealer(mould("completions", [1, 1]))
    event = b"data: " + json.dumps(error).encode() + b"\n\n"
    assert dealer.feed(chunk(0, "a") + event + chunk(1, "b") + DONE) == {0: [chunk(0, "a")]}
    assert dealer.failure == json.dumps(error).encode()
    assert not dealer.is_done


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "slow down", "type": "rate_limit_exceeded"}},
        {"error": {"message": "slow down", "code": 429}},
        {"error": {"message": "no", "code": "insufficient_quota"}},
        {"object": "error", "message": "no", "code": 503},
    ],
)
def test_an_error_about_all_goes_to_all(error: Any) -> None:
    dealer = Dealer(mould("completions", [1, 1]))
    event = b"data: " + json.dumps(error).encode() + b"\n\n"
    assert dealer.feed(event + DONE) == {0: [event, DONE], 1: [event, DONE]}
    assert dealer.is_refused
    assert dealer.failure is None


def test_the_end_is_told_to_those_whose_every_choice_has_come() -> None:
    dealer = Dealer(mould("completions", [1, 2, 1]))
    end = {"text": "", "index": 0, "finish_reason": "stop"}
    events = chunk(1, "b") + b"data: " + json.dumps({"choices": [end]}).encode() + b"\n\n" + DONE
    assert dealer.feed(events)[0][-1] == DONE
    assert [dealer.has_begun(number) for number in range(3)] == [True, True, False]
    assert [dealer.is_answered(number) for number in range(3)] == [True, False, False]
    assert [dealer.is_finished(number) for number in range(3)] == [True, False, False]
    assert dealer.is_done


def test_what_azure_says_of_each_prompt_is_its_callers_alone() -> None:
    found = [
        {"prompt_index": place, "content_filter_results": {"who": who}} for place, who in enumerate("abc")
    ]
    first = {"id": "", "choices": [], "prompt_filter_results": found}
    events = b"data: " + json.dumps(first).encode() + b"\n\n"
    one, other = dealt([events], [1, 2])
    assert [each["prompt_filter_results"] for each in read(one)] == [found[:1]]
    assert [each["prompt_filter_results"] for each in read(other)] == [
        [found[1] | {"prompt_index": 0}, found[2] | {"prompt_index": 1}]
    ]
    beside = {"id": "c", "choices": [{"index": 1, "text": "b"}], "prompt_filter_results": found[:2]}
    one, other = dealt([b"data: " + json.dumps(beside).encode() + b"\n\n"], [1, 1])
    assert [(each["choices"], len(each["prompt_filter_results"])) for each in read(one)] == [([], 1)]
    assert read(other)[0]["choices"] == [{"index": 0, "text": "b"}]
    assert read(other)[0]["prompt_filter_results"] == [found[1] | {"prompt_index": 0}]
    with pytest.raises(Undealable):
        dealt([events], [1, 1])


def test_an_event_without_choices_has_an_id_of_ones_own() -> None:
    _, other = dealt([b'data: {"id":"c","choices":[]}\n\n'], [1, 1])
    assert read(other) == [{"id": "c-1", "choices": []}]


def test_an_event_of_several_lines_stays_one_with_all_its_lines() -> None:
    event = (
        b'event: message\r\nid: 7\r\ndata: {"id":"c",\r\ndata: "choices":[{"text":"b","index":1}]}\r\n\r\n'
    )
    assert dealt([event], [1, 1])[1] == (
        b'event: message\r\nid: 7\r\ndata: {"id":"c-1",\r\ndata: "choices":[{"text":"b","index":0}]}\r\n\r\n'
    )
    told = b'id: 9\ndata: {"id":"c","choices":[],\ndata: "usage":{"prompt_tokens":4}}\n\n'
    _, other = dealt([told], [1, 1])
    assert other.startswith(b"id: 9\ndata: ")
    assert read(other) == [{"id": "c-1", "choices": [], "usage": {"prompt_tokens": 3}}]


def test_nobody_is_told_more_output_than_it_allowed() -> None:
    made = msgspec.structs.replace(mould("completions", [1, 1]), most_choice_tokens=12)
    dealer = Dealer(made)
    whole = usage(prompt_tokens=3, completion_tokens=20, total_tokens=23)
    told = dealer.feed(chunk(0, "a" * 90) + chunk(1, "b") + whole)
    used = [read(b"".join(told[number]))[-1]["usage"] for number in (0, 1)]
    assert [each["completion_tokens"] for each in used] == [12, 8]
    assert [each["total_tokens"] for each in used] == [13, 10]


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
    assert dealt([chunk(0, "a"), chunk(1, "b"), DONE[:-1]], [1, 1])[1].endswith(DONE)


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
        seen = {i for i, _ in events if owners[i][0] == number}
        has_all = len(seen) == counts[number] * choices
        assert (told[-1] is None) == has_all
    used = [[each for each in read(own) if each and each["usage"]][-1]["usage"] for own in streams]
    assert sum(each["completion_tokens"] for each in used) == 31
    assert sum(each["total_tokens"] for each in used) == 81
