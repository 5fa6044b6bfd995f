"""Pace counts whatever is in flight: calls for several requests, too, which wait only for what is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from proxy.core.clock import ManualClock
from proxy.core.decision import ClosedBy, Pooled, Strategy, Urgency
from proxy.core.exchange import Exchange
from proxy.dialects.chat import CHAT
from proxy.dialects.dialect import Dialect
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.lanes.coalesce.lane import CoalesceLane
from proxy.lanes.coalesce.member import Member
from proxy.lanes.coalesce.paced import hand_over, pooling_for_call
from proxy.lanes.lane import Call
from proxy.policy.model import CoalescePolicy
from tests.support.direct_lane import DirectTwin, json_head, outgoing, pool
from tests.support.replies import Reply

ONE = CoalescePolicy(max_in_flight=1, max_wait_seconds=60.0)
DETERMINISTIC = b'{"model":"m","temperature":0,"messages":[{"role":"user","content":"%b"}]}'
SAMPLED = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'
INPUT = b'{"model":"m","input":"%b"}'


class Bench:
    """The whole lane over the direct lane's twin."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = ManualClock()
        self.clock.advance(1.0)
        self.direct = DirectTwin(self.clock)
        self.lane = CoalesceLane(loop, self.clock, self.direct)
        self.pool = pool(loop, self.clock)

    def carry(
        self, body: bytes, urgency: Urgency = Urgency.SOON, dialect: Dialect = CHAT
    ) -> tuple[Exchange, Call]:
        exchange = Exchange("id", self.clock.monotonic())
        sent = outgoing(self.pool, body, dialect, ONE, urgency)
        return exchange, self.lane.carry(sent, exchange, Reply())

    def member(self, policy: CoalescePolicy, queue_seconds: float, urgency: Urgency = Urgency.SOON) -> Member:
        sent = outgoing(self.pool, SAMPLED % b"q", CHAT, policy, urgency)
        member = Member(sent, Exchange("id", 1.0), Reply(), 1.0)
        member.exchange.queue_seconds = queue_seconds
        member.exchange.pooled = Pooled(Strategy.SAMPLE, 2, ClosedBy.MAX_WAIT, is_leader=False)
        return member


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    yield Bench(loop)
    loop.close()


def test_nobody_interactive_joins_what_pace_holds(bench: Bench) -> None:
    bench.carry(SAMPLED % b"first")
    bench.carry(DETERMINISTIC % b"q")
    assert len(bench.direct.calls) == 1
    hurried, _ = bench.carry(DETERMINISTIC % b"q", Urgency.INTERACTIVE)
    assert len(bench.direct.calls) == 2
    assert hurried.queue_seconds == 0
    patient, _ = bench.carry(DETERMINISTIC % b"q")
    bench.direct.calls[0].answer(json_head(), b"{}")
    bench.direct.calls[1].answer(json_head(), b"{}")
    assert len(bench.direct.calls) == 3, "those that can wait share the call that waited"
    bench.direct.calls[2].answer(json_head(), b"{}")
    assert patient.pooled is not None
    assert (patient.pooled.strategy, patient.pooled.size) == (Strategy.SHARE, 2)


def test_somebody_interactive_joins_what_pace_has_let_go(bench: Bench) -> None:
    bench.carry(DETERMINISTIC % b"q")
    bench.carry(DETERMINISTIC % b"q", Urgency.INTERACTIVE)
    assert len(bench.direct.calls) == 1


@pytest.mark.parametrize(("body", "dialect"), [(SAMPLED, CHAT), (INPUT, EMBEDDINGS)])
def test_a_call_for_several_is_one_in_flight(bench: Bench, body: bytes, dialect: Dialect) -> None:
    for _ in range(4):
        bench.carry(body % b"many", dialect=dialect)
    bench.direct.calls[0].answer(json_head(), b"{}")
    assert len(bench.direct.calls) == 2
    several = json.loads(bench.direct.calls[1].outgoing.body or b"")
    assert several.get("n") == 3 or len(several["input"]) == 3
    other = body.replace(b'"model"', b'"other":1,"model"') % b"one"
    bench.carry(other, dialect=dialect)
    assert len(bench.direct.calls) == 2, "one is in flight"
    bench.direct.calls[1].answer(json_head(status=503), b"{}")
    assert bench.direct.calls[2].outgoing.body == other


def test_a_call_waits_for_what_its_callers_may_still_wait(bench: Bench) -> None:
    members = [bench.member(ONE, 20.0), bench.member(ONE, 50.0, Urgency.DEFERRABLE)]
    pooling = pooling_for_call(members)
    assert pooling is not None
    assert pooling.policy.strategies == (Strategy.PACE,)
    assert (pooling.policy.max_wait_seconds, pooling.urgency) == (10.0, Urgency.SOON)
    hurried = pooling_for_call([*members, bench.member(ONE, 90.0, Urgency.INTERACTIVE)])
    assert hurried is not None
    assert (hurried.policy.max_wait_seconds, hurried.urgency) == (0.0, Urgency.INTERACTIVE)
    assert pooling_for_call([bench.member(CoalescePolicy(), 0.0)]) is None


def test_a_call_is_booked_on_somebody_who_stays(bench: Bench) -> None:
    members = [bench.member(ONE, 0.0) for _ in range(3)]
    members[0].exchange.pooled = Pooled(Strategy.SAMPLE, 3, ClosedBy.RETURNED, is_leader=True)
    for leaver in members:
        leaver.is_over = True
        hand_over(leaver, members)
    booked = [each.exchange.pooled.is_leader for each in members if each.exchange.pooled is not None]
    assert booked == [False, False, True], "the last one's record is the call's"
