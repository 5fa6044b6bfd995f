"""Connections to one upstream: bounded, handed on in order, and each claim answered exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.core.errors import UPSTREAM_CONNECT, ProxyError
from proxy.core.upstream import Upstream
from proxy.http.client import ClientConnection, WaitLimits
from proxy.http.deadlines import Deadlines
from proxy.http.dial import Address
from proxy.http.limits import ClientLimits
from proxy.http.memory import MemoryTransport, connect
from proxy.upstream.pool import Lease, Pool
from proxy.upstream.target import make_target
from tests.support.replies import Reply

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
IN_CHUNKS = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


async def settle(rounds: int = 12) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


class Peer(asyncio.Protocol):
    """The upstream's end of one connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(MemoryTransport, transport)


@dataclass
class Network:
    """Makes connections in memory, when and as the test says."""

    peers: dict[asyncio.Protocol, Peer] = field(default_factory=dict)
    refuses: bool = False
    breaks: bool = False
    closes_at_once: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def dial(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        factory: Callable[[], asyncio.Protocol],
        timeout_seconds: float | None,
    ) -> asyncio.Protocol:
        await self.gate.wait()
        if self.refuses:
            raise ProxyError(UPSTREAM_CONNECT, "refused", retryable=True)
        if self.breaks:
            raise LookupError("a bug")
        peer, protocol = Peer(), factory()
        connect(loop, protocol, peer)
        self.peers[protocol] = peer
        if self.closes_at_once:
            peer.transport.close()
            await settle(4)
        return protocol


@dataclass
class Claim:
    """What came of asking for a connection."""

    lease: Lease | None = None
    connection: ClientConnection | None = None
    error: ProxyError | None = None
    answers: int = 0
    is_cancelled: bool = False
    on_granted: Callable[[], None] | None = None

    def granted(self, connection: ClientConnection) -> None:
        self.answers += 1
        self.connection = connection
        connection.start(Reply(), b"GET", WaitLimits())
        connection.write(b"GET / HTTP/1.1\r\n\r\n")
        connection.request_sent()
        if self.on_granted is not None:
            self.on_granted()

    def refused(self, error: ProxyError) -> None:
        self.answers += 1
        self.error = error


