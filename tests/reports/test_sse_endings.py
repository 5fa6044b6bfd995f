"""How event streams end: whole ones well-formed, cut ones with an explicit error (B06-B08, B10, B15-B17).

Choices: a cut stream gets an error event in its API's shape, never `[DONE]`, which is never added. An answer
is whole once its finish reason or terminal event was seen, whatever comes or does not come after it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from proxy.dialects.responses import RESPONSES as RESPONSES_DIALECT
from proxy.edge.event_tap import EventTap
from tests.support.chat import CHAT_STREAM, DONE, chat_policy, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, Script
from tests.support.served import served
from tests.support.shapes import CHAT, RESPONSES, SHAPES, Shape, data_event, every_shape, spoken, usage_event
from tests.support.weir import RunningWeir

EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
CUTS = pytest.mark.parametrize("cut", ["clean end", "fin", "reset", "bad chunk", "short length", "silence"])
IDLE = "timeouts: {idle: 150ms}"
CODES = {
    "clean end": "upstream_closed",
    "fin": "upstream_closed",
    "reset": "upstream_closed",
    "short length": "upstream_closed",
    "bad chunk": "upstream_protocol_error",
    "silence": "upstream_idle_timeout",
}


def end_as(call: Call, stream: bytes, cut: str) -> None:
    """Answer with `stream` and then end as `cut` says."""
    if cut == "short length":
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100000\r\n\r\n")
        call.send(stream)
        call.close()
        return
    call.stream_head()
    if stream:
        call.chunk(stream)
    match cut:
        case "clean end":
            call.end_chunks()
        case "fin":
            call.close()
        case "reset":
            time.sleep(0.02)
            call.reset()
        case "bad chunk":
            call.send(b"zz\r\nwhat\r\n")
        case _:
            assert call.wait_for_close(5.0), "the upstream's connection is still open"


def cut_after(stream: bytes, cut: str) -> Script:
    """Return a script that answers with `stream` and then ends as `cut` says."""
    return lambda call: end_as(call, stream, cut)


def shape_of(call: Call) -> Shape:
    """Return the shape that a call asks for."""
    return next(shape for shape in SHAPES if shape.path.encode() == call.target)


def ask(proxy: RunningWeir, shape: Shape) -> RawAnswer:
    """Send the shape's request on a connection of its own."""
    with proxy.client(5.0) as client:
        return client.request("POST", shape.path, shape.request)


def ask_all(proxy: RunningWeir) -> list[tuple[Shape, RawAnswer]]:
    """Send every shape's request at once; return the answers."""
    clients = [(shape, proxy.client(5.0)) for shape in SHAPES]
    for shape, client in clients:
        client.send_request("POST", shape.path, shape.request)
    return [(shape, client.read_answer("POST")) for shape, client in clients]


# B07, B08, B16
@CUTS
def test_a_stream_cut_midway_ends_in_an_error_of_its_own_shape(tmp_path: Path, cut: str) -> None:
    def script(call: Call) -> None:
        end_as(call, shape_of(call).half, cut)

    with served(tmp_path, script, every_shape(upstream=IDLE)) as (proxy, _):
        answers = ask_all(proxy)
        records = proxy.log(len(SHAPES))
        assert proxy.metric("weir_errors_total", code=CODES[cut]) == len(SHAPES)
    for shape, answer in answers:
        assert answer.status == 200
        assert answer.body.startswith(shape.half)
        assert answer.body.count(b'"error"') == (1 if shape.name in ("chat", "completions") else 2)
        assert CODES[cut] in json.dumps(shape.error_of(answer.body))
        for healthy_end in (b"[DONE]", b"message_stop", b"response.completed"):
            assert healthy_end not in answer.body
        assert not answer.is_whole, "a broken answer must not look well-formed"
    assert {(record["error"], record["status"]) for record in records} == {(CODES[cut], 200)}


