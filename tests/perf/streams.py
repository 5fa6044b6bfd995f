"""Many streams at once: a client that counts events, and the proxy's CPU and memory while they run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import cast

from tests.perf import machine
from tests.perf.proxies import Running
from tests.perf.requests import chat_body, raw_request
from tests.perf.upstream import FRAMING_EVENTS

_RAMP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One run. `busy` is the used part of the proxy's core, `late` the missed part of the scripted rate."""

    events_per_second: float
    cpu_us_per_event: float
    busy: float
    late: float


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Resident memory. The first streams live in what was freed after the start: hence the totals."""

    kib_per_stream: float
    idle_mib: float
    loaded_mib: float


class Tally:
    """What all streams of a run have received."""

    def __init__(self) -> None:
        self.events = 0
        self.begun = 0
        self.ended = 0
        self.bytes = 0


class _Listener(asyncio.Protocol):
    """One stream: counts blank lines, which end events, even where they fall between two reads."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self._request = request
        self._tally = tally
        self._last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        tally = self._tally
        if not self._last:
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"bench: a stream was answered with {data[:200]!r}")
            tally.begun += 1
        tally.bytes += len(data)
        tally.events += data.count(b"\n\n") + (self._last == b"\n" and data.startswith(b"\n"))
        self._last = data[-1:]
        if data.endswith(b"0\r\n\r\n"):
            tally.ended += 1
            self._transport.close()


async def _open(
    port: int, streams: int, events: int, interval_ms: int, tally: Tally
) -> list[asyncio.BaseTransport]:
    """Open `streams` streams, a few at a time, and wait until each has received its first bytes."""
    loop = asyncio.get_running_loop()
    extra = f"x-bench-events: {events}\r\nx-bench-interval-ms: {interval_ms}\r\n"
    request = raw_request(port, chat_body(1024, stream=True), extra)
    transports: list[asyncio.BaseTransport] = []
    deadline = loop.time() + _RAMP_SECONDS
    while len(transports) < streams:
        batch = min(50, streams - len(transports))
        opened = await asyncio.gather(
            *(
                loop.create_connection(lambda: _Listener(request, tally), "127.0.0.1", port)
                for _ in range(batch)
            )
        )
        transports += [transport for transport, _ in opened]
        while tally.begun < len(transports):
            if loop.time() > deadline:
                raise SystemExit(f"bench: only {tally.begun} of {streams} streams began")
            await asyncio.sleep(0.005)
    return transports


async def verify(running: Running) -> None:
    """Check that every event of a few short streams arrives, and their end: a broken proxy must not win."""
    tally, streams, events = Tally(), 20, 50
    await _open(running.stream_port, streams, events, 5, tally)
    deadline = time.monotonic() + 10
    while tally.ended < streams and time.monotonic() < deadline:  # noqa: ASYNC110 (a count, not an event)
        await asyncio.sleep(0.01)
    expected = streams * (events + FRAMING_EVENTS)
    if tally.ended != streams or tally.events != expected:
        raise SystemExit(
            f"bench: {tally.ended} of {streams} streams ended, {tally.events} of {expected} events"
        )


async def measure(running: Running, streams: int, interval_ms: int, seconds: float) -> StreamFigures:
    """Hold `streams` streams, each of one event per `interval_ms`, for `seconds`; take the CPU time."""
    tally = Tally()
    events = int((_RAMP_SECONDS + seconds + 10) * 1000 / interval_ms)
    transports = await _open(running.stream_port, streams, events, interval_ms, tally)
    await asyncio.sleep(0.5)
    started, events_before = time.monotonic(), tally.events
    cpu_before = machine.cpu_seconds(running.pid)
    await asyncio.sleep(seconds)
    cpu = machine.cpu_seconds(running.pid) - cpu_before
    elapsed, received = time.monotonic() - started, tally.events - events_before
    for transport in transports:
        transport.close()
    await asyncio.sleep(0.2)
    return StreamFigures(
        events_per_second=received / elapsed,
        cpu_us_per_event=cpu / max(1, received) * 1e6,
        busy=cpu / elapsed,
        late=max(0.0, 1 - received / elapsed / (streams * 1000 / interval_ms)),
    )


async def measure_memory(running: Running, streams: int) -> MemoryFigures:
    """Take the proxy's memory before and while `streams` streams are open and have carried events."""
    for transport in await _open(running.stream_port, 20, 5, 50, Tally()):
        transport.close()
    await asyncio.sleep(0.3)
    before = machine.resident_bytes(running.pid)
    transports = await _open(running.stream_port, streams, 1000, 500, Tally())
    await asyncio.sleep(1.5)
    during = machine.resident_bytes(running.pid)
    for transport in transports:
        transport.close()
    await asyncio.sleep(0.2)
    return MemoryFigures((during - before) / streams / 1024, before / 2**20, during / 2**20)
