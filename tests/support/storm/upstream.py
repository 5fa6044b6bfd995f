"""An upstream that fails on request: `x-fault: NAME SEED` says how, `traceparent` which request it is."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.support.chat import ANSWER, DONE, delta, finish
from tests.support.storm.wire import Cut, Wire

STREAM = (delta("hel"), delta("lo"), delta(" there"), finish(), DONE)
CHUNKS = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in STREAM)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE_STREAM = STREAM_HEAD + CHUNKS + b"0\r\n\r\n"
WHOLE_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)
FLOOD_EVENT = delta("x" * 8000)
FLOOD_BYTES = 20_000_000
STALL_SECONDS = 4.0

Answer = Callable[[Wire, random.Random, bytes], Awaitable[None]]
"""Sends an answer, given the whole one as it would be on the wire."""


def _somewhere(chance: random.Random, whole: bytes) -> int:
    """Return a place within an answer, its head included, before its last event is complete."""
    return chance.randrange(1, whole.rfind(b"finish_reason"))


async def whole(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(answer)


async def pieces(wire: Wire, chance: random.Random, answer: bytes) -> None:
    while answer:
        size = chance.randint(1, 60)
        await wire.send(answer[:size])
        answer = answer[size:]
        await asyncio.sleep(0)


async def slowly(wire: Wire, chance: random.Random, answer: bytes) -> None:
    for place in range(0, len(answer), 100):
        await wire.send(answer[place : place + 100])
        await asyncio.sleep(chance.random() / 50)


async def interim(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * chance.randint(1, 50) + answer)


async def whole_then_close(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(answer)
    await asyncio.sleep(chance.choice((0, 0, 0.002, 0.01)))
    await wire.close()


async def whole_then_reset(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(answer)
    await asyncio.sleep(0.01)  # a reset at once could overtake what was sent
    wire.reset()


async def whole_then_nonsense(wire: Wire, chance: random.Random, answer: bytes) -> None:
    # At once: what comes later could be read, rightly, as the answer to the next request.
    await wire.send(answer + b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")
    await wire.close()


async def nothing_then_close(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.close()


async def nothing_then_reset(wire: Wire, chance: random.Random, answer: bytes) -> None:
    wire.reset()


async def nothing_for_long(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await asyncio.sleep(STALL_SECONDS)
    await wire.close()


async def part_then_close(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(answer[: _somewhere(chance, answer)])
    await wire.close()


async def part_then_reset(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(answer[: _somewhere(chance, answer)])
    await asyncio.sleep(chance.choice((0, 0.005)))
    wire.reset()


async def part_then_half_close(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(answer[: _somewhere(chance, answer)])
    wire.half_close()
    await wire.wait_for_end()


async def part_then_nothing(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(answer[: _somewhere(chance, answer)])
    await asyncio.sleep(STALL_SECONDS)
    await wire.close()


async def part_then_nonsense(wire: Wire, chance: random.Random, answer: bytes) -> None:
    place = answer.find(b"\r\n\r\n") + 4 if b"chunked" in answer else chance.randint(1, 8)
    await wire.send(answer[:place] + chance.choice((b"zz\r\n", b"\0\0\0\0", b"-1\r\n\r\n")))


async def nonsense(wire: Wire, chance: random.Random, answer: bytes) -> None:
    said = (
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 99999 No\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 300_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 300_000,
    )
    await wire.send(chance.choice(said))
    await asyncio.sleep(0.05)
    await wire.close()


async def refusal(wire: Wire, chance: random.Random, answer: bytes) -> None:
    status = chance.choice((b"400 Bad Request", b"401 No", b"429 Too Many", b"500 Broken", b"503 Busy"))
    end = chance.choice((b"", b"Connection: close\r\n"))
    await wire.send(b"HTTP/1.1 %b\r\n%bContent-Length: 2\r\n\r\n{}" % (status, end))
    if end:
        await wire.close()


async def flood(wire: Wire, chance: random.Random, answer: bytes) -> None:
    await wire.send(STREAM_HEAD)
    event = b"%x\r\n%b\r\n" % (len(FLOOD_EVENT) * 8, FLOOD_EVENT * 8)
    for _ in range(FLOOD_BYTES // len(event)):
        await wire.send(event)
    await wire.send(CHUNKS + b"0\r\n\r\n")


KIND: dict[str, Answer] = {
    answer.__name__: answer
    for answer in (whole, pieces, slowly, interim, whole_then_close, whole_then_nonsense)
}
"""What gives a patient caller its whole answer."""

FAULTS: dict[str, Answer] = {
    answer.__name__: answer
    for answer in (
        nothing_then_close,
        nothing_then_reset,
        nothing_for_long,
        part_then_close,
        part_then_reset,
        part_then_half_close,
        part_then_nothing,
        part_then_nonsense,
        nonsense,
    )
}
"""What never is a whole answer."""

OTHERS: dict[str, Answer] = {"refusal": refusal, "whole_then_reset": whole_then_reset, "flood": flood}
"""`flood` is for callers that do not read all of it."""


class FaultyUpstream:
    """The server. `executed` counts how often each request arrived whole, by its `traceparent`."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._wires: set[Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Begin to serve; return the base URL."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        """Close every connection and the listener."""
        assert self._server is not None
        self._server.close()
        self.hang_up()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """Close every connection."""
        for wire in tuple(self._wires):
            wire.writer.transport.abort()

    @property
    def open_connections(self) -> int:
        """Connections that stand."""
        return len(self._wires)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._wires.add(wire)
        self._tasks.add(task)
        try:
            while not writer.transport.is_closing():
                await self._serve(wire)
        except (Cut, OSError, asyncio.CancelledError):
            pass  # `stop` cancels; asyncio would take a cancelled handler for a fault
        finally:
            self._wires.discard(wire)
            self._tasks.discard(task)
            await wire.close()

    async def _serve(self, wire: Wire) -> None:
        _, headers = await wire.head()
        name, _, seed = headers.get(b"x-fault", b"whole 0").decode().partition(" ")
        chance = random.Random(seed)
        if name == "before_the_body":
            # Without `close` another request could rightly follow, and wait for nothing.
            await wire.send(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            await asyncio.sleep(chance.choice((0, 0.05, STALL_SECONDS)))
            await wire.close()
            return
        if headers.get(b"upgrade") == b"websocket":
            await self._websocket(wire, name, chance)
            return
        body = await wire.body(headers)
        self.executed[headers.get(b"traceparent", b"").decode()] += 1
        answer = WHOLE_STREAM if b'"stream":true' in body else WHOLE_JSON
        await {**KIND, **FAULTS, **OTHERS}[name](wire, chance, answer)

    async def _websocket(self, wire: Wire, name: str, chance: random.Random) -> None:
        """Accept, exchange some frames, then end in one of many ways."""
        await wire.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        await wire.send(b"\x81\x02hi" * chance.randint(1, 1000))
        match name:
            case "nothing_then_reset":
                wire.reset()
            case "nothing_then_close":
                await wire.close()
            case "flood":
                await wire.send(b"\x81\x02hi" * 2_000_000)
            case _:
                await wire.wait_for_end()
