"""When events arrive, and what keeps a silent stream alive (reports B03, B04, B09, B20, B21).

Choices: nothing is pooled on the way back, so there is no window that could delay a token. Heartbeats are off
unless a route turns them on; with them the status is spent before the upstream has answered.
"""

from __future__ import annotations

import gzip
import json
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.chat import CHAT_STREAM, DONE, chat_policy, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, Script
from tests.support.served import served
from tests.support.shapes import CHAT, SHAPES, data_event, every_shape, spoken
from tests.support.sse_decoder import dispatched
from tests.support.weir import RunningWeir

BEAT = b": keep-alive\n\n"
BEATING = chat_policy("heartbeat: 50ms")
SILENCE_SECONDS = 0.25


def in_pieces(
    pieces: Sequence[bytes], silence_seconds: float = SILENCE_SECONDS, headers: bytes = b""
) -> Script:
    """Return a script that is silent before and between these pieces of a stream."""

    def script(call: Call) -> None:
        call.stream_head(headers)
        for piece in pieces:
            time.sleep(silence_seconds)
            call.chunk(piece)
        call.end_chunks()

    return script


def ask(proxy: RunningWeir, request: bytes = CHAT.request) -> RawAnswer:
    """Send a request on a connection of its own."""
    with proxy.client(5.0) as client:
        return client.request("POST", CHAT.path, request)


# B03, B20
@pytest.mark.parametrize(
    "policy", [None, chat_policy(), chat_policy("heartbeat: 10s", "timing_comment: true")]
)
def test_every_event_arrives_when_it_is_written(tmp_path: Path, policy: str | None) -> None:
    written: list[float] = []

    def script(call: Call) -> None:
        call.stream_head()
        for number in range(20):
            written.append(time.monotonic())
            call.chunk(spoken(f"{number} "))
            time.sleep(0.02)
        call.chunk(finish() + DONE)
        call.end_chunks()

    arrived: list[float] = []
    with served(tmp_path, script, policy) as (proxy, _), proxy.client() as client:
        client.send_request("POST", CHAT.path, CHAT_STREAM)
        client.read_head()
        for chunk in client.chunks():
            assert chunk is not None
            if b"delta" in chunk:
                arrived.append(time.monotonic())
    assert len(arrived) >= 20, "events were released in lumps"
    delays = [came - sent for came, sent in zip(arrived, written, strict=False)]
    assert statistics.median(delays) < 0.01
    assert delays[0] < 0.05, "the first token waited"


# B04
@pytest.mark.parametrize("policy", [None, chat_policy(), chat_policy("heartbeat: 10s")])
def test_streams_tell_the_hops_in_front_not_to_buffer(tmp_path: Path, policy: str | None) -> None:
    body = CHAT.whole

    def script(call: Call) -> None:
        call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream;a=b\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )

    with served(tmp_path, script, policy) as (proxy, _):
        answer = ask(proxy)
    assert answer.body == body
    assert answer.is_whole
    assert answer.all("x-accel-buffering") == ["no"]
    assert answer.all("cache-control") == ["no-cache, no-transform"]
    assert answer.header("content-encoding") is None
    if policy is not None:
        assert answer.header("content-length") is None


# B04
@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Accel-Buffering", "yes"), ("cache-control", "private"), ("CACHE-CONTROL", "")],
)
def test_what_the_upstream_says_about_buffering_stands(tmp_path: Path, name: str, value: str) -> None:
    script = in_pieces([CHAT.whole], 0.0, f"{name}: {value}\r\n".encode())
    with served(tmp_path, script, chat_policy()) as (proxy, _):
        answer = ask(proxy)
    assert answer.all(name) == [value]
    assert len(answer.all("x-accel-buffering")) == len(answer.all("cache-control")) == 1


# B04
def test_answers_that_are_no_streams_are_left_to_their_caches(tmp_path: Path) -> None:
    with served(tmp_path, lambda call: call.json(b"{}"), chat_policy()) as (proxy, _):
        answer = ask(proxy)
    assert answer.header("x-accel-buffering") is None
    assert answer.header("cache-control") is None


# B09
@pytest.mark.parametrize("policy", [None, chat_policy(), chat_policy("heartbeat: 10s")])
def test_a_refused_stream_keeps_its_status(tmp_path: Path, policy: str | None) -> None:
    body = b'{"error":{"message":"slow down","code":"rate_limited"}}'
    statuses = [b"400 Bad Request", b"429 Too Many Requests", b"500 Oops", b"529 Overloaded"]

    def script(call: Call) -> None:
        time.sleep(0.05)
        call.json(body, statuses[call.number], b"Retry-After: 7\r\n")

    with served(tmp_path, script, policy) as (proxy, _):
        for status in statuses:
            answer = ask(proxy)
            assert answer.status == int(status[:3])
            assert answer.body == body
            assert answer.header("content-type") == "application/json"
            assert answer.header("retry-after") == "7"
            assert answer.header("x-accel-buffering") is None
        assert [record["upstream_status"] for record in proxy.log(4)] == [400, 429, 500, 529]