# B07, B08
@EACH_SHAPE
def test_every_place_of_a_cut_shows(tmp_path: Path, shape: Shape) -> None:
    stream = shape.opening + b"".join(shape.words) + shape.closing[0]
    first = len(shape.opening + shape.words[0])
    # From the end of the first word to just before the last event's data is complete.
    places = [*range(first, len(stream) - 4, 13), len(stream) - 4]
    cuts = iter(places)

    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(stream[: next(cuts)])
        call.end_chunks()

    with served(tmp_path, script, every_shape()) as (proxy, _):
        for place in places:
            answer = ask(proxy, shape)
            assert shape.error_of(answer.body), place
            assert not answer.is_whole, place
            assert b"[DONE]" not in answer.body, place
        assert {record["error"] for record in proxy.log(len(places))} == {"upstream_closed"}


# B07
@CUTS
@pytest.mark.parametrize("sent", ["nothing", "comments", "the opening"])
def test_a_stream_cut_before_its_first_token_is_still_a_true_status(
    tmp_path: Path, cut: str, sent: str
) -> None:
    def script(call: Call) -> None:
        end_as(call, {"nothing": b"", "comments": b": hi\n\n"}.get(sent, shape_of(call).opening), cut)

    with served(tmp_path, script, every_shape(upstream=IDLE)) as (proxy, _):
        for _, answer in ask_all(proxy):
            assert answer.status == (504 if cut == "silence" else 502)
            assert answer.header("content-type") == "application/json"
            assert json.loads(answer.body)["error"]["code"] == CODES[cut]
            assert answer.is_whole
        assert {record["error"] for record in proxy.log(len(SHAPES))} == {CODES[cut]}


# B06
@pytest.mark.parametrize("cut", ["clean end", "fin", "reset"])
def test_a_stream_that_said_its_last_word_is_a_success(tmp_path: Path, cut: str) -> None:
    def unmarked(shape: Shape) -> bytes:
        return shape.whole.removesuffix(shape.closing[-1]) if len(shape.closing) > 1 else shape.whole

    with served(tmp_path, lambda call: end_as(call, unmarked(shape_of(call)), cut), every_shape()) as (
        proxy,
        _,
    ):
        for shape in SHAPES:
            begin = time.monotonic()
            answer = ask(proxy, shape)
            assert time.monotonic() - begin < 1.0, "the end came late"
            assert answer.body == unmarked(shape)
            assert answer.is_whole
        endings = [(record["error"], record["finish_reason"]) for record in proxy.log(len(SHAPES))]
        assert proxy.metric("weir_errors_total") == 0
    assert endings == [(None, shape.finished) for shape in SHAPES]


# B06
def test_an_upstream_that_stays_open_after_its_last_word_does_not_hold_the_caller(tmp_path: Path) -> None:
    closed: list[bool] = []

    def script(call: Call) -> None:
        shape = shape_of(call)
        call.stream_head()
        call.chunk(shape.whole if shape is not CHAT else DONE)
        closed.append(call.wait_for_close(5.0))

    with served(tmp_path, script, every_shape()) as (proxy, _):
        clients = [(shape, proxy.client(5.0)) for shape in SHAPES]
        begin = time.monotonic()
        for shape, client in clients:
            client.send_request("POST", shape.path, shape.request)
        for shape, client in clients:
            answer = client.read_answer()
            assert answer.is_whole
            assert answer.body == (shape.whole if shape is not CHAT else DONE)
        assert time.monotonic() - begin < 1.8
        assert {record["error"] for record in proxy.log(len(SHAPES))} == {None}
    assert closed == [True] * len(SHAPES)


# B06
@pytest.mark.parametrize("policy", [None, chat_policy(), chat_policy('usage: "off"')])
def test_done_is_never_added(tmp_path: Path, policy: str | None) -> None:
    stream = spoken("a") + finish() + usage_event()
    with served(tmp_path, cut_after(stream, "clean end"), policy) as (proxy, _):
        answer = ask(proxy, CHAT)
    assert answer.body == stream
    assert answer.is_whole


