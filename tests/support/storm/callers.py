"""What callers do to Weir, and what the patient ones must see of an upstream's answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, PATH
from tests.support.storm.upstream import FAULTS, KIND, STREAM
from tests.support.storm.wire import Cut, Wire

MOST_SECONDS = 15.0
UPLOAD = b"u" * 200_000
EXPECTED = {"stream": b"".join(STREAM), "unary": ANSWER, "unread": ANSWER, "upload": ANSWER}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: what it is, how its upstream fails, and the `traceparent` that tells its record."""

    kind: str
    fault: str
    seed: int
    trace: str

    @property
    def raw(self) -> bytes:
        """The request on the wire."""
        match self.kind:
            case "stream":
                start, body = f"POST {PATH}", CHAT_STREAM
            case "unary":
                start, body = f"POST {PATH}", CHAT
            case "upload":
                start, body = "POST /v1/files", UPLOAD
            case _:
                start, body = "GET /v1/models", b""
        lines = [f"{start} HTTP/1.1", "Host: a", f"X-Fault: {self.fault} {self.seed}"]
        lines += [f"traceparent: {self.trace}"]
        lines += ["Transfer-Encoding: chunked"] if self.kind == "upload" else []
        lines += [f"Content-Length: {len(body)}"] if self.kind in ("stream", "unary") else []
        head = "\r\n".join([*lines, "", ""]).encode()
        if self.kind == "upload":
            step = 10_000
            for place in range(0, len(body), step):
                head += b"%x\r\n%b\r\n" % (step, body[place : place + step])
            return head + b"0\r\n\r\n"
        return head + body

    @property
    def head_bytes(self) -> int:
        """The length of its head."""
        return self.raw.index(b"\r\n\r\n") + 4


@dataclass(slots=True)
class Seen:
    """What all callers saw.

    `answered` are the traces of requests whose answer had begun. `late` are answers that came too late for a
    limit of Weir's although their upstream gave them at once: a fault, unless the machine stood still.
    """

    answered: set[str] = field(default_factory=set)
    request_ids: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    lost_races: int = 0

    async def answer(self, wire: Wire, asked: Asked | None) -> bool:
        """Read an answer and judge it; tell whether the connection goes on. Raises Cut before a head."""
        words, headers = await wire.head()
        status = int(words[1])
        if asked is not None:
            self.answered.add(asked.trace)
            self.statuses[asked.trace] = status
        self.request_ids.append(headers.get(b"x-weir-request-id", b"").decode())
        is_whole = True
        try:
            body = await wire.body(headers, may_end=headers.get(b"connection") == b"close")
        except Cut as cut:
            body, is_whole = cut.body, False
        if asked is not None:
            self._judge(asked, status, body, is_whole)
        return is_whole and headers.get(b"connection") != b"close"

    def _judge(self, asked: Asked, status: int, body: bytes, is_whole: bool) -> None:
        is_good = status == 200 and is_whole and _plain(body) == EXPECTED[asked.kind]
        if asked.fault in KIND and status == 502 and b"upstream_closed" in body:
            # On a connection that its upstream closed after it had taken the request in, unread.
            self.lost_races += 1
        elif asked.fault in KIND and b"_timeout" in body:
            self.late.append(f"{asked}: {body[-200:]!r}")
        elif asked.fault in KIND and not is_good:
            self.faults.append(f"{asked}: status {status}, whole {is_whole}, {body[-200:]!r}")
        if asked.fault in FAULTS and is_whole and status < 400:
            self.faults.append(f"{asked}: passes for a whole answer: {body[-200:]!r}")


def _plain(body: bytes) -> bytes:
    """Drop the comments that a policy may add to a stream."""
    events = body.split(b"\n\n")
    return b"\n\n".join(event for event in events if not event.startswith(b":"))


Ask = Callable[..., Asked]
Caller = Callable[[Wire, Seen, random.Random, Ask], Awaitable[None]]


async def _leave(wire: Wire, chance: random.Random) -> None:
    """End the connection in one of the ways in which callers do."""
    match chance.choice(("reset", "close", "half close")):
        case "reset":
            wire.reset()
        case "half close":
            wire.half_close()
            await wire.wait_for_end()
        case _:
            await wire.close()


