"""A lane with a scripted upstream and what is sent through it, without an edge in front.

async with carrying(KINDS["merge"], script) as on:
    call, reply = on.carry()
    await on.over(reply)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from proxy.core.clock import SystemClock
from proxy.core.decision import Strategy, Urgency
from proxy.core.document import Document
from proxy.core.exchange import Exchange
from proxy.core.upstream import Provider, Timeouts, Upstream
from proxy.dialects import dialect_for_path
from proxy.http.deadlines import Deadlines
from proxy.http.head import Header, RequestHead
from proxy.http.limits import ClientLimits
from proxy.lanes.coalesce.lane import CoalesceLane
from proxy.lanes.lane import Call, Lane, Outgoing, Pooling, Rewrite
from proxy.lanes.stream import StreamLane
from proxy.policy.model import CoalescePolicy
from proxy.tokens.fixed import FixedCounter
from proxy.upstream.pool import Pool
from proxy.upstream.providers.prices import load_prices
from proxy.upstream.refusals import Refusals
from proxy.upstream.request_head import BodyPlan
from proxy.upstream.target import make_target
from tests.support.raw_upstream import RawUpstream, Script
from tests.support.replies import Reply

WAIT_SECONDS = 5.0
Lines = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Kind:
    """A lane and the kind of request that it carries in a certain way. `strategy` is `None` for no pool."""

    name: str
    path: str
    body: bytes
    policy: CoalescePolicy
    strategy: Strategy | None
    urgency: Urgency = Urgency.SOON
    provider: Provider = Provider.OPENAI

    @property
    def is_stream(self) -> bool:
        """Whether the request asks for events."""
        return b'"stream":true' in self.body


@dataclass
class Sent:
    """One request: its call, its exchange and what its reply was told."""

    call: Call
    exchange: Exchange
    reply: Reply

    @property
    def body(self) -> bytes:
        """The answer's body."""
        return bytes(self.reply.body)

    @property
    def json(self) -> Any:
        """The answer."""
        return json.loads(self.reply.body)

    @property
    def status(self) -> int:
        """The answer's status, 0 without an answer."""
        return self.reply.heads[0].status if self.reply.heads else 0


@dataclass
class Carrying:
    """The lane at work."""

    kind: Kind
    upstream: RawUpstream
    lane: Lane
    pool: Pool
    clock: SystemClock
    sent: list[Sent] = field(default_factory=list)

    def carry(
        self,
        body: bytes | None = None,
        headers: Lines = (),
        rewrite: Rewrite | None = None,
        reply: Reply | None = None,
        policy: CoalescePolicy | None = None,
        urgency: Urgency | None = None,
    ) -> Sent:
        """Send one request; what is not given is the kind's."""
        kind = self.kind
        body = kind.body if body is None else body
        lines = [("Host", "weir"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        raw: list[Header] = [(n.lower().encode(), n.encode(), v.encode()) for n, v in [*lines, *headers]]
        dialect = dialect_for_path(kind.path)
        assert dialect is not None
        document = Document.parse(body)
        pooling = Pooling(
            policy=policy or kind.policy,
            dialect=dialect,
            document=document,
            model=str(document.value("model", "")),
            urgency=urgency or kind.urgency,
            is_stream=dialect.is_stream(document),
            asks_usage=False,
        )
        outgoing = Outgoing(
            RequestHead(b"POST", kind.path.encode(), "1.1", raw),
            self.pool,
            body,
            BodyPlan(len(body)),
            rewrite,
            pooling=None if kind.strategy is None else pooling,
        )
        reply = reply or Reply()
        exchange = Exchange(f"id{len(self.sent)}", self.clock.monotonic())
        sent = Sent(self.lane.carry(outgoing, exchange, reply), exchange, reply)
        self.sent.append(sent)
        return sent

    async def over(self, *sent: Sent) -> None:
        """Wait until these (all, if none are given) have ended."""
        wanted = sent or tuple(self.sent)
        await until(lambda: all(each.reply.is_over for each in wanted))
        for each in wanted:
            assert each.reply.faults == []

    @property
    def bodies(self) -> list[Any]:
        """The JSON of every request that the upstream has read."""
        return [json.loads(call.body) for call in self.upstream.calls]


async def until(holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@asynccontextmanager
async def carrying(kind: Kind, script: Script, **described: Any) -> AsyncIterator[Carrying]:
    """Run the kind's lane in front of `script`; at the end no connection is left."""
    with RawUpstream(script) as upstream:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        deadlines = Deadlines(loop, clock, 0.01)
        described.setdefault("timeouts", Timeouts(1.0, 4.0, 4.0))
        described.setdefault("provider", kind.provider)
        url = described.pop("url", upstream.url)
        target = make_target(Upstream("up", url, **described), {})
        pool = Pool(target, loop, deadlines, ClientLimits())
        stream = StreamLane(loop, clock, Refusals(clock))
        lane: Lane = stream
        if kind.strategy is not None:
            lane = CoalesceLane(loop, clock, stream, FixedCounter(), load_prices())
        deadlines.start()
        try:
            yield Carrying(kind, upstream, lane, pool, clock)
        finally:
            pool.close()
            await until(lambda: pool.open_connections == 0)
            deadlines.stop()


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run an async test on the loop that Weir runs on."""
    uvloop.run(test)
