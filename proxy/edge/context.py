"""What the handlers of requests share: ports that `edge.service` implements and `app` wires."""

from __future__ import annotations

import asyncio
from typing import Protocol

from proxy.core.clock import Clock
from proxy.core.exchange import Exchange
from proxy.edge.decision_threads import DecisionThreads
from proxy.http.deadlines import Deadlines
from proxy.http.limits import ServerLimits
from proxy.lanes.lane import Lane as LanePort
from proxy.observe.recorder import Recorder
from proxy.pipeline import Decision, Pipeline
from proxy.policy.model import Route
from proxy.upstream.pool import Pool


class Deciding(Protocol):
    """A request that is decided in a task of its own."""

    exchange: Exchange

    async def decide_in_thread(self, parts: list[bytes]) -> None:
        """Decide without holding the event loop, then send."""
        ...

    def crashed(self, problem: Exception) -> None:
        """Answer after deciding raised."""
        ...


class Routing(Protocol):
    """A policy set in force, with the connections that it leads to."""

    @property
    def pipeline(self) -> Pipeline:
        """What decides."""
        ...

    def pool(self, upstream: str) -> Pool:
        """Return the connections to a configured upstream."""
        ...


class HandlerContext(Protocol):
    """What all requests share."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    deadlines: Deadlines
    limits: ServerLimits
    routing: Routing
    recorder: Recorder
    tunnels: set[asyncio.Transport]
    decisions: DecisionThreads

    @property
    def keeps_batches(self) -> bool:
        """Whether Weir's own batch API is there for the upstreams that it serves."""
        ...

    def lane(self, decision: Decision, exchange: Exchange) -> LanePort:
        """Return what carries a request that was decided about."""
        ...

    def next_request_id(self) -> str:
        """Return an id for a new exchange."""
        ...

    def enter_route(self, route: Route) -> bool:
        """Claim one of the route's places; `False` when all are taken."""
        ...

    def leave_route(self, route: Route) -> None:
        """Give the place back."""
        ...

    def start(self, handler: Deciding, parts: list[bytes]) -> bool:
        """Run `handler.decide_in_thread(parts)` as a task; `False` where there is no room for it."""
        ...