class Bench:
    """A pool on a network in memory."""

    def __init__(self, max_connections: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self.clock = ManualClock()
        self.deadlines = Deadlines(loop, self.clock, 0.001)
        self.network = Network()
        self.network.gate.set()
        described = Upstream("up", "http://127.0.0.1:1/v1", max_connections=max_connections)
        target = make_target(described, {})
        self.pool = Pool(target, loop, self.deadlines, ClientLimits(), self.network.dial)
        self.claims: list[Claim] = []

    def ask(self) -> Claim:
        """Take an idle connection, or claim a new one."""
        claim = Claim()
        self.claims.append(claim)
        connection = self.pool.take()
        if connection is not None:
            claim.granted(connection)
        else:
            claim.lease = self.pool.ask(claim.granted, claim.refused)
        return claim

    def peer_of(self, claim: Claim) -> Peer:
        """Return the upstream's end of a claim's connection."""
        assert claim.connection is not None
        return self.network.peers[claim.connection]

    async def finish(self, claim: Claim, answer: bytes = OK) -> None:
        """Let the upstream answer, so that the connection comes back."""
        transport = self.peer_of(claim).transport
        if not transport.is_closing():
            transport.write(answer)
        await settle()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_the_connection_used_last_is_used_first() -> None:
    async def test() -> None:
        on = Bench()
        claims = [on.ask() for _ in range(3)]
        await settle()
        for claim in claims:
            await on.finish(claim)
        assert (on.pool.open_connections, on.pool.in_use) == (3, 0)
        assert on.ask().connection is claims[2].connection
        assert on.pool.in_use == 1

    run(test())


def test_a_claim_is_never_answered_before_it_is_made() -> None:
    async def test() -> None:
        on = Bench()
        on.network.refuses = True
        claim = on.ask()
        assert claim.answers == 0
        await settle()
        assert claim.answers == 1

    run(test())


def test_those_who_wait_are_served_in_order() -> None:
    async def test() -> None:
        on = Bench(max_connections=2)
        claims = [on.ask() for _ in range(5)]
        await settle()
        assert [claim.answers for claim in claims] == [1, 1, 0, 0, 0]
        await on.finish(claims[1])
        assert [claim.answers for claim in claims] == [1, 1, 1, 0, 0]
        assert claims[2].connection is claims[1].connection
        on.peer_of(claims[0]).transport.abort()
        await settle()
        assert [claim.answers for claim in claims] == [1, 1, 1, 1, 0]
        assert len(on.network.peers) == 3

    run(test())


def test_nobody_overtakes_those_who_wait() -> None:
    async def test() -> None:
        on = Bench(max_connections=1)
        first, second = on.ask(), on.ask()
        await settle()
        assert on.pool.take() is None
        await on.finish(first)
        assert second.connection is first.connection
        assert on.pool.take() is None

    run(test())


def test_a_claim_given_up_while_its_connection_is_made_leaves_it_to_the_next() -> None:
    async def test() -> None:
        on = Bench()
        on.network.gate.clear()
        claim = on.ask()
        await settle()
        assert claim.lease is not None
        claim.lease.cancel()
        on.network.gate.set()
        await settle()
        assert claim.answers == 0
        assert (on.pool.open_connections, on.pool.in_use) == (1, 0)
        assert on.ask().connection is not None

    run(test())


def test_a_claim_given_up_in_the_queue_is_passed_over() -> None:
    async def test() -> None:
        on = Bench(max_connections=1)
        first, second, third = on.ask(), on.ask(), on.ask()
        await settle()
        assert second.lease is not None
        second.lease.cancel()
        second.lease.cancel()
        await on.finish(first)
        assert (second.answers, third.answers) == (0, 1)

    run(test())


@pytest.mark.parametrize("fault", ["refuses", "breaks", "closes_at_once"])
def test_a_connection_that_is_not_made_is_a_refusal_and_holds_no_place(fault: str) -> None:
    async def test() -> None:
        on = Bench(max_connections=1)
        vars(on.network)[fault] = True
        first, second = on.ask(), on.ask()
        await settle(40)
        errors = [claim.error.kind.code for claim in (first, second) if claim.error is not None]
        wanted = {"refuses": "upstream_connect_failed", "breaks": "internal_error"}.get(
            fault, "upstream_closed"
        )
        assert errors == [wanted, wanted]
        assert on.pool.open_connections == 0
        vars(on.network)[fault] = False
        third = on.ask()
        await settle()
        assert third.connection is not None

    run(test())


def test_a_request_that_fails_on_its_new_connection_is_refused_and_the_connection_closed() -> None:
    def explode() -> None:
        raise LookupError("a bug")

    async def test() -> None:
        on = Bench()
        claim = Claim(on_granted=explode)
        on.pool.ask(claim.granted, claim.refused)
        await settle()
        assert claim.error is not None
        assert claim.error.kind.code == "internal_error"
        assert on.pool.open_connections == 0
        assert len(on.deadlines) == 0

    run(test())


def test_idle_connections_end_after_five_minutes() -> None:
    async def test() -> None:
        on = Bench()
        claims = [on.ask(), on.ask()]
        await settle()
        await on.finish(claims[0])
        on.clock.advance(299)
        on.deadlines.sweep()
        await settle()
        assert on.pool.open_connections == 2
        on.clock.advance(2)
        on.deadlines.sweep()
        await settle()
        assert on.pool.open_connections == on.pool.in_use == 1
        assert claims[1].connection is not None
        assert not claims[1].connection.is_closed, "a busy one has other limits"

    run(test())


def test_the_time_of_idleness_counts_anew_after_each_use() -> None:
    async def test() -> None:
        on = Bench()
        for _ in range(3):
            claim = on.ask()
            await settle()
            await on.finish(claim)
            on.clock.advance(200)
            on.deadlines.sweep()
            await settle()
        assert on.pool.open_connections == 1
        assert len(on.network.peers) == 1

    run(test())


def test_a_connection_that_its_upstream_closed_while_idle_is_not_taken() -> None:
    async def test() -> None:
        on = Bench()
        claim = on.ask()
        await settle()
        await on.finish(claim)
        on.peer_of(claim).transport.close()
        await settle()
        assert on.pool.open_connections == 0
        assert on.pool.take() is None

    run(test())


def test_a_fresh_connection_makes_room_for_itself_among_idle_ones() -> None:
    async def test() -> None:
        on = Bench(max_connections=1)
        first = on.ask()
        await settle()
        await on.finish(first)
        fresh = Claim()
        on.pool.ask(fresh.granted, fresh.refused)  # an upload asks for a connection of its own
        await settle(30)
        assert fresh.connection is not None
        assert fresh.connection is not first.connection
        assert on.pool.open_connections == 1

    run(test())


def test_a_closed_pool_ends_idle_connections_now_and_busy_ones_afterwards() -> None:
    async def test() -> None:
        on = Bench()
        busy, idle = on.ask(), on.ask()
        await settle()
        await on.finish(idle)
        on.pool.close()
        await settle()
        assert on.pool.open_connections == on.pool.in_use == 1
        late = on.ask()  # of a request that began before the reload
        await settle()
        assert late.connection is not None
        await on.finish(busy)
        await on.finish(late)
        assert on.pool.open_connections == 0
        assert len(on.deadlines) == 0

    run(test())


ACTIONS = ["ask", "finish", "reset", "cancel", "refuse", "accept", "hold", "release", "time"]


@given(st.integers(0, 3), st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9)), max_size=40))
def test_whatever_happens_each_claim_is_answered_once_within_the_limit(
    limit: int, actions: list[tuple[str, int]]
) -> None:
    def pick(claims: list[Claim], number: int) -> Claim | None:
        return claims[number % len(claims)] if claims else None

    def using(on: Bench) -> list[Claim]:
        return [
            claim
            for claim in on.claims
            if claim.connection is not None
            and claim.connection.handler is not None
            and not claim.connection.is_closed
        ]

    async def act(on: Bench, action: str, number: int) -> None:
        match action:
            case "ask":
                on.ask()
            case "finish" | "reset":
                claim = pick(using(on), number)
                if claim is not None and action == "finish":
                    await on.finish(claim, IN_CHUNKS if number % 2 else OK)
                elif claim is not None:
                    on.peer_of(claim).transport.abort()
            case "cancel":
                claim = pick([each for each in on.claims if not each.answers and each.lease], number)
                if claim is not None and claim.lease is not None:
                    claim.lease.cancel()
                    claim.is_cancelled = True
            case "refuse" | "accept":
                on.network.refuses = action == "refuse"
            case "hold":
                on.network.gate.clear()
            case "release":
                on.network.gate.set()
            case _:
                on.clock.advance(number * 60)
                on.deadlines.sweep()
        if number % 3:
            await settle(number)

    async def test() -> None:
        on = Bench(limit)
        for action, number in actions:
            await act(on, action, number)
            assert limit == 0 or on.pool.open_connections <= limit
            assert 0 <= on.pool.in_use <= on.pool.open_connections
        on.network.gate.set()
        await settle(50)
        deadline = time.monotonic() + 5.0
        while busy := using(on) or [each for each in on.claims if not (each.answers or each.is_cancelled)]:
            for claim in busy:
                if claim.connection is not None:
                    await on.finish(claim)
            await settle(50)
            await asyncio.sleep(0.01)  # some connections rest a moment before they serve another
            assert time.monotonic() < deadline
        assert [claim.answers for claim in on.claims] == [int(not claim.is_cancelled) for claim in on.claims]
        assert on.pool.in_use == 0
        assert len(on.deadlines) == on.pool.open_connections
        on.pool.close()
        await settle()
        assert on.pool.open_connections == 0
        assert len(on.deadlines) == 0

    run(test())