async def patient(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    asked = ask()
    await wire.send(asked.raw)
    await seen.answer(wire, asked)


async def in_pieces(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    asked = ask(kind=chance.choice(("stream", "unary", "unread")))
    raw = asked.raw
    while raw:
        size = chance.randint(1, 40)
        await wire.send(raw[:size])
        raw = raw[size:]
        await asyncio.sleep(chance.choice((0, 0, 0.002)))
    await seen.answer(wire, asked)


async def keeps_alive(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    for _ in range(chance.randint(2, 6)):
        asked = ask(fault=chance.choice((*KIND, "refusal", chance.choice(tuple(FAULTS)))))
        await wire.send(asked.raw)
        if not await seen.answer(wire, asked):
            return


async def pipelines(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    many = [ask(fault=chance.choice(tuple(KIND))) for _ in range(chance.randint(2, 5))]
    await wire.send(b"".join(asked.raw for asked in many))
    for asked in many:
        if not await seen.answer(wire, asked):
            return


async def leaves(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    """Leave anywhere: in the head, in the body, before an answer, within it."""
    asked = ask()
    raw = asked.raw
    if chance.random() < 0.5:
        await wire.send(raw[: chance.randrange(1, len(raw))])
    else:
        await wire.send(raw)
        if chance.random() < 0.7:
            await wire.head()
            seen.answered.add(asked.trace)
            await wire.reader.read(chance.randint(1, 100))
    await asyncio.sleep(chance.choice((0, 0.001, 0.02)))
    await _leave(wire, chance)


async def stalls(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    """Stop in the middle of a request: a refusal or an end must come."""
    asked = ask()
    raw = asked.raw
    await wire.send(raw[: chance.randrange(1, len(raw) - 1)])
    await seen.answer(wire, None)


async def nonsense(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    said = (
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /../etc HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        bytes(chance.randrange(256) for _ in range(200)) + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 50_000,
    )
    wire.writer.write(chance.choice(said))
    await seen.answer(wire, None)


async def does_not_read(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    """Ask for more than fits and take nothing: Weir must end it."""
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    many = [ask(kind="stream", fault="flood") for _ in range(chance.randint(1, 3))]
    await wire.send(b"".join(asked.raw for asked in many))
    await asyncio.sleep(chance.choice((0.1, 1.5)))
    await _leave_unread(wire)


async def _leave_unread(wire: Wire) -> None:
    wire.writer.transport.abort()
    await wire.close()


async def reads_slowly(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    asked = ask(kind="stream", fault="flood")
    await wire.send(asked.raw)
    await wire.head()
    seen.answered.add(asked.trace)
    for _ in range(chance.randint(1, 30)):
        await wire.reader.read(20_000)
        await asyncio.sleep(0.005)
    await _leave(wire, chance)


async def sends_to_a_full_ear(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    """Upload to an upstream that answers before it has read the body, or never reads it."""
    asked = ask(kind="upload", fault="before_the_body")
    wire.writer.write(asked.raw)
    await seen.answer(wire, None)


async def speaks_websocket(wire: Wire, seen: Seen, chance: random.Random, ask: Ask) -> None:
    faults = ("whole", "nothing_then_reset", "nothing_then_close", "flood")
    asked = ask(kind="unread", fault=chance.choice(faults))
    head, _, rest = asked.raw.partition(b"\r\n")
    handshake = b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    early = b"\x81\x02hi" * chance.randint(0, 300)
    await wire.send(head + handshake + rest + early)
    words, _ = await wire.head()
    if words[1] == b"101":
        await wire.reader.read(chance.randint(1, 1000))
        wire.writer.write(b"\x81\x02yo" * chance.randint(1, 1000))
        await asyncio.sleep(chance.choice((0, 0.01)))
    await _leave(wire, chance)


CALLERS: tuple[Caller, ...] = (
    patient,
    patient,
    patient,
    in_pieces,
    keeps_alive,
    pipelines,
    leaves,
    leaves,
    stalls,
    nonsense,
    does_not_read,
    reads_slowly,
    sends_to_a_full_ear,
    speaks_websocket,
)
"""Drawn from evenly; the common ones stand here more than once."""
