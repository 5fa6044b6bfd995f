"""Usage that Weir asks for on its own behalf is invisible on the wire (report B11).

With `usage: ask` exactly two things are taken out again: the usage-only event and the `"usage":null` members
that it causes. Nothing is taken out for a caller that asked, or said that it does not want to.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.dialects.chat import CHAT as CHAT_DIALECT
from proxy.edge.event_tap import EventTap
from tests.support.chat import CHAT_STREAM, DONE, chat_policy
from tests.support.raw_upstream import Call
from tests.support.served import served
from tests.support.shapes import CHAT as CHAT_SHAPE
from tests.support.shapes import COMPLETIONS, Shape, data_event, every_shape, spoken, usage_event

NULL_USAGE = b',"usage":null'


def asked(call: Call) -> object:
    """Return what the upstream was asked for."""
    return json.loads(call.body).get("stream_options", "absent")


def with_null(event: bytes) -> bytes:
    """Return an event as OpenAI writes it in a stream that was asked for usage."""
    return event.replace(b"}\n\n", NULL_USAGE + b"}\n\n")


FINISH = data_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
OPENING = data_event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
WORDS = [spoken(word) for word in ("one ", "two ", "three ", "무엇 }", 'quoted "usage"', ',"usage":null')]
CLEAN = [OPENING, *WORDS, FINISH]
USAGE = usage_event(7, 6)
TOLD = [*map(with_null, CLEAN), USAGE, DONE]
UNTOLD = b"".join([*CLEAN, DONE])


def relay_to_caller(
    tmp_path: Path, policy: str | None, request: bytes, chunks: list[bytes]
) -> tuple[bytes, Call]:
    """Return what the caller got and the call that the upstream got."""

    def script(call: Call) -> None:
        call.stream_head()
        for data in chunks:
            call.chunk(data)
        call.end_chunks()

    with served(tmp_path, script, policy) as (proxy, upstream):
        answer = proxy.client().request("POST", CHAT_SHAPE.path, request)
        assert answer.is_whole
        return answer.body, upstream.calls[0]


# B11
@pytest.mark.parametrize(
    "packets", ["one event each", "all in one", "two events each", "odd cuts", "single bytes"]
)
def test_a_caller_that_did_not_ask_never_sees_usage(tmp_path: Path, packets: str) -> None:
    stream = b"".join(TOLD)
    match packets:
        case "one event each":
            chunks = TOLD
        case "all in one":
            chunks = [stream]
        case "two each":
            chunks = [b"".join(TOLD[index : index + 2]) for index in range(0, len(TOLD), 2)]
        case "odd cuts":
            chunks = [stream[index : index + 37] for index in range(0, len(stream), 37)]
        case _:
            chunks = [stream[index : index + 1] for index in range(len(stream))]
    body, call = relay_to_caller(tmp_path, chat_policy(), CHAT_STREAM, chunks)
    assert asked(call) == {"include_usage": True}
    assert body == UNTOLD


# B11
@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_usage_is_taken_out_wherever_the_network_cuts(cut: int) -> None:
    stream = b"".join(TOLD)
    for start in (0, cut, cut + 1, cut + 2):
        tap = EventTap(CHAT_DIALECT, removes_usage=True)
        pieces = [stream[:start], stream[start : start + cut + 1], stream[start + cut + 1 :]]
        assert b"".join([*(tap.feed(piece) for piece in pieces if piece), tap.finish()]) == UNTOLD
        assert tap.usage is not None
        assert (tap.usage.input_tokens, tap.usage.output_tokens) == (7, 6)


# B11
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_usage_is_taken_out_of_every_framing(line_end: bytes, size: int) -> None:
    told, untold = (stream.replace(b"\n", line_end) for stream in (b"".join(TOLD), UNTOLD))
    tap = EventTap(CHAT_DIALECT, removes_usage=True)
    pieces = [told[start : start + size] for start in range(0, len(told), size)]
    assert b"".join([*(tap.feed(piece) for piece in pieces), tap.finish()]) == untold


# B11
@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b'{"choices":[CHOICE],"usage":null}', b'{"choices":[CHOICE]}'),
        (b'{"usage":null,"choices":[CHOICE]}', b'{"choices":[CHOICE]}'),
        (b'{"choices": [CHOICE], "usage": null}', b'{"choices": [CHOICE]}'),
        (b'{"a":1,"usage":null,"choices":[CHOICE]}', b'{"a":1,"choices":[CHOICE]}'),
        (b'{"choices":[CHOICE],"usage":null,"z":"}"}', b'{"choices":[CHOICE],"z":"}"}'),
        (b'{"choices":[],"usage":null,"filter":[{"i":0}]}', b'{"choices":[],"filter":[{"i":0}]}'),
    ],
)
def test_the_null_member_goes_however_it_is_written(written: bytes, kept: bytes) -> None:
    choice = b'{"index":0,"delta":{"content":"x"}}'
    told = b"data: " + written.replace(b"CHOICE", choice) + b"\n\n"
    untold = b"data: " + kept.replace(b"CHOICE", choice) + b"\n\n"
    tap = EventTap(CHAT_DIALECT, removes_usage=True)
    assert tap.feed(told) == untold, "before the first token"
    tap.feed(WORDS[0])
    for copies in (1, 2, 3):
        assert tap.feed(told * copies) == untold * copies, f"{copies} in one packet"
    assert tap.feed(told + FINISH + told) == untold + FINISH + untold


# B11
@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"delta":{"content":"x","usage":null}}]}',
        b'{"choices":[{"delta":{"content":"x"}}],"x":{"y":1,"usage":null}}',
        b'{"choices":[{"delta":{"content":"x"},"usage":null}]}',
        b'{"choices":[{"delta":{"content":",\\"usage\\":null"}}]}',
        b'{"choices":[{"delta":{"content":"x"}}],"usage":0}',
        b'{"choices":[{"delta":{"content":"x"}}],"usage_":null}',
        b'{"choices":[{"delta":{"content":"x"}}],"usage":null',
    ],
)
def test_what_only_looks_like_the_null_member_stays(data: bytes) -> None:
    event = b"data: " + data + b"\n\n"
    tap = EventTap(CHAT_DIALECT, removes_usage=True)
    assert tap.feed(event) == event
    tap.feed(WORDS[0])
    for copies in (1, 2):
        assert tap.feed(event * copies) == event * copies


# B11
@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_a_usage_event_without_its_blank_line_is_taken_out_too(tmp_path: Path, ending: bytes) -> None:
    chunks = [*CLEAN, USAGE.rstrip(b"\n") + ending]
    body, _ = relay_to_caller(tmp_path, chat_policy(), CHAT_STREAM, chunks)
    assert body == b"".join(CLEAN)


# B11
def test_a_usage_event_that_is_also_something_else_stays(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 6}
    last = data_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage})
    body, _ = relay_to_caller(tmp_path, chat_policy(), CHAT_STREAM, [OPENING, *WORDS, last, DONE])
    assert body == b"".join([OPENING, *WORDS, last, DONE])


# B11
@pytest.mark.parametrize(
    "options",
    [
        b'{"include_usage":true}',
        b'{"include_usage":false}',
        b'{"include_usage":null}',
        b'{"include_obfuscation":false,"include_usage":true}',
        b'{ "include_usage" : false }',
        b'"nonsense"',
        b"[]",
    ],
)
def test_a_caller_that_decided_itself_gets_what_it_asked_for(tmp_path: Path, options: bytes) -> None:
    request = CHAT_STREAM[:-1] + b',"stream_options":' + options + b"}"
    body, call = relay_to_caller(tmp_path, chat_policy(), request, TOLD)
    assert call.body == request
    assert body == b"".join(TOLD)


# B11
@pytest.mark.parametrize("policy", [None, chat_policy('usage: "off"')], ids=["unmatched", "off"])
def test_nothing_is_asked_or_taken_out_where_no_route_says_so(tmp_path: Path, policy: str | None) -> None:
    body, call = relay_to_caller(tmp_path, policy, CHAT_STREAM, TOLD)
    assert call.body == CHAT_STREAM
    assert body == b"".join(TOLD)


# B11
@pytest.mark.parametrize("shape", [CHAT_SHAPE, COMPLETIONS], ids=lambda shape: shape.name)
def test_what_weir_asked_for_is_known_to_weir_alone(tmp_path: Path, shape: Shape) -> None:
    request = shape.request.replace(b',"stream_options":{"include_usage":true}', b"")

    def script(call: Call) -> None:
        call.stream_head()
        for event in (shape.opening, *shape.words, *shape.closing):
            call.chunk(event)
        call.end_chunks()

    with served(tmp_path, script, every_shape()) as (proxy, upstream):
        answer = proxy.client().request("POST", shape.path, request)
        record = proxy.log(1)[0]
        assert asked(upstream.calls[0]) == {"include_usage": True}
    assert answer.body == shape.whole.replace(usage_event(), b"")
    assert (record["tokens_in"], record["tokens_out"]) == shape.usage
    assert record["tpot_ms"] is not None


# B11
def test_other_stream_options_survive_the_asking(tmp_path: Path) -> None:
    request = CHAT_STREAM[:-1] + b',"stream_options":{"include_obfuscation":false}}'
    _, call = relay_to_caller(tmp_path, chat_policy(), request, TOLD)
    assert asked(call) == {"include_obfuscation": False, "include_usage": True}


# B11
def test_an_answer_that_is_not_streamed_is_never_asked_for_stream_usage(tmp_path: Path) -> None:
    request = CHAT_STREAM.replace(b',"stream":true', b"")
    body, call = relay_to_caller(tmp_path, chat_policy(), request, TOLD)
    assert call.body == request
    assert body == b"".join(TOLD)
