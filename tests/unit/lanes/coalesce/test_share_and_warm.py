"""What one strategy sends goes through those behind it: a request that nobody shares may still be warmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from proxy.core.clock import ManualClock
from proxy.core.decision import ClosedBy, Strategy, Urgency
from proxy.core.exchange import Exchange
from proxy.lanes.coalesce.lane import CoalesceLane
from proxy.upstream.providers.prices import load_prices
from tests.support.direct_lane import DirectTwin, json_head, outgoing, pool
from tests.support.replies import Reply

LONG = "Answer with care. " * 400


def body(question: str, **others: object) -> bytes:
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": question}]
    return json.dumps({"model": "gpt-4o", "temperature": 0, "messages": messages, **others}).encode()


class Bench:
    """The whole lane over the direct lane's twin."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = ManualClock()
        self.clock.advance(1.0)
        self.direct = DirectTwin(self.clock)
        self.lane = CoalesceLane(loop, self.clock, self.direct, prices=load_prices())
        self.pool = pool(loop, self.clock)

    def carry(self, raw: bytes, urgency: Urgency = Urgency.SOON) -> tuple[Exchange, Reply]:
        exchange, reply = Exchange("id", self.clock.monotonic()), Reply()
        self.lane.carry(outgoing(self.pool, raw, urgency=urgency), exchange, reply)
        return exchange, reply

    def begin(self, number: int) -> None:
        self.direct.calls[number].head(json_head())
        self.loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    yield Bench(loop)
    loop.close()


def test_what_nobody_shares_is_warmed_and_says_so(bench: Bench) -> None:
    first, _ = bench.carry(body("one"))
    second, reply = bench.carry(body("two"))
    assert len(bench.direct.calls) == 1
    bench.clock.advance(0.5)
    bench.begin(0)
    bench.begin(1)
    bench.direct.calls[1].data(b"{}")
    bench.direct.calls[1].end()
    assert first.pooled is not None
    assert second.pooled is not None
    assert (first.pooled.strategy, first.pooled.is_leader) == (Strategy.WARM, True)
    assert (second.pooled.strategy, second.pooled.closed_by) == (Strategy.WARM, ClosedBy.RETURNED)
    assert second.queue_seconds == 0.5
    assert second.sent_at == 1.5
    assert bytes(reply.body) == b"{}"


def test_what_is_shared_waits_once_for_all(bench: Bench) -> None:
    bench.carry(body("one"))
    pairs = [bench.carry(body("two")) for _ in range(3)]
    assert len(bench.direct.calls) == 1
    bench.begin(0)
    assert len(bench.direct.calls) == 2
    bench.begin(1)
    assert {pooled.strategy for exchange, _ in pairs if (pooled := exchange.pooled)} == {Strategy.SHARE}


def test_nobody_interactive_joins_what_waits(bench: Bench) -> None:
    bench.carry(body("one"))
    bench.carry(body("two"))
    hurried, _ = bench.carry(body("two"), Urgency.INTERACTIVE)
    bench.carry(body("two"), Urgency.INTERACTIVE)
    assert len(bench.direct.calls) == 2
    bench.begin(1)
    assert hurried.queue_seconds == 0
    bench.begin(0)
    assert len(bench.direct.calls) == 3


def test_a_shutdown_sends_everything_that_waits(bench: Bench) -> None:
    bench.carry(body("one"))
    bench.carry(body("two"))
    bench.lane.flush()
    assert len(bench.direct.calls) == 2
