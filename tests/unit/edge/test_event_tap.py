"""Streams on their way through: whatever the cuts, the same bytes go on and the same is understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import DIALECTS
from proxy.dialects.chat import ChatDialect
from proxy.dialects.dialect import EventFacts
from proxy.edge.event_tap import MAX_EVENT_BYTES, EventTap
from tests.support.chat import DONE, finish
from tests.support.shapes import SHAPES, Shape, data_event, spoken, usage_event
from tests.unit.http.messages import cut, cuts, every_cut

CHAT = ChatDialect()
NULL_USAGE = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":null}\n\n'
NULL_USAGE_FIRST = b'data: {"usage": null, "choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
WITHOUT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
WITHOUT_FIRST = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


@dataclass(frozen=True)
class Event:
    """An event as an upstream sends it, and what of it a caller gets that did not ask for usage."""

    raw: bytes
    kept: bytes


def same(raw: bytes) -> Event:
    return Event(raw, raw)


EVENTS = st.sampled_from(
    [
        same(data_event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})),
        same(spoken("word")),
        same(spoken('quoted "usage":null text, and ,"usage":null too')),
        same(spoken("무엇 \U0001f9ea " * 20)),
        same(b": comment\n\n"),
        same(b"id: 7\ndata: {}\n\n"),
        same(b"data: not json\n\n"),
        same(b"\n\n"),
        same(b"event: x\ndata: 1\ndata: 2\n\n"),
        same(finish()),
        same(DONE),
        Event(usage_event(), b""),
        Event(NULL_USAGE, WITHOUT),
        Event(NULL_USAGE_FIRST, WITHOUT_FIRST),
        same(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":1}}\n\n'),
    ]
)
FRAMINGS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def framed(event: bytes, line_end: bytes) -> bytes:
    return event.replace(b"\n", line_end)


def fed(tap: EventTap, pieces: list[bytes]) -> bytes:
    return b"".join(map(tap.feed, pieces)) + tap.finish()


def understood(tap: EventTap) -> dict[str, Any]:
    names = "has_content has_events has_error is_terminal finish_reason finished usage"
    return {name: getattr(tap, name) for name in names.split()}


# --- bytes --------------------------------------------------------------------------------------------------


@given(st.lists(EVENTS, max_size=12), FRAMINGS, st.binary(max_size=20), st.data())
def test_nothing_is_touched_where_nothing_was_asked_for(
    events: list[Event], line_end: bytes, rest: bytes, data: st.DataObject
) -> None:
    stream = b"".join(framed(event.raw, line_end) for event in events) + rest
    tap = EventTap(CHAT, removes_usage=False)
    for piece in data.draw(cuts(stream)):
        assert tap.feed(piece) == piece
    assert tap.finish() == b""


@given(st.lists(EVENTS, max_size=12), FRAMINGS, st.data())
def test_only_what_was_asked_for_is_taken_out_in_any_cut(
    events: list[Event], line_end: bytes, data: st.DataObject
) -> None:
    stream = b"".join(framed(event.raw, line_end) for event in events)
    expected = b"".join(framed(event.kept, line_end) for event in events)
    tap = EventTap(CHAT, removes_usage=True)
    assert fed(tap, data.draw(cuts(stream))) == expected
    assert tap.is_between_events


@given(st.lists(EVENTS, min_size=1, max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_what_is_withheld_of_an_unfinished_event_is_dropped_when_the_stream_breaks(
    events: list[Event], line_end: bytes, data: st.DataObject
) -> None:
    *whole, last = (framed(event.raw, line_end) for event in events)
    kept = b"".join(framed(event.kept, line_end) for event in events[:-1])
    stream = b"".join(whole) + last[: data.draw(st.integers(0, len(last) - 2 * len(line_end)))]
    tap = EventTap(CHAT, removes_usage=True)
    assert b"".join(map(tap.feed, data.draw(cuts(stream)))) == kept
    assert not tap.drop_unfinished(), "nothing of it has reached the caller"


@pytest.mark.parametrize("removes_usage", [True, False])
@pytest.mark.parametrize("size_bytes", [20_000, MAX_EVENT_BYTES + 10])
@pytest.mark.parametrize("piece_bytes", [7_000, 300_000])
def test_long_events_pass_whole_and_what_follows_is_understood(
    size_bytes: int, piece_bytes: int, removes_usage: bool
) -> None:
    stream = spoken("first") + spoken("x" * size_bytes) + usage_event() + finish() + DONE
    expected = stream.replace(usage_event(), b"") if removes_usage else stream
    tap = EventTap(CHAT, removes_usage)
    pieces = [stream[place : place + piece_bytes] for place in range(0, len(stream), piece_bytes)]
    assert fed(tap, pieces) == expected
    assert tap.is_terminal
    assert tap.usage is not None


def test_an_event_that_never_ends_is_not_held() -> None:
    for removes_usage in (True, False):
        tap = EventTap(CHAT, removes_usage)
        tap.feed(b"data: ")
        forwarded_bytes = sum(len(tap.feed(b"x" * 50_000)) for _ in range(200))
        assert forwarded_bytes >= 10_000_000 - 20_000
        assert tap._splitter.carry_bytes <= MAX_EVENT_BYTES + 50_000


# --- understanding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_every_cut_of_every_shape_is_understood_the_same(shape: Shape, line_end: bytes) -> None:
    dialect = next(each for each in DIALECTS if each.name == shape.name)
    stream = framed(shape.whole, line_end)
    for pieces in every_cut(stream):
        tap = EventTap(dialect, removes_usage=False)
        fed(tap, pieces)
        assert tap.has_content
        assert tap.has_events
        assert tap.is_terminal
        assert not tap.has_error
        assert tap.finish_reason == shape.finished
        assert tap.usage is not None
        assert (tap.usage.input_tokens, tap.usage.output_tokens) == shape.usage


@given(st.lists(EVENTS, max_size=12), FRAMINGS, st.booleans(), st.data())
def test_what_is_understood_depends_on_no_cut(
    events: list[Event], line_end: bytes, removes_usage: bool, data: st.DataObject
) -> None:
    pieces = [framed(event.raw, line_end) for event in events]
    one_by_one, other = EventTap(CHAT, removes_usage, True), EventTap(CHAT, removes_usage, True)
    fed(one_by_one, pieces)
    fed(other, data.draw(cuts(b"".join(pieces))))
    assert understood(one_by_one) == understood(other)
    assert one_by_one.has_id == other.has_id == any(b"id: 7" in event.raw for event in events)


def test_first_content_is_noticed_in_the_read_that_completes_it() -> None:
    opening = SHAPES[0].opening
    for place in range(1, len(spoken("a"))):
        tap = EventTap(CHAT, removes_usage=False)
        tap.feed(opening + b": wait\n\n" + spoken("a")[:place])
        assert tap.has_content is False
        tap.feed(spoken("a")[place:])
        assert tap.has_content is True


class CountingDialect(ChatDialect):
    """Chat, counting how many events are parsed."""

    def __init__(self) -> None:
        self.read_count = 0

    def read_event(self, event: bytes) -> EventFacts:
        self.read_count += 1
        return super().read_event(event)


@pytest.mark.parametrize("removes_usage", [True, False])
def test_nothing_is_parsed_in_the_steady_state_however_reads_are_cut(removes_usage: bool) -> None:
    dialect = CountingDialect()
    tap = EventTap(dialect, removes_usage)
    tap.feed(spoken("first"))
    before = dialect.read_count
    stream = (spoken("token") + NULL_USAGE) * 100
    for pieces in (cut(stream, *range(50, len(stream), 70)), cut(stream, 1_000, 5_000)):
        fed(tap, pieces)
    assert dialect.read_count == before
    fed(tap, cut(finish() + usage_event() + DONE, 10, 100))
    assert tap.is_terminal
    assert tap.usage is not None


@pytest.mark.parametrize(
    ("stream", "number"),
    [
        (b'data: {"sequence_number":41}\n\n', 42),
        (b'data: {"sequence_number": 0}\n\n', 1),
        (b'data: {"sequence_number":7}\n\ndata: {"sequence_number":8}\n\n', 9),
        (b'data: {"a":1}\n\n', None),
        (b'data: {"sequence_number":"x"}\n\n', None),
        (b"", None),
    ],
)
def test_an_error_continues_the_numbers_of_its_stream(stream: bytes, number: int | None) -> None:
    tap = EventTap(CHAT, removes_usage=False)
    tap.feed(stream)
    assert tap.next_sequence_number() == number
