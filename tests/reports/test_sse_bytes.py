"""Event streams byte for byte: what gateways garbled, merged or re-wrapped (B01-B02, B05, B12-B15, B19).

Every framing that the HTML standard allows passes as it came and is understood all the same: first token,
finish reason and usage are known whatever the line ends and wherever the network cuts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from proxy.dialects.chat import CHAT as CHAT_DIALECT
from proxy.edge.event_tap import EventTap
from tests.support.chat import CHAT_STREAM, DONE, chat_policy, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, Script
from tests.support.served import served
from tests.support.shapes import CHAT, SHAPES, Shape, data_event, every_shape, spoken, usage_event

MIB = 1024 * 1024
UNASKED = chat_policy('usage: "off"')
ASKING = chat_policy()
BOM = b"\xef\xbb\xbf"


def in_chunks(chunks: Sequence[bytes], pause_seconds: float = 0.0) -> Script:
    """Return a script that answers every request with these chunks, each in a packet of its own."""

    def script(call: Call) -> None:
        call.stream_head()
        call.send_pieces((b"%x\r\n%b\r\n" % (len(data), data) for data in chunks), pause_seconds)
        call.end_chunks()

    return script


def one_after_another(streams: Sequence[bytes]) -> Script:
    """Return a script that answers each request with the next of these streams."""
    following = iter(streams)

    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(next(following))
        call.end_chunks()

    return script


def relayed(
    tmp_path: Path, chunks: Sequence[bytes], policy: str | None, request: bytes = CHAT.request
) -> tuple[RawAnswer, dict[str, object]]:
    """Send one stream through Weir; return what the caller got and the record."""
    with served(tmp_path, in_chunks(chunks), policy) as (proxy, _):
        answer = proxy.client().request("POST", CHAT.path, request)
        return answer, proxy.log(1)[0]


def framed(line_end: str, events: Sequence[Sequence[str]]) -> bytes:
    """Return events, given as their lines, with one line end throughout."""
    return "".join(line + line_end for lines in events for line in [*lines, ""]).encode()


TEXT = '{"choices":[{"index":0,"delta":{"content":"무엇 \U0001f9ea"}}]}'
ROLE = '{"choices":[{"index":0,"delta":{"role":"assistant"}}]}'
END = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":4}}'
DATAS = (ROLE, TEXT, TEXT, END, USAGE, "[DONE]")
PRETTY = [f"data: {line}" for line in json.dumps(json.loads(TEXT), indent=1, ensure_ascii=False).split("\n")]
PLAIN = [[f"data: {data}"] for data in DATAS]
MIXED_ENDS = ("\r\n\n", "\n\r\n", "\r\r\n", "\n\n", "\r\n\r\n", "\n\r")

FRAMINGS: dict[str, bytes] = {
    "lf": framed("\n", PLAIN),
    "crlf": framed("\r\n", PLAIN),
    "cr": framed("\r", PLAIN),
    "mixed": "".join(f"data: {data}{end}" for data, end in zip(DATAS, MIXED_ENDS, strict=True)).encode()
    + b"\n",
    "no space": framed("\n", [[f"data:{data}"] for data in DATAS]),
    "bom": BOM + framed("\n", PLAIN),
    "bom crlf": BOM + framed("\r\n", PLAIN),
    "comments": b": hi\n\n:\n\n"
    + framed("\n", [[": x", f"data: {data}", ":y"] for data in DATAS])
    + b": bye\n\n",
    "fields": framed("\r\n", [["id: 7", "event: x", f"data: {data}", "retry: 3", "odd"] for data in DATAS]),
    "many lines": framed("\n", [[f"data: {ROLE}"], PRETTY, PRETTY, *PLAIN[3:]]),
    "many lines crlf": framed("\r\n", [[f"data: {ROLE}"], PRETTY, PRETTY, *PLAIN[3:]]),
    "many lines cr": framed("\r", [[f"data: {ROLE}"], PRETTY, PRETTY, *PLAIN[3:]]),
    "blank lines": b"\n\n\n" + framed("\n", [[f"data: {data}", ""] for data in DATAS]),
    "empty events": framed(
        "\n", [lines for data in DATAS for lines in (["data:"], ["data"], [f"data: {data}"])]
    ),
    "spaced": framed(
        "\n", [[f"data: {json.dumps(json.loads(data))}"] for data in DATAS[:-1]] + [["data: [DONE]"]]
    ),
}


# B01
@pytest.mark.parametrize("policy", [None, UNASKED, ASKING], ids=["unmatched", "usage off", "usage asked"])
def test_characters_survive_any_chunk_cut(tmp_path: Path, policy: str | None) -> None:
    stream = spoken("무엇을") + spoken("\U0001f9ea") + finish() + DONE
    cuts = iter(range(1, len(stream)))

    def script(call: Call) -> None:
        cut = next(cuts)
        call.stream_head()
        call.send_pieces(
            [b"%x\r\n%b\r\n" % (len(part), part) for part in (stream[:cut], stream[cut:])], 0.0005
        )
        call.end_chunks()

    with served(tmp_path, script, policy) as (proxy, _):
        client = proxy.client()
        for cut in range(1, len(stream)):
            answer = client.request("POST", CHAT.path, CHAT_STREAM)
            assert answer.body == stream, f"cut at {cut}"
            assert answer.is_whole


# B01
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_stream_of_single_bytes_arrives_whole_and_is_understood(tmp_path: Path, shape: Shape) -> None:
    stream = shape.whole
    pieces = [stream[index : index + 1] for index in range(len(stream))]
    with served(tmp_path, in_chunks(pieces, 0.0001), every_shape()) as (proxy, _):
        answer = proxy.client().request("POST", shape.path, shape.request)
        record = proxy.log(1)[0]
    assert answer.body == stream
    assert (record["tokens_in"], record["tokens_out"]) == shape.usage
    assert record["finish_reason"] == shape.finished
    assert record["ttft_ms"] > 0
    assert record["error"] is None


# B02
def test_half_a_character_before_a_pause_is_no_error(tmp_path: Path) -> None:
    stream = spoken("中") + finish() + DONE
    cut = stream.index("中".encode()) + 1

    def script(call: Call) -> None:
        call.stream_head()
        call.send_pieces([b"%x\r\n%b\r\n" % (len(part), part) for part in (stream[:cut], stream[cut:])], 0.2)
        call.end_chunks()

    with served(tmp_path, script, UNASKED) as (proxy, _):
        answer = proxy.client().request("POST", CHAT.path, CHAT_STREAM)
        assert proxy.log(1)[0]["error"] is None
    assert answer.body == stream
    assert answer.is_whole


# B02
@pytest.mark.parametrize("policy", [UNASKED, ASKING], ids=["usage off", "usage asked"])
def test_bytes_that_are_no_utf_8_pass_untouched(tmp_path: Path, policy: str) -> None:
    streams = []
    for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\xc0\xaf"):
        broken = spoken("a?b").replace(b"?", bad)
        streams.append(broken + spoken("c") + broken + finish() + DONE)
    with served(tmp_path, one_after_another(streams), policy) as (proxy, _):
        client = proxy.client()
        for stream in streams:
            answer = client.request("POST", CHAT.path, CHAT_STREAM)
            assert answer.body == stream
            assert answer.is_whole
        for record in proxy.log(len(streams)):
            assert (record["error"], record["finish_reason"]) == (None, "stop")


# B01, B13, B15
@pytest.mark.parametrize("policy", [None, UNASKED, ASKING], ids=["unmatched", "usage off", "usage asked"])
def test_every_legal_framing_passes_byte_for_byte(tmp_path: Path, policy: str | None) -> None:
    script = one_after_another(list(FRAMINGS.values()))
    with served(tmp_path, script, policy) as (proxy, _):
        client = proxy.client()
        for name, stream in FRAMINGS.items():
            answer = client.request("POST", CHAT.path, CHAT.request)
            assert answer.body == stream, name
            assert answer.is_whole, name
        records = proxy.log(len(FRAMINGS))
    for name, record in zip(FRAMINGS, records, strict=True) if policy is not None else ():
        assert (record["tokens_in"], record["tokens_out"]) == (5, 4), name
        assert (record["finish_reason"], record["error"]) == ("stop", None), name
        assert record["ttft_ms"] is not None, name


def understood(stream: bytes, pieces: Sequence[bytes], removes_usage: bool) -> EventTap:
    """Feed a tap and check that it forwards every byte; return it."""
    tap = EventTap(CHAT_DIALECT, removes_usage)
    assert b"".join([*(tap.feed(piece) for piece in pieces), tap.finish()]) == stream
    return tap


# B01
@pytest.mark.parametrize("removes_usage", [False, True])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_framing_is_understood_wherever_it_is_cut(framing: str, removes_usage: bool) -> None:
    stream = FRAMINGS[framing]
    if removes_usage:
        stream = stream.replace(b'"choices":[],', b'"choices":[{"index":0}],').replace(
            b'"choices": [],', b'"choices": [{"index": 0}],'
        )
    cuts = [[stream[:cut], stream[cut:]] for cut in range(1, len(stream))]
    cuts += [[stream[start : start + size] for start in range(0, len(stream), size)] for size in (1, 2, 3, 7)]
    for pieces in cuts:
        tap = understood(stream, pieces, removes_usage)
        assert tap.has_content
        assert tap.is_terminal
        assert tap.finish_reason == "stop"
        assert tap.usage is not None
        assert tap.usage.output_tokens == 4
        assert not tap.has_error


# B12
@pytest.mark.parametrize("policy", [UNASKED, ASKING], ids=["usage off", "usage asked"])
def test_chunks_without_a_choice_harm_nobody(tmp_path: Path, policy: str) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 4}
    odd: list[object] = [
        {"choices": [], "usage": usage},
        {"usage": usage},
        {"choices": None},
        {},
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {"choices": [None, 3, "x"]},
        {"choices": {"0": {}}},
        {"type": "ping"},
        [1],
        None,
        "text",
    ]
    odd_bytes = b"".join(data_event(said) for said in odd)
    stream = odd_bytes + spoken("a") + odd_bytes + spoken("b") + odd_bytes + finish() + odd_bytes + DONE
    answer, record = relayed(tmp_path, [stream], policy)
    assert answer.body == stream
    assert answer.is_whole
    assert record["error"] is None
    assert (record["tokens_in"], record["tokens_out"]) == (5, 4)


# B13
def test_comments_of_the_upstream_stay_comments_and_are_no_first_token(tmp_path: Path) -> None:
    noise = b": OPENROUTER PROCESSING\n\n: ping - 2\n\n:\r\n\r\n"

    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(noise)
        call.send_pieces([b"%x\r\n%b\r\n" % (len(noise), noise)] * 3, 0.2)
        for event in (spoken("a"), noise, spoken("b"), noise, finish(), DONE, noise):
            call.chunk(event)
        call.end_chunks()

    with served(tmp_path, script, UNASKED) as (proxy, _):
        answer = proxy.client().request("POST", CHAT.path, CHAT_STREAM)
        record = proxy.log(1)[0]
    assert answer.body == noise * 4 + spoken("a") + noise + spoken("b") + noise + finish() + DONE + noise
    assert record["ttft_ms"] >= 600
    assert record["first_byte_ms"] < 400
    assert record["error"] is None


def large_event(size_bytes: int) -> bytes:
    """Return a content event of about this size, with every byte of its text different from its neighbour."""
    return spoken("0123456789abcdef" * (size_bytes // 16))


# B14
@pytest.mark.parametrize("policy", [None, UNASKED, ASKING], ids=["unmatched", "usage off", "usage asked"])
@pytest.mark.parametrize("size_bytes", [17 * 1024, 64 * 1024, 700 * 1024, MIB - 64, MIB + 1, 9 * MIB])
def test_an_event_longer_than_any_line_buffer_arrives(
    tmp_path: Path, policy: str | None, size_bytes: int
) -> None:
    large = large_event(size_bytes)
    stream = spoken("a") + large + spoken("b") + large + finish() + usage_event() + DONE
    answer, record = relayed(tmp_path, [stream], policy)
    assert answer.body == stream
    assert answer.is_whole
    if policy is not None:
        assert (record["tokens_out"], record["finish_reason"], record["error"]) == (4, "stop", None)


USAGE_WITH_CHOICE = data_event(
    {"choices": [{"index": 0, "delta": {}}], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}
)


# B14
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("removes_usage", [False, True])
@pytest.mark.parametrize("packet_bytes", [700, 50_000, 3 * MIB])
def test_an_event_beyond_the_limit_is_bounded_and_what_follows_is_understood(
    removes_usage: bool, line_end: bytes, packet_bytes: int
) -> None:
    stream = large_event(MIB + MIB // 4) + spoken("b") + finish() + USAGE_WITH_CHOICE + DONE
    stream = stream.replace(b"\n", line_end)
    tap = EventTap(CHAT_DIALECT, removes_usage)
    forwarded = bytearray()
    for start in range(0, len(stream), packet_bytes):
        packet = stream[start : start + packet_bytes]
        forwarded += tap.feed(packet)
        withheld_bytes = start + len(packet) - len(forwarded)
        assert withheld_bytes < 64 * 1024, "more is withheld than a usage event can be long"
    assert bytes(forwarded) + tap.finish() == stream
    assert tap.finish_reason == "stop"
    assert tap.usage is not None


# B14
@pytest.mark.parametrize("removes_usage", [False, True])
def test_a_large_event_in_tiny_pieces_costs_time_in_proportion_to_its_length(removes_usage: bool) -> None:
    def cost_seconds(size_bytes: int) -> float:
        event = large_event(size_bytes)
        tap = EventTap(CHAT_DIALECT, removes_usage)
        begin = time.thread_time()
        for start in range(0, len(event), 32):
            tap.feed(event[start : start + 32])
        return time.thread_time() - begin

    short_seconds, long_seconds = cost_seconds(100 * 1024), cost_seconds(900 * 1024)
    # Nine times the length; copying what is held with every piece would make it eighty-one.
    assert long_seconds < 30 * short_seconds


# B15
@pytest.mark.parametrize("policy", [None, UNASKED, ASKING], ids=["unmatched", "usage off", "usage asked"])
@pytest.mark.parametrize(
    "last", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r", b"data: [DONE]\r\n\r"]
)
def test_a_last_event_without_its_blank_line_is_left_as_it_is(
    tmp_path: Path, policy: str | None, last: bytes
) -> None:
    stream = spoken("a") + finish() + last
    answer, record = relayed(tmp_path, [stream], policy, CHAT_STREAM)
    assert answer.body == stream
    assert answer.is_whole
    assert record["error"] is None


# B15
def test_a_last_line_feed_that_comes_late_is_not_lost(tmp_path: Path) -> None:
    stream = spoken("a") + finish() + DONE

    def script(call: Call) -> None:
        call.stream_head()
        call.send_pieces([b"%x\r\n%b\r\n" % (len(part), part) for part in (stream[:-1], stream[-1:])], 0.2)
        call.end_chunks()

    with served(tmp_path, script, ASKING) as (proxy, _):
        assert proxy.client().request("POST", CHAT.path, CHAT_STREAM).body == stream


def tool_call(choice: int, **call: object) -> bytes:
    """Return a chunk with one piece of a tool call."""
    return data_event({"choices": [{"index": choice, "delta": {"tool_calls": [call]}}]})


# B19
@pytest.mark.parametrize("policy", [UNASKED, ASKING], ids=["usage off", "usage asked"])
def test_interleaved_tool_calls_are_never_merged(tmp_path: Path, policy: str) -> None:
    two = [{"index": 0, "function": {"arguments": "1"}}, {"index": 0, "function": {"arguments": "2"}}]
    events = [
        tool_call(0, index=0, id="a", type="function", function={"name": "f", "arguments": ""}),
        tool_call(1, index=0, id="b", type="function", function={"name": "g", "arguments": ""}),
        tool_call(0, index=0, function={"arguments": '{"x":'}),
        tool_call(1, index=0, function={"arguments": '{"y":'}),
        tool_call(0, index=0, id="c", type="function", function={"name": "h", "arguments": "{}"}),
        data_event({"choices": [{"index": 0, "delta": {"tool_calls": two}}]}),
        tool_call(0, function={"arguments": "}"}),
        data_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        data_event({"choices": [{"index": 1, "delta": {}, "finish_reason": "tool_calls"}]}),
        DONE,
    ]
    for chunks in (events, [b"".join(events)]):
        answer, record = relayed(tmp_path, chunks, policy, CHAT_STREAM)
        assert answer.body == b"".join(events)
        assert record["finish_reason"] == "tool_calls"
        assert record["error"] is None


# B05
@pytest.mark.parametrize("policy", [None, UNASKED, ASKING], ids=["unmatched", "usage off", "usage asked"])
@pytest.mark.parametrize("is_one_packet", [True, False])
def test_done_arrives_exactly_once(tmp_path: Path, policy: str | None, is_one_packet: bool) -> None:
    events = [spoken("a"), spoken("b"), finish(), DONE]
    chunks = [b"".join(events)] if is_one_packet else events
    answer, _ = relayed(tmp_path, chunks, policy, CHAT_STREAM)
    assert answer.body.count(b"[DONE]") == 1
    assert answer.body.endswith(DONE)
    assert answer.is_whole
