from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.sse import EventSplitter, event_data, event_name

LINES = st.sampled_from(
    ["data: {}", "data:x", "data", ": comment", "event: ping", "id: 1", "", "", "data: 무엇을 😀", "retry: 3"]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def split(*chunks: bytes) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events, splitter.carry


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    end = draw(st.sampled_from(["\n", "\r\n", "\r", "mixed"]))
    lines = draw(st.lists(LINES, max_size=12))
    return "".join(line + (draw(ENDS) if end == "mixed" else end) for line in lines).encode()


@given(streams())
def test_events_and_carry_are_the_stream_at_every_cut(stream: bytes) -> None:
    events, carry = split(stream)
    assert b"".join(events) + carry == stream
    for cut in range(len(stream) + 1):
        assert split(stream[:cut], stream[cut:]) == (events, carry)


@given(streams())
def test_one_byte_at_a_time_gives_the_same_events(stream: bytes) -> None:
    assert split(*(stream[index : index + 1] for index in range(len(stream)))) == split(stream)


@given(streams(), st.lists(st.integers(0, 200), max_size=8))
def test_any_cuts_give_the_same_events(stream: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert split(*chunks) == split(stream)


@given(streams())
def test_data_is_what_the_standard_says(stream: bytes) -> None:
    events, carry = split(stream)
    if b"\r" in stream:
        stream = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    expected = [block for block in stream.split(b"\n\n") if block.strip(b"\n")]
    datas = []
    for block in expected:
        lines = [line for line in block.split(b"\n") if line == b"data" or line.startswith(b"data:")]
        values = [line[5:] for line in lines]
        datas.append(b"\n".join(value.removeprefix(b" ") for value in values))
    read = [event_data(event) for event in [*events, carry] if event.strip(b"\r\n")]
    assert read == datas


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_complete_with_its_blank_line(end: bytes) -> None:
    one = b"data: a" + end + end
    assert split(one + b"data: b" + end) == ([one], b"data: b" + end)


def test_a_blank_line_that_ends_in_cr_waits_for_its_lf() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\r\n\r") == []
    assert splitter.feed(b"\n") == [b"data: a\r\n\r\n"]
    assert splitter.carry == b""


def test_bare_crs_do_not_wait() -> None:
    assert split(b"data: a\r\r") == ([b"data: a\r\r"], b"")


def test_several_events_in_one_chunk_come_one_by_one() -> None:
    assert split(b": hb\n\ndata: 1\n\ndata: [DONE]\n\n")[0] == [
        b": hb\n\n",
        b"data: 1\n\n",
        b"data: [DONE]\n\n",
    ]


def test_an_event_of_8_mb_costs_no_more_than_its_length() -> None:
    splitter = EventSplitter()
    piece = b"x" * 1024
    splitter.feed(b"data: ")
    # A scan from the start at every piece would touch 32 GB.
    for _ in range(8 * 1024):
        assert splitter.feed(piece) == []
    (event,) = splitter.feed(b"\n\n")
    assert len(event) == 8 * 1024 * 1024 + 8
    assert splitter.carry == b""


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data\n\n", b""),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"data: a\rdata: b\r\r", b"a\nb"),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b"event: e\ndata: x\n\n", b"x"),
        (b"event: e\ndata: x\nid: 1\n\n", b"x"),
        (b"id: 1\nevent: e\ndata: x\n\n", b"x"),
        (b": comment\n\n", b""),
        (b"event: ping\n\n", b""),
        (b"dataset: x\n\n", b""),
        ("data: \u2028\x85\n\n".encode(), "\u2028\x85".encode()),
        (b"data: cut", b"cut"),
        (b"data: cut\nX", b"cut"),
        (b"\ndata: x\n\n", b"x"),
    ],
)
def test_data_lines_are_joined(event: bytes, data: bytes) -> None:
    assert event_data(event) == data


def test_the_last_event_line_names_it() -> None:
    assert event_name(b"event: ping\n\n") == b"ping"
    assert event_name(b"data: x\nevent: a\nevent:b\n\n") == b"b"
    assert event_name(b"data: event: x\n\n") == b""
    assert event_name(b": event: x\r\n\r\n") == b""
