"""Callers that read slowly, or not at all: bounded memory, an end for the dead, patience for the slow (B26).

Choices: a caller is dead that takes no byte for `write_stall`; its kernel's acknowledgements count. It is
recorded as `client_closed`. Heartbeats do not keep it alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call
from tests.support.served import served
from tests.support.shapes import spoken
from tests.support.weir import RunningWeir

EVENT = spoken("x" * 8000)
MANY_BYTES = 200_000_000
STALL_SECONDS = 0.4


def slow_client(proxy: RunningWeir) -> RawClient:
    """Connect with a small receive buffer, so that not reading shows soon."""
    return proxy.client(5.0, receive_buffer_bytes=8192)


def largest_buffer_bytes(proxy: RunningWeir) -> int:
    """Return the most bytes that Weir itself holds for any one caller."""

    def largest() -> int:
        transports = [caller.transport for caller in proxy.app.service.connections]
        return max((transport.get_write_buffer_size() for transport in transports), default=0)

    size_bytes: int = proxy.call(largest)
    return size_bytes


class Flood:
    """An upstream that sends as fast as it can and notes how much, and whether it was stopped."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.sent_bytes = 0
        self.stopped = threading.Event()

    def __call__(self, call: Call) -> None:
        if self.kind == "stream":
            call.stream_head()
            piece = b"%x\r\n%b\r\n" % (len(EVENT) * 8, EVENT * 8)
        else:
            call.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % MANY_BYTES
            )
            piece = b" " * 65536
        while self.sent_bytes < MANY_BYTES and not call.is_closed:
            call.send(piece)
            self.sent_bytes += len(piece)
        if call.is_closed:
            self.stopped.set()


# B26, B97
@pytest.mark.parametrize("kind", ["stream", "body"])
@pytest.mark.parametrize(
    "policy", [None, chat_policy(), chat_policy("heartbeat: 50ms")], ids=["unmatched", "matched", "heartbeat"]
)
def test_a_caller_that_stops_reading_is_dropped_with_little_held(
    tmp_path: Path, policy: str | None, kind: str
) -> None:
    flood = Flood(kind)
    with served(tmp_path, flood, policy, write_stall_seconds=STALL_SECONDS) as (proxy, _):
        client = slow_client(proxy)
        begin = time.monotonic()
        client.send_request("POST", PATH, CHAT_STREAM if kind == "stream" else CHAT)
        time.sleep(STALL_SECONDS / 2)
        held_bytes = largest_buffer_bytes(proxy)
        assert flood.stopped.wait(1.5), "the upstream still works for a dead caller"
        assert time.monotonic() - begin >= STALL_SECONDS
        record = proxy.log(1)[0]
    assert held_bytes < 1_000_000
    assert flood.sent_bytes < 40_000_000, "more was read than anyone takes"
    assert record["error"] == "client_closed"


# B26
@pytest.mark.parametrize("kind", ["stream", "body"])
def test_a_slow_caller_that_keeps_reading_is_not_dropped(tmp_path: Path, kind: str) -> None:
    flood = Flood(kind)
    with served(tmp_path, flood, chat_policy(), write_stall_seconds=STALL_SECONDS) as (proxy, _):
        client = slow_client(proxy)
        client.send_request("POST", PATH, CHAT_STREAM if kind == "stream" else CHAT)
        end = time.monotonic() + 1.4
        received_bytes = 0
        while time.monotonic() < end:
            data = client.socket.recv(4096)
            assert data, "a caller that reads was dropped"
            received_bytes += len(data)
            time.sleep(0.05)
        assert proxy.log() == [], "the exchange is over"
        assert largest_buffer_bytes(proxy) < 1_000_000
    assert received_bytes < 1_000_000, "too fast to show anything"


def fill(call: Call, proxy: RunningWeir, more: Callable[[int], bool]) -> int:
    """Send events until Weir holds what `more` is content with; return how many."""
    count = 0
    while more(largest_buffer_bytes(proxy)):
        call.chunk(EVENT)
        count += 1
        assert count < 10_000
    return count