# B07
@pytest.mark.parametrize(
    ("request_body", "endings"),
    [
        (CHAT_STREAM[:-1] + b',"n":2}', [finish()]),
        (CHAT_STREAM[:-1] + b',"n":3}', [finish(), finish().replace(b'"index":0', b'"index":1')]),
    ],
)
def test_an_answer_with_one_of_its_choices_cut_is_not_whole(
    tmp_path: Path, request_body: bytes, endings: list[bytes]
) -> None:
    stream = spoken("a") + b"".join(endings)
    with served(tmp_path, cut_after(stream, "clean end"), chat_policy()) as (proxy, _):
        answer = proxy.client().request("POST", CHAT.path, request_body)
        assert proxy.log(1)[0]["error"] == "upstream_closed"
    assert CHAT.error_of(answer.body)


# B07
def test_an_answer_with_all_of_its_choices_finished_is_whole(tmp_path: Path) -> None:
    both = {"choices": [{"index": 0, "finish_reason": "stop"}, {"index": 1, "finish_reason": "length"}]}
    one_each = finish() + finish("length").replace(b'"index":0', b'"index":1')
    for ending in (data_event(both), one_each, finish() + DONE):
        stream = spoken("a") + ending
        with served(tmp_path, cut_after(stream, "clean end"), chat_policy()) as (proxy, _):
            answer = proxy.client().request("POST", CHAT.path, CHAT_STREAM[:-1] + b',"n":2}')
            assert proxy.log(1)[0]["error"] is None
        assert answer.body == stream
        assert answer.is_whole


# B07
@pytest.mark.parametrize("cut", ["fin", "reset", "bad chunk"])
def test_a_broken_transfer_stays_broken_where_no_route_matches(tmp_path: Path, cut: str) -> None:
    with served(tmp_path, cut_after(CHAT.half, cut)) as (proxy, _):
        answer = ask(proxy, CHAT)
        assert proxy.log(1)[0]["error"] == CODES[cut]
    assert answer.body == CHAT.half, "what nothing matches is relayed, nothing is added"
    assert not answer.is_whole


# B08
@pytest.mark.parametrize("piece_bytes", [1, 40, 10_000])
def test_the_error_of_a_numbered_stream_continues_its_numbers(tmp_path: Path, piece_bytes: int) -> None:
    half = RESPONSES.half + RESPONSES.words[2][:30]
    tap = EventTap(RESPONSES_DIALECT, removes_usage=False)
    for start in range(0, len(half), piece_bytes):
        tap.feed(half[start : start + piece_bytes])
    assert tap.next_sequence_number() == 3
    with served(tmp_path, cut_after(half, "fin"), every_shape()) as (proxy, _):
        assert RESPONSES.error_of(ask(proxy, RESPONSES).body)["sequence_number"] == 3


# B08, B15
@pytest.mark.parametrize("torn", [b"d", b'data: {"choices":[{"ind', b": com", b"data: {}\n", b"event: x\n"])
@pytest.mark.parametrize("usage", ["usage: ask", 'usage: "off"'])
def test_an_error_event_is_never_glued_to_half_an_event(tmp_path: Path, torn: bytes, usage: str) -> None:
    stream = spoken("a") + torn
    with served(tmp_path, cut_after(stream, "fin"), chat_policy(usage)) as (proxy, _):
        answer = ask(proxy, CHAT)
    assert CHAT.error_of(answer.body)
    last = answer.body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    assert last.startswith(b'data: {"error"')


# B16
def test_tool_calls_that_come_after_a_long_silence_arrive(tmp_path: Path) -> None:
    call_event = data_event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a"}]}}]})
    end = data_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})

    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(spoken("thinking"))
        time.sleep(0.6)
        for event in (call_event, end, DONE):
            call.chunk(event)
        call.end_chunks()

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        answer = ask(proxy, CHAT)
    assert answer.body == spoken("thinking") + call_event + end + DONE
    assert answer.is_whole


ERRORS = [
    data_event({"error": {"code": 400, "message": "no"}}),
    b"event: error\n" + data_event({"message": "no"}),
    data_event({"object": "error", "message": "no", "code": 400}),
    data_event({"choices": [{"index": 0, "finish_reason": "error"}], "error": {"code": 502}}),
]