# B21
def test_a_long_wait_is_silent_unless_the_route_says_otherwise(tmp_path: Path) -> None:
    with served(tmp_path, in_pieces([spoken("a"), finish() + DONE]), chat_policy()) as (proxy, _):
        assert ask(proxy).body == spoken("a") + finish() + DONE


# B21
def test_heartbeats_keep_a_stream_alive_from_before_its_head_to_its_end(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        time.sleep(SILENCE_SECONDS)
        in_pieces([spoken("a"), spoken("b"), finish() + DONE])(call)

    with served(tmp_path, script, BEATING) as (proxy, _), proxy.client() as client:
        begin = time.monotonic()
        client.send_request("POST", CHAT.path, CHAT_STREAM)
        head = client.read_head()
        assert time.monotonic() - begin < SILENCE_SECONDS, "the head waited for the upstream"
        chunks = list(client.chunks())
        record = proxy.log(1)[0]
    assert head.status == 200
    assert head.header("content-type") == "text/event-stream; charset=utf-8"
    assert head.header("x-accel-buffering") == "no"
    assert None not in chunks
    body = b"".join(chunk for chunk in chunks if chunk is not None)
    for before, after in ((b"", spoken("a")), (spoken("a"), spoken("b")), (spoken("b"), finish())):
        gap = body[body.index(before) + len(before) : body.index(after)]
        assert gap.count(BEAT) >= 1
        assert gap.replace(BEAT, b"") == b""
    assert body.replace(BEAT, b"") == spoken("a") + spoken("b") + finish() + DONE
    assert record["ttft_ms"] >= 2 * SILENCE_SECONDS * 1000, "a heartbeat is no token"
    assert record["error"] is None


# B21
def test_a_busy_stream_has_no_heartbeats(tmp_path: Path) -> None:
    with served(tmp_path, in_pieces([spoken("a")] * 20 + [finish() + DONE], 0.02), BEATING) as (proxy, _):
        assert BEAT not in ask(proxy).body


LINES = [": comment", "event: x", "data: {", 'data: "choices":[{"index":0,"delta":{"content":"a"}}]}', ""]
WITHOUT_ID = {
    "lf": "\n".join([*LINES, ""]).encode() * 2,
    "crlf": "\r\n".join([*LINES, ""]).encode() * 2,
    "cr": "\r".join([*LINES, ""]).encode() * 2,
}


# B21
@pytest.mark.parametrize("usage", ["usage: ask", 'usage: "off"'])
@pytest.mark.parametrize("framing", WITHOUT_ID)
def test_heartbeats_stand_only_between_events(tmp_path: Path, framing: str, usage: str) -> None:
    stream = spoken("start") + WITHOUT_ID[framing]
    places = range(len(spoken("start")), len(stream), 5 if framing == "lf" else 9)
    bodies: dict[int, bytes] = {}

    def script(call: Call) -> None:
        place = int(call.header("x-place") or b"0")
        call.stream_head()
        call.chunk(stream[:place])
        time.sleep(SILENCE_SECONDS)
        call.chunk(stream[place:])
        call.chunk(finish() + DONE)
        call.end_chunks()

    with served(tmp_path, script, chat_policy("heartbeat: 50ms", usage)) as (proxy, _):

        def ask_for(place: int) -> None:
            with proxy.client(5.0) as client:
                headers = [("x-place", str(place))]
                bodies[place] = client.request("POST", CHAT.path, CHAT_STREAM, headers).body

        threads = [threading.Thread(target=ask_for, args=(place,)) for place in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    whole = stream + finish() + DONE
    assert set(bodies) == set(places)
    for place, body in bodies.items():
        assert body.replace(BEAT, b"") == whole, place
        assert dispatched(body) == dispatched(whole), place
    assert BEAT in bodies[places[0]], "between events there are heartbeats"


WITH_ID = [
    b"id: 7\n" + spoken("x"),
    spoken("x")[:-1] + b"id: 7\n\n",
    spoken("x") + b"id: 7\n\n",
    b"id:7\r\n" + spoken("x").replace(b"\n", b"\r\n"),
    b"id:7\r" + spoken("x").replace(b"\n", b"\r"),
    b"\xef\xbb\xbfid: 7\n" + spoken("x"),
]


# B21
@pytest.mark.parametrize("usage", ["usage: ask", 'usage: "off"'])
@pytest.mark.parametrize("before", [b"", spoken("a") + spoken("b")], ids=["at first", "later"])
def test_there_is_no_heartbeat_after_an_id(tmp_path: Path, usage: str, before: bytes) -> None:
    with_id = WITH_ID[:-1] if before else WITH_ID

    def script(call: Call) -> None:
        call.stream_head()
        for piece in (before, with_id[int(call.header("x-case") or b"")], spoken("c")):
            if piece:
                call.chunk(piece)
            time.sleep(0.02)
        time.sleep(0.2)
        call.chunk(finish() + DONE)
        call.end_chunks()

    policy = chat_policy("heartbeat: 50ms", "timing_comment: true", usage)
    with served(tmp_path, script, policy) as (proxy, _):
        clients = [proxy.client(5.0) for _ in with_id]
        for case, client in enumerate(clients):
            client.send_request("POST", CHAT.path, CHAT_STREAM, [("x-case", str(case))])
        for case, client in enumerate(clients):
            # Until it comes there may be some: where the machine is busy, 20 ms are 50.
            early, with_it, late = client.read_answer().body.partition(with_id[case])
            assert early.replace(BEAT, b"") == before
            assert dispatched(early) == dispatched(before)
            stream = with_id[case] + spoken("c") + finish() + DONE
            assert with_it + late == stream
            assert dispatched(with_it + late) == dispatched(stream)


# B21
def test_text_that_speaks_of_ids_is_no_id(tmp_path: Path) -> None:
    stream = data_event({"id": "id: 7", "choices": [{"index": 0, "delta": {"content": "\nid: 8\r"}}]})
    with served(tmp_path, in_pieces([stream, finish() + DONE]), BEATING) as (proxy, _):
        assert BEAT in ask(proxy, CHAT_STREAM).body.partition(stream)[2]


# B21
def test_a_compressed_stream_gets_no_heartbeats(tmp_path: Path) -> None:
    packed = gzip.compress(CHAT.whole)
    script = in_pieces([packed[:30], packed[30:]], headers=b"Content-Encoding: gzip\r\n")
    with served(tmp_path, script, BEATING) as (proxy, _):
        answer = ask(proxy)
    assert gzip.decompress(answer.body) == CHAT.whole


# B21
def test_a_stream_that_nothing_understands_gets_no_heartbeats(tmp_path: Path) -> None:
    policy = BEATING.replace(CHAT.path, "/v1/audio/speech")
    stream = b'data: {"type":"speech.audio.delta"}\n\n'
    with served(tmp_path, in_pieces([stream[:9], stream[9:]]), policy) as (proxy, _):
        answer = proxy.client().request("POST", "/v1/audio/speech", b'{"stream":true}')
    assert answer.body.removeprefix(BEAT * answer.body.count(BEAT)) == stream
    assert answer.is_whole


FAILURES = ["429", "json", "dies", "closes", "gzip", "empty stream", "silent"]


# B21
@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_after_a_heartbeat_is_an_error_event(tmp_path: Path, kind: str) -> None:
    left: list[bool] = []

    def script(call: Call) -> None:
        time.sleep(0.15)
        match kind:
            case "429":
                call.json(b'{"error":{"message":"slow down"}}' * 500, b"429 Too Many Requests")
            case "json":
                call.json(b'{"choices":[]}' * 500)
            case "gzip":
                call.stream_head(b"Content-Encoding: gzip\r\n")
                call.chunk(gzip.compress(CHAT.whole))
            case "dies":
                call.stream_head()
                call.chunk(CHAT.half)
            case "empty stream":
                call.stream_head()
                call.end_chunks()
            case "silent":
                left.append(call.wait_for_close(2.0))
            case _:
                pass
        call.close()

    policy = every_shape("heartbeat: 50ms", upstream="timeouts: {first_byte: 250ms}")
    with served(tmp_path, script, policy) as (proxy, _):
        clients = [(shape, proxy.client(5.0)) for shape in SHAPES]
        for shape, client in clients:
            client.send_request("POST", shape.path, shape.request)
        for shape, client in clients:
            answer = client.read_answer()
            assert answer.status == 200
            assert shape.error_of(answer.body)
            assert answer.body.startswith(BEAT)
            assert not answer.is_whole
            assert client.receive() == b"", "something follows the error"
        assert None not in {record["error"] for record in proxy.log(len(SHAPES))}
    assert all(left)


# B21
def test_a_status_after_a_heartbeat_is_named_in_the_error(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        time.sleep(SILENCE_SECONDS)
        call.json(b"{}", b"429 Too Many Requests")

    with served(tmp_path, script, BEATING) as (proxy, _):
        assert "429" in json.dumps(CHAT.error_of(ask(proxy).body))
        record = proxy.log(1)[0]
    assert (record["status"], record["upstream_status"]) == (200, 429)


# B21
def test_an_answer_that_is_not_streamed_never_gets_a_heartbeat(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        time.sleep(SILENCE_SECONDS)
        call.json(b'{"a":1}')

    with served(tmp_path, script, BEATING) as (proxy, _):
        answer = ask(proxy, b'{"model":"m","messages":[]}')
    assert answer.body == b'{"a":1}'
    assert answer.header("content-type") == "application/json"