# B26
@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_dead_caller_is_dropped_after_the_upstreams_end_too(tmp_path: Path, keep_alive: bool) -> None:
    box: list[RunningWeir] = []
    ended = threading.Event()

    def script(call: Call) -> None:
        call.stream_head()
        fill(call, box[0], lambda held_bytes: held_bytes == 0)
        call.chunk(finish() + DONE)
        call.end_chunks()
        ended.set()

    with served(
        tmp_path, script, chat_policy(), write_stall_seconds=STALL_SECONDS, keep_alive_seconds=STALL_SECONDS
    ) as (proxy, _):
        box.append(proxy)
        client = slow_client(proxy)
        headers = [] if keep_alive else [("Connection", "close")]
        client.send_request("POST", PATH, CHAT_STREAM, headers)
        assert ended.wait(3.0)
        deadline = time.monotonic() + 1.5
        while proxy.call(lambda: len(proxy.app.service.connections)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert proxy.call(lambda: len(proxy.app.service.connections)) == 0, "the dead caller's socket is open"


# B26
def test_a_caller_that_catches_up_after_the_end_may_ask_again_but_not_idle_forever(tmp_path: Path) -> None:
    box: list[RunningWeir] = []
    counts: list[int] = []
    is_sent = threading.Event()
    rest = EVENT * 25 + finish() + DONE

    def script(call: Call) -> None:
        if call.number:
            call.json(ANSWER)
            return
        call.stream_head()
        counts.append(fill(call, box[0], lambda held_bytes: held_bytes == 0))
        # In one write, so that the end comes in the read that makes the caller slow.
        call.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))
        is_sent.set()

    with served(tmp_path, script, chat_policy(), keep_alive_seconds=STALL_SECONDS) as (proxy, _):
        box.append(proxy)
        client = proxy.client(5.0)
        client.send_request("POST", PATH, CHAT_STREAM)
        assert is_sent.wait(5.0)
        assert client.read_answer("POST").body == EVENT * counts[0] + rest
        assert client.request("POST", PATH, CHAT).body == ANSWER
        assert client.is_closed_within(1.2), "an idle connection stays open forever"


# B26
def test_a_caller_that_caught_up_is_not_kept_when_it_asks_no_more(tmp_path: Path) -> None:
    box: list[RunningWeir] = []
    counts: list[int] = []
    is_sent = threading.Event()
    rest = EVENT * 25 + finish() + DONE

    def script(call: Call) -> None:
        call.stream_head()
        counts.append(fill(call, box[0], lambda held_bytes: held_bytes == 0))
        call.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))
        is_sent.set()

    with served(tmp_path, script, chat_policy(), keep_alive_seconds=STALL_SECONDS) as (proxy, _):
        box.append(proxy)
        client = proxy.client(5.0)
        client.send_request("POST", PATH, CHAT_STREAM)
        assert is_sent.wait(5.0)
        assert client.read_answer("POST").is_whole
        assert client.is_closed_within(1.2), "an idle connection stays open forever"


# B26
def test_a_slow_caller_does_not_slow_its_neighbours(tmp_path: Path) -> None:
    flood = Flood("stream")

    def script(call: Call) -> None:
        flood(call) if call.body == CHAT_STREAM else call.json(ANSWER)

    with served(tmp_path, script, chat_policy()) as (proxy, _), proxy.client() as neighbour:
        slow = [slow_client(proxy) for _ in range(3)]
        for client in slow:
            client.send_request("POST", PATH, CHAT_STREAM)
        time.sleep(0.1)
        begin = time.monotonic()
        for _ in range(20):
            assert neighbour.request("POST", PATH, CHAT).body == ANSWER
        assert time.monotonic() - begin < 0.5
        for client in slow:
            client.close()
