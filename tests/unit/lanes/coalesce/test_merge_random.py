"""Random bursts against an upstream in memory: whatever happens, each caller gets its own, once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.clock import SystemClock
from proxy.core.decision import Urgency
from proxy.core.document import Document
from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from proxy.core.exchange import Exchange
from proxy.core.upstream import Upstream
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.http.client import ResponseHandler
from proxy.http.head import RequestHead, ResponseHead
from proxy.lanes.coalesce.limits import BatchLimits
from proxy.lanes.coalesce.merge import MergeCarrier
from proxy.lanes.lane import Call, Outgoing, Pooling
from proxy.policy.model import CoalescePolicy
from proxy.tokens.fixed import FixedCounter
from proxy.upstream.pool import Pool
from proxy.upstream.request_head import BodyPlan
from proxy.upstream.target import make_target
from tests.support.lane_kinds import answer, vector
from tests.support.replies import Reply

BAD = "bad"
JSON_HEAD = [(b"content-type", b"Content-Type", b"application/json")]


class _Pool:
    """What the lane looks at of a pool."""

    target = make_target(Upstream("up", "http://127.0.0.1:1/v1"), {})


@dataclass
class _Going:
    """A call of the lane in memory."""

    lane: Memory
    reply: ResponseHandler
    body: bytes
    is_over: bool = False

    def answer(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.lane.in_flight -= 1
        status, made = self.lane.respond(self.body)
        if status == 0:
            self.reply.failed(ProxyError(UPSTREAM_CLOSED, "gone"))
            return
        self.reply.head_received(ResponseHead(status, b"", list(JSON_HEAD)))
        self.reply.body_received(made)
        self.reply.response_ended()

    def cancel(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.lane.in_flight -= 1

    def send_body(self, data: bytes) -> None: ...
    def end_body(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def detach(self) -> None: ...


class Memory:
    """The direct lane's twin: answers after some turns of the loop, in whatever way it is told."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ways: list[str], turns: list[int]) -> None:
        self._loop = loop
        self._ways = ways
        self._turns = turns
        self.in_flight = 0
        self.sizes: list[int] = []
        self.alone: set[bytes] = set()

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        exchange.sent_at = 1.0
        self.in_flight += 1
        going = _Going(self, reply, outgoing.body or b"")
        self._later(self._turns[len(self.sizes) % len(self._turns)], going)
        self.sizes.append(len(self._inputs(json.loads(going.body))))
        return going

    def _later(self, turns: int, going: _Going) -> None:
        if turns:
            self._loop.call_soon(self._later, turns - 1, going)
        else:
            going.answer()

    @staticmethod
    def _inputs(asked: dict[str, Any]) -> list[str]:
        return asked["input"] if isinstance(asked["input"], list) else [asked["input"]]

    def respond(self, body: bytes) -> tuple[int, bytes]:
        """Return status and body, 0 for none. A request alone only fails for its own input."""
        asked = json.loads(body)
        way = "good" if body in self.alone else self._ways[(len(self.sizes) - 1) % len(self._ways)]
        if BAD in self._inputs(asked):
            return 400, b'{"error":{"message":"bad input"}}'
        made = answer(asked)
        match way:
            case "shuffled":
                made["data"].reverse()
            case "short":
                made["data"].pop()
            case "garbage":
                return 200, b"<html>"
            case "busy":
                return 429, b'{"error":{"message":"busy"}}'
            case "broken":
                return 0, b""
            case "refused":
                return 413, b"too large"
            case _:
                pass
        return 200, json.dumps(made).encode()


callers = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from([BAD, "a", "bb", "ccc"]),
            st.lists(st.sampled_from(["a", "bb", BAD, "dddd"]), min_size=1, max_size=4),
        ),
        st.integers(0, 3),  # turns of the loop before it comes
        st.one_of(st.none(), st.integers(0, 8)),  # turns until it leaves, if it does
    ),
    min_size=1,
    max_size=25,
)
ways = st.lists(
    st.sampled_from(["good", "shuffled", "short", "garbage", "busy", "broken", "refused"]),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150)
@given(callers, ways, st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(2, 8), st.booleans())
def test_each_caller_that_stays_gets_its_own_answer_once(
    arriving: list[tuple[Any, int, int | None]], how: list[str], turns: list[int], most: int, drains: bool
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        lane = Memory(loop, how, turns)
        carrier = MergeCarrier(loop, clock, lane, lane, BatchLimits(clock), FixedCounter())
        policy = CoalescePolicy(max_wait_seconds=0.005, max_items=most)
        replies: list[tuple[Any, Reply, Exchange, bool]] = []
        leaving: list[tuple[int, Call]] = []
        for number, (inputs, before, until_leaving) in enumerate(arriving):
            for _ in range(before):
                await asyncio.sleep(0)
                for at, call in [each for each in leaving if each[0] <= number]:
                    leaving.remove((at, call))
                    call.cancel()
            body = json.dumps({"model": "m", "input": inputs}).encode()
            lane.alone.add(body)
            pooling = Pooling(policy, EMBEDDINGS, Document.parse(body), "m", Urgency.SOON, False, False)
            head = RequestHead(b"POST", b"/v1/embeddings", "1.1", [])
            outgoing = Outgoing(head, cast(Pool, _Pool()), body, BodyPlan(len(body)), pooling=pooling)
            reply, exchange = Reply(), Exchange(f"id{number}", clock.monotonic())
            call = carrier.carry(b"key", pooling, outgoing, exchange, reply)
            replies.append((inputs, reply, exchange, until_leaving is not None))
            if until_leaving is not None:
                leaving.append((number + until_leaving, call))
        if drains:
            carrier.flush()
        for _, call in leaving:
            call.cancel()
        async with asyncio.timeout(5):
            while True:
                await asyncio.sleep(0.001)
                has_ended = all(reply.is_over or gone for _, reply, _, gone in replies)
                if has_ended and not carrier.pools and not lane.in_flight:
                    break
        check(replies, lane, most)

    asyncio.run(test())


def check(replies: list[tuple[Any, Reply, Exchange, bool]], lane: Memory, most: int) -> None:
    """Check every caller's outcome, and that no call was larger than it may be."""
    largest_alone = max(len(inputs) if isinstance(inputs, list) else 1 for inputs, *_ in replies)
    assert max(lane.sizes) <= max(most, largest_alone)
    for inputs, reply, exchange, may_be_gone in replies:
        assert reply.faults == []
        assert reply.events.count("head") <= 1
        if not reply.is_over:
            assert may_be_gone
            continue
        if reply.error is not None:
            assert reply.error.kind is UPSTREAM_CLOSED
            continue
        texts = inputs if isinstance(inputs, list) else [inputs]
        status = reply.heads[0].status
        if status == 200:
            data = json.loads(reply.body)["data"]
            assert sorted(each["index"] for each in data) == list(range(len(texts)))
            by_index = {each["index"]: each["embedding"] for each in data}
            assert [by_index[index] for index in range(len(texts))] == [vector(text) for text in texts]
        elif status == 400:
            assert BAD in texts, "nobody gets another's error"
        else:
            assert status == 429
        assert exchange.pooled is None or exchange.pooled.size >= 1
