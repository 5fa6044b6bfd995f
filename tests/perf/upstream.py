"""The provider of the benchmark: as cheap as Python can answer, so that the proxy is what is measured.

It reads just enough HTTP for the requests that the benchmark sends (a length, no chunks) and answers chat
completions: one JSON object, or, where the body says `"stream":true`, a scripted stream. `x-bench-events` is
the number of content events and `x-bench-interval-ms` the time between two of them.

    python -m tests.perf.upstream        prints `upstream: PORT`
"""

from __future__ import annotations

import asyncio
import re
from typing import cast

import uvloop

_WORDS = (" the", " tide", " turns", " slowly", " under", " a", " grey", " sky")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_EVENTS = re.compile(rb"\r\nx-bench-events:[ \t]*(\d+)", re.IGNORECASE)
_INTERVAL = re.compile(rb"\r\nx-bench-interval-ms:[ \t]*(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream":\s?true')
_USAGE = re.compile(rb'"include_usage":\s?true')
_HEADERS = (
    b"date: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: bench\r\nx-request-id: req_0123456789abcdef\r\n"
    b"openai-processing-ms: 12\r\nx-ratelimit-remaining-requests: 9999\r\n"
)


def _unary_answer() -> bytes:
    text = "".join(_WORDS) * 19
    body = (
        '{"id":"chatcmpl-bench","object":"chat.completion","created":1767225600,"model":"gpt-4o-mini-2024-07-18",'
        '"choices":[{"index":0,"message":{"role":"assistant","content":"' + text + '","refusal":null,'
        '"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":212,'
        '"completion_tokens":152,"total_tokens":364,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},'
        '"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0}},"service_tier":"default",'
        '"system_fingerprint":"fp_0123456789"}'
    ).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    return head + _HEADERS + b"\r\n" + body


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _event(choices: str, rest: str = "") -> bytes:
    return _chunk(
        '{"id":"chatcmpl-0123456789abcdefghijklmnopqr","object":"chat.completion.chunk","created":1767225600,'
        '"model":"gpt-4o-mini-2024-07-18","service_tier":"default","system_fingerprint":"fp_0123456789",'
        f'"choices":{choices}{rest}}}'
    )


def _delta(delta: str, finish: str = "null") -> bytes:
    return _event('[{"index":0,"delta":' + delta + ',"logprobs":null,"finish_reason":' + finish + "}]")


UNARY = _unary_answer()
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"cache-control: no-cache\r\n" + _HEADERS + b"\r\n" + _delta('{"role":"assistant","content":""}')
)
CONTENT = tuple(_delta('{"content":"' + word + '"}') for word in _WORDS)
FINISH = _delta("{}", '"stop"')
USAGE = _event("[]", ',"usage":{"prompt_tokens":212,"completion_tokens":152,"total_tokens":364}')
END = _chunk("[DONE]") + b"0\r\n\r\n"
# Events of a stream besides its content: the role, the finish and [DONE].
FRAMING_EVENTS = 3


class Wheel:
    """Sends one event to each of its streams per interval, spread evenly, at the cost of a few timers."""

    def __init__(self, interval_ms: int) -> None:
        self._slots: list[list[Stream]] = [[] for _ in range(max(1, min(interval_ms, 64)))]
        self._step_seconds = interval_ms / 1000 / len(self._slots)
        self._position = 0
        self._next_slot = 0
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()
        self._tick()

    def add(self, stream: Stream) -> None:
        self._slots[self._next_slot].append(stream)
        self._next_slot = (self._next_slot + 1) % len(self._slots)

    def _tick(self) -> None:
        slot = self._slots[self._position]
        if slot:
            self._slots[self._position] = [stream for stream in slot if stream.advance()]
        self._position = (self._position + 1) % len(self._slots)
        # After an absolute schedule: a late tick is made up for, so that the rate holds under load.
        self._due = max(self._due + self._step_seconds, self._loop.time() - 1)
        self._loop.call_at(self._due, self._tick)


class Stream:
    """One scripted answer in progress."""

    def __init__(self, transport: asyncio.Transport, events: int, has_usage: bool) -> None:
        self._transport = transport
        self._left = events
        self._has_usage = has_usage

    def advance(self) -> bool:
        """Send the next event; return whether there are more."""
        if self._transport.is_closing():
            return False
        if self._left:
            self._transport.write(CONTENT[self._left & 7])
            self._left -= 1
            return True
        self._transport.write(FINISH + (USAGE if self._has_usage else b"") + END)
        return False


class Upstream(asyncio.Protocol):
    """One connection; answers one request after the other."""

    def __init__(self, wheels: dict[int, Wheel]) -> None:
        self._wheels = wheels
        self._head = b""
        self._pieces: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._pieces.append(data)
            self._missing -= len(data)
        else:
            if self._pieces:
                data = b"".join(self._pieces) + data
                self._pieces = []
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._pieces.append(data)
                return
            self._head = data[:end]
            length = _LENGTH.search(self._head)
            self._missing = (int(length[1]) if length else 0) - (len(data) - end - 4)
            self._pieces.append(data[end + 4 :])
        if self._missing <= 0:
            body = b"".join(self._pieces)
            self._pieces = []
            self._missing = 0
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if not _STREAM.search(body, 0, 512):
            self._transport.write(UNARY)
            return
        events, interval = _EVENTS.search(self._head), _INTERVAL.search(self._head)
        interval_ms = int(interval[1]) if interval else 12
        wheel = self._wheels.get(interval_ms)
        if wheel is None:
            wheel = self._wheels[interval_ms] = Wheel(interval_ms)
        self._transport.write(STREAM_HEAD)
        wheel.add(Stream(self._transport, int(events[1]) if events else 100, bool(_USAGE.search(body))))


async def _serve() -> None:
    wheels: dict[int, Wheel] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(wheels), "127.0.0.1", 0, backlog=4096)
    print(f"upstream: {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