# B10
@pytest.mark.parametrize("before", [b"", b": PROCESSING\n\n" * 3, CHAT.opening])
def test_an_error_as_the_first_event_is_a_recorded_failure(tmp_path: Path, before: bytes) -> None:
    def script(call: Call) -> None:
        end_as(call, before + ERRORS[call.number], "clean end")

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        for error in ERRORS:
            answer = ask(proxy, CHAT)
            assert answer.status == 200
            assert answer.body == before + error
        records = proxy.log(len(ERRORS))
        assert proxy.metric("weir_errors_total", code="upstream_error_event") == len(ERRORS)
    assert {record["error"] for record in records} == {"upstream_error_event"}


# B10
def test_looking_for_the_first_token_ends_by_bytes_and_by_time(tmp_path: Path) -> None:
    comments = b": PROCESSING\n\n" * 1000

    def many_bytes(call: Call) -> None:
        call.stream_head()
        for _ in range(20):
            call.chunk(comments)
        call.wait_for_close(5.0)

    def long_time(call: Call) -> None:
        call.stream_head()
        call.chunk(b": PROCESSING\n\n")
        call.wait_for_close(5.0)

    for script, route in ((many_bytes, ""), (long_time, "commit_after: 100ms")):
        with served(tmp_path, script, chat_policy(route)) as (proxy, _), proxy.client(2.0) as client:
            client.send_request("POST", CHAT.path, CHAT_STREAM)
            assert client.read_head().status == 200


# B17
def test_broken_data_in_midstream_is_the_callers_to_judge(tmp_path: Path) -> None:
    broken = b"data: {broken\n\ndata: \xff{\n\n" + b"data: " + b"[" * 5000 + b"\n\n"
    stream = spoken("a") + broken + spoken("b") + broken + finish() + broken + DONE
    with served(tmp_path, cut_after(stream, "clean end"), chat_policy()) as (proxy, _):
        answer = ask(proxy, CHAT)
        assert proxy.log(1)[0]["error"] is None
    assert answer.body == stream
    assert answer.is_whole


# B17
def test_a_failure_in_midstream_never_begins_a_second_answer(tmp_path: Path) -> None:
    scripts = iter([cut_after(CHAT.half, cut) for cut in ("reset", "bad chunk", "fin")])

    def script(call: Call) -> None:
        if b"healthy" in call.body:
            call.json(b"{}")
        else:
            next(scripts)(call)

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        for _ in range(3):
            with proxy.client() as client, proxy.client() as neighbour:
                client.send_request("POST", CHAT.path, CHAT_STREAM)
                received = b"".join(iter(client.receive, b""))
                assert received.count(b"HTTP/1.1") == 1
                assert received.count(b'"error"') == 1
                assert neighbour.request("POST", CHAT.path, b'{"model":"healthy"}').body == b"{}"
        broken = [record for record in proxy.log(6) if record["error"]]
    assert len(broken) == 3
    assert len({record["request_id"] for record in broken}) == 3


# B15
@pytest.mark.parametrize(
    "last", [b"data: [DONE]", b"data: [DONE]\n", finish().rstrip(b"\n"), DONE + b": bye"]
)
@pytest.mark.parametrize("usage", ["usage: ask", 'usage: "off"'])
def test_a_timing_comment_is_never_glued_to_half_an_event(tmp_path: Path, last: bytes, usage: str) -> None:
    stream = spoken("a") + finish() + last
    with served(tmp_path, cut_after(stream, "clean end"), chat_policy(usage, "timing_comment: true")) as (
        proxy,
        _,
    ):
        answer = ask(proxy, CHAT)
    assert answer.body == stream
    assert answer.is_whole


# B15
def test_a_timing_comment_is_the_last_line_of_a_whole_stream(tmp_path: Path) -> None:
    with served(
        tmp_path,
        lambda call: end_as(call, shape_of(call).whole, "clean end"),
        every_shape("timing_comment: true"),
    ) as (proxy, _):
        for shape in SHAPES:
            answer = ask(proxy, shape)
            assert answer.is_whole
            assert answer.body.startswith(shape.whole + b": weir ttft_ms=")
            assert answer.body.removeprefix(shape.whole).count(b"\n") == 2
            assert answer.body.endswith(b"tokens=4\n\n")
