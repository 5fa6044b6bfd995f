"""Many streams at once: no hidden limits, no busy loop, no memory that grows (reports B95-B97)."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from proxy.dialects.chat import ChatDialect
from proxy.dialects.dialect import EventFacts
from proxy.edge.event_tap import EventTap
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call
from tests.support.served import UPSTREAM, served
from tests.support.shapes import spoken
from tests.support.weir import RunningWeir


# B95
def test_many_open_streams_do_not_hold_up_a_short_request(tmp_path: Path) -> None:
    release = threading.Event()

    def script(call: Call) -> None:
        if call.body == CHAT:
            call.json(ANSWER)
            return
        call.stream_head()
        call.chunk(spoken("a"))
        release.wait(5.0)
        call.chunk(finish() + DONE)
        call.end_chunks()

    with served(tmp_path, script, chat_policy()) as (proxy, upstream):
        streams = [proxy.client() for _ in range(300)]
        for stream in streams:
            stream.send_request("POST", PATH, CHAT_STREAM)
        for stream in streams:
            stream.read_head()
        begin = time.monotonic()
        assert proxy.client().request("POST", PATH, CHAT).body == ANSWER
        assert time.monotonic() - begin < 0.3
        assert proxy.metric("weir_in_flight") == 300
        assert upstream.connections == 301
        release.set()
        for stream in streams:
            assert b"".join(chunk or b"?" for chunk in stream.chunks()).endswith(DONE)


# B95
def test_waiting_for_one_of_few_connections_shows(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        time.sleep(0.15)
        call.json(ANSWER)

    policy = chat_policy(base_url=UPSTREAM, upstream="max_connections: 2")
    with served(tmp_path, script, policy) as (proxy, upstream):
        clients = [proxy.client() for _ in range(6)]
        for client in clients:
            client.send_request("POST", PATH, CHAT)
        answers = [client.read_answer("POST") for client in clients]
        waits_ms = sorted(record["queue_ms"] for record in proxy.log(6))
        assert upstream.connections == 2
        assert proxy.metric("weir_queue_seconds_count") == 4
    assert waits_ms[:2] == [0, 0]
    assert waits_ms[2] >= 100
    assert waits_ms[5] >= 250
    timings = [answer.header("server-timing") or "" for answer in answers]
    shown_ms = sorted(float(timing.partition("queue;dur=")[2].split(",")[0]) for timing in timings)
    assert [round(shown, 1) for shown in shown_ms] == [round(wait, 1) for wait in waits_ms]


# B95
def test_a_limit_per_route_says_no_at_once(tmp_path: Path) -> None:
    release = threading.Event()

    def script(call: Call) -> None:
        release.wait(5.0)
        call.json(ANSWER)

    with served(tmp_path, script, chat_policy("max_concurrent: 2")) as (proxy, upstream):
        first, second = proxy.client(), proxy.client()
        first.send_request("POST", PATH, CHAT)
        second.send_request("POST", PATH, CHAT)
        upstream.wait_for_calls(2)
        refused = proxy.client().request("POST", PATH, CHAT_STREAM)
        other = proxy.client()
        other.send_request("GET", "/v1/models")
        upstream.wait_for_calls(3)
        release.set()
        assert first.read_answer().body == second.read_answer().body == other.read_answer().body == ANSWER
    assert refused.status == 429
    assert refused.header("retry-after") is not None
    assert json.loads(refused.body)["error"]["code"] == "too_many_concurrent_requests"


# B96
def test_probes_are_answered_under_load(tmp_path: Path) -> None:
    streams_count, events_count = 100, 25

    def script(call: Call) -> None:
        call.stream_head()
        for number in range(events_count):
            call.chunk(spoken(f"token {number}"))
            time.sleep(0.03)
        call.chunk(finish() + DONE)
        call.end_chunks()

    with served(tmp_path, script, chat_policy()) as (proxy, upstream):
        streams = [proxy.client() for _ in range(streams_count)]
        for stream in streams:
            stream.send_request("POST", PATH, CHAT_STREAM)
        upstream.wait_for_calls(streams_count)
        longest_seconds = 0.0
        for path in ("/healthz", "/readyz", "/metrics") * 3:
            begin = time.monotonic()
            assert proxy.admin(path)[0] == 200
            longest_seconds = max(longest_seconds, time.monotonic() - begin)
            time.sleep(0.03)
        for stream in streams:
            answer = stream.read_answer()
            assert answer.is_whole
            assert answer.body.count(b"token") == events_count
    assert longest_seconds < 0.5, "a kubelet would have given up at one second"


class CountingDialect(ChatDialect):
    """Chat, counting how many events are parsed."""

    def __init__(self) -> None:
        self.read_count = 0

    def read_event(self, event: bytes) -> EventFacts:
        self.read_count += 1
        return super().read_event(event)


# B96
def test_nothing_is_parsed_in_the_steady_state() -> None:
    for removes_usage in (False, True):
        dialect = CountingDialect()
        tap = EventTap(dialect, removes_usage)
        tap.feed(spoken("first"))
        before = dialect.read_count
        null_usage = (
            b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],"usage":null}\n\n'
        )
        for _ in range(500):
            tap.feed(spoken("token"))
            tap.feed(null_usage)
            tap.feed(spoken("two at once") + null_usage + spoken("three"))
            tap.feed((spoken("crlf") + null_usage).replace(b"\n", b"\r\n"))
        assert dialect.read_count == before
        tap.feed(finish())
        assert tap.finish_reason == "stop"


KEPT_TYPES = ("Exchange", "ExchangeHandler", "Relay", "EventTap", "StreamCall", "ClientConnection", "Lease")


def live_objects() -> Counter[str]:
    """Return how many objects of the data path are alive, by type."""
    gc.collect()
    return Counter(type(item).__name__ for item in gc.get_objects() if type(item).__name__ in KEPT_TYPES)


def run_requests(proxy: RunningWeir, count: int) -> None:
    """Send short streams; every tenth fails at the upstream, every tenth is left by its caller."""
    for number in range(count):
        with RawClient(proxy.address) as client:
            case = {3: "reset", 7: "leave"}.get(number % 10, "whole")
            client.send_request("POST", PATH, CHAT_STREAM, [("x-case", case)])
            if case == "leave":
                client.read_head()
            else:
                client.read_answer()


# B97
def test_memory_does_not_grow_with_the_number_of_streams(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(spoken("a") * 20)
        match call.header("x-case"):
            case b"reset":
                call.reset()
            case b"leave":
                call.wait_for_close(2.0)
            case _:
                call.chunk(finish() + DONE)
                call.end_chunks()

    with served(tmp_path, script, chat_policy()) as (proxy, upstream):
        run_requests(proxy, 100)
        proxy.log(100)
        upstream.calls.clear()
        before, blocks_before = live_objects(), sys.getallocatedblocks()
        run_requests(proxy, 250)
        proxy.log(350)
        upstream.calls.clear()
        after, blocks_after = live_objects(), sys.getallocatedblocks()
        assert proxy.metric("weir_in_flight") == 0
        assert proxy.call(lambda: len(proxy.app.service.connections)) <= 1
    assert sum(after.values()) <= sum(before.values()) + 2, (before, after)
    assert blocks_after - blocks_before < 250 * 8, "more than a few objects stay of every stream"
