"""Paced requests against a real upstream."""

from __future__ import annotations

import asyncio
import threading

from proxy.core.decision import ClosedBy, Strategy, Urgency
from proxy.policy.model import CoalescePolicy
from tests.support.carried import Sent, carrying, run, until
from tests.support.lane_kinds import KINDS, serve
from tests.support.raw_upstream import Call

PACE = KINDS["pace"]
TWO = CoalescePolicy(max_wait_seconds=2.0, max_in_flight=2)


class Counting:
    """Answers after a while and notes the most calls in flight."""

    def __init__(self, seconds: float = 0.01) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self.in_flight = self.most = 0

    def __call__(self, call: Call) -> None:
        with self._lock:
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
        threading.Event().wait(self._seconds)
        with self._lock:
            self.in_flight -= 1
        serve(call)


class Shut:
    """Answers nothing before it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def __call__(self, call: Call) -> None:
        assert self._opened.wait(5)
        serve(call)

    def open(self) -> None:
        self._opened.set()


def closed_by(sent: Sent) -> ClosedBy | None:
    pooled = sent.exchange.pooled
    assert pooled is not None
    assert (pooled.strategy, pooled.size, pooled.is_leader) == (Strategy.PACE, 1, True)
    return pooled.closed_by


def test_no_more_are_in_flight_than_the_policy_allows_and_all_are_answered() -> None:
    async def test() -> None:
        script = Counting()
        async with carrying(PACE, script) as on:
            for _ in range(12):
                on.carry(policy=TWO)
            await on.over()
            assert script.most == 2
            assert {sent.status for sent in on.sent} == {200}
            assert [closed_by(sent) for sent in on.sent] == [ClosedBy.IDLE] * 2 + [ClosedBy.RETURNED] * 10
            assert on.sent[0].exchange.queue_seconds == 0
            assert on.sent[-1].exchange.queue_seconds > 0.01

    run(test())


def test_nobody_waits_longer_than_max_wait_though_nothing_returns() -> None:
    async def test() -> None:
        shut = Shut()
        async with carrying(PACE, shut) as on:
            hasty = CoalescePolicy(max_wait_seconds=0.02, max_in_flight=1)
            for _ in range(3):
                on.carry(policy=hasty)
            await until(lambda: len(on.upstream.calls) == 3)
            shut.open()
            await on.over()
            assert closed_by(on.sent[2]) is ClosedBy.MAX_WAIT

    run(test())


def test_interactive_requests_never_wait() -> None:
    async def test() -> None:
        shut = Shut()
        async with carrying(PACE, shut) as on:
            for _ in range(3):
                on.carry(urgency=Urgency.INTERACTIVE)
            await until(lambda: len(on.upstream.calls) == 3)
            shut.open()
            await on.over()
            assert [closed_by(sent) for sent in on.sent] == [ClosedBy.IDLE] * 3

    run(test())


def test_who_leaves_while_it_waits_is_not_sent_and_makes_no_room() -> None:
    async def test() -> None:
        shut = Shut()
        async with carrying(PACE, shut) as on:
            first, gone, last = on.carry(), on.carry(), on.carry()
            await until(lambda: bool(on.upstream.calls))
            gone.call.cancel()
            await asyncio.sleep(0.02)
            assert len(on.upstream.calls) == 1
            shut.open()
            await on.over(first, last)
            assert len(on.upstream.calls) == 2
            assert gone.reply.events == []
            assert gone.exchange.queue_seconds > 0

    run(test())


def test_callers_with_different_credentials_have_limits_of_their_own_and_bodies_do_not_matter() -> None:
    async def test() -> None:
        script = Counting(0.05)
        async with carrying(PACE, script) as on:
            one = CoalescePolicy(max_wait_seconds=2.0, max_in_flight=1)
            for key in "aabb":
                body = PACE.body.replace(b'"hi"', b'"%b"' % key.encode())
                on.carry(body, [("Authorization", f"Bearer {key}")], policy=one)
            await on.over()
            assert script.most == 2

    run(test())


def test_without_a_limit_nothing_is_paced() -> None:
    async def test() -> None:
        async with carrying(PACE, serve) as on:
            sent = on.carry(policy=CoalescePolicy())
            await on.over()
            assert sent.exchange.pooled is None

    run(test())
