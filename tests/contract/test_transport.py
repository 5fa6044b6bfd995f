"""What connections do, in memory and on real sockets alike."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
import uvloop

from proxy.http.memory import connect

WAIT_SECONDS = 5.0
MUCH = b"0123456789abcdef" * 65536  # 1 MiB: more than the kernel's buffers and the high mark


@dataclass
class Seen(asyncio.Protocol):
    """A protocol that notes what happens to it. `keeps_half` goes on writing after the peer's end."""

    keeps_half: bool = False
    data: bytearray = field(default_factory=bytearray)
    events: list[str] = field(default_factory=list)
    problem: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keeps_half

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.problem = exc


Join = Callable[[Seen, Seen], Awaitable[None]]


async def in_memory(first: Seen, second: Seen) -> None:
    connect(asyncio.get_running_loop(), first, second)


async def on_sockets(first: Seen, second: Seen) -> None:
    loop = asyncio.get_running_loop()
    for sock, seen in zip(socket.socketpair(), (first, second), strict=True):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 8192)

        def make(seen: Seen = seen) -> Seen:
            return seen

        await loop.create_connection(make, sock=sock)


KINDS: dict[str, tuple[Join, Callable[[], asyncio.AbstractEventLoop]]] = {
    "memory": (in_memory, asyncio.new_event_loop),
    "asyncio": (on_sockets, asyncio.new_event_loop),
    "uvloop": (on_sockets, uvloop.new_event_loop),
}


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Seen, Seen], Awaitable[None]], bool], None]:
    """Return a function that runs a test with two joined protocols."""
    join, new_loop = KINDS[request.param]

    def with_two(test: Callable[[Seen, Seen], Awaitable[None]], keeps_half: bool = False) -> None:
        async def main() -> None:
            first, second = Seen(), Seen(keeps_half)
            await join(first, second)
            await test(first, second)
            for seen in (first, second):
                if "lost" not in seen.events:
                    seen.transport.abort()
            await until(lambda: first.events[-1:] == ["lost"] and second.events[-1:] == ["lost"])
            assert first.events.count("lost") == second.events.count("lost") == 1

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())

    return with_two


Run = Callable[..., None]


def test_bytes_arrive_in_order_and_never_within_the_write(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        for number in range(100):
            first.transport.write(b"%d," % number)
        assert second.data == b""
        second.transport.write(b"back")
        await until(lambda: second.data.count(b",") == 100 and first.data == b"back")
        assert second.data == b"".join(b"%d," % number for number in range(100))

    run(test)


def test_a_paused_reader_gets_nothing_until_it_resumes(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        second.transport.pause_reading()
        assert not second.transport.is_reading()
        first.transport.write(b"held")
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert second.data == b""
        second.transport.resume_reading()
        assert second.transport.is_reading()
        await until(lambda: second.data == b"held")

    run(test)


def test_a_writer_is_told_to_stop_and_to_go_on(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        first.transport.set_write_buffer_limits(high=1000)
        second.transport.pause_reading()
        first.transport.write(MUCH)
        await until(lambda: first.events == ["pause"])
        assert first.transport.get_write_buffer_size() > 1000
        first.transport.write(b"more")
        assert first.events == ["pause"], "told once, not with every write"
        second.transport.resume_reading()
        await until(lambda: first.events == ["pause", "resume"] and second.data == MUCH + b"more")
        assert first.transport.get_write_buffer_size() == 0

    run(test)


def test_one_direction_may_end_alone(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        first.transport.write(b"last")
        first.transport.write_eof()
        with pytest.raises(RuntimeError):
            first.transport.write(b"too late")
        await until(lambda: second.events == ["eof"])
        assert second.data == b"last"
        second.transport.write(b"answer")
        await until(lambda: first.data == b"answer")
        assert first.events == []

    run(test, keeps_half=True)


def test_an_end_closes_a_peer_that_does_not_keep_its_half(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        first.transport.write_eof()
        await until(lambda: second.events == ["eof", "lost"] and first.events == ["eof", "lost"])
        assert second.problem is None

    run(test)


def test_closing_delivers_what_was_written(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        second.transport.pause_reading()
        first.transport.write(MUCH)
        first.transport.close()
        assert first.transport.is_closing()
        await asyncio.sleep(0.005)
        assert "lost" not in first.events, "closed before the peer had everything"
        second.transport.resume_reading()
        await until(lambda: second.events == ["eof", "lost"] and "lost" in first.events)
        assert second.data == MUCH
        assert first.problem is None

    run(test)


def test_aborting_drops_what_was_written(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        second.transport.pause_reading()
        first.transport.write(MUCH)
        first.transport.abort()
        await until(lambda: "lost" in first.events)
        second.transport.resume_reading()
        await until(lambda: "lost" in second.events)
        assert len(second.data) < len(MUCH)

    run(test)


def test_an_end_comes_after_what_was_held_by_a_pause(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        second.transport.pause_reading()
        first.transport.write(b"held")
        first.transport.close()
        await until(first.transport.is_closing)
        assert second.events == []
        second.transport.resume_reading()
        await until(lambda: "lost" in second.events)
        assert second.data == b"held"

    run(test)


def test_writing_to_a_peer_that_is_gone_ends_the_connection(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        second.transport.abort()
        await until(lambda: "lost" in second.events)
        while "lost" not in first.events:
            first.transport.write(b"x")
            await asyncio.sleep(0.001)

    run(test)


def test_closing_twice_is_closing_once(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        first.transport.close()
        first.transport.close()
        await until(lambda: first.events == ["lost"])
        first.transport.close()

    run(test)


def test_a_connection_can_be_handed_to_another_protocol(run: Run) -> None:
    async def test(first: Seen, second: Seen) -> None:
        other = Seen()
        second.transport.set_protocol(other)
        assert second.transport.get_protocol() is other
        first.transport.write(b"for the other")
        await until(lambda: other.data == b"for the other")
        assert second.data == b""
        second.transport.set_protocol(second)

    run(test)
