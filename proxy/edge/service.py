"""What all connections from callers share, and the policy set that is in force."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from proxy.core.clock import Clock
from proxy.core.decision import Lane
from proxy.core.errors import ProxyError
from proxy.core.exchange import Exchange
from proxy.dialects.responses import RESPONSES
from proxy.edge.context import Deciding, Routing
from proxy.edge.decision_threads import DecisionThreads
from proxy.edge.errors import error_response
from proxy.edge.handler import ExchangeHandler
from proxy.http.deadlines import Deadlines
from proxy.http.limits import ServerLimits
from proxy.http.server import ServerConnection
from proxy.http.serving import RequestHandler
from proxy.lanes.batch.background import continues_deferred
from proxy.lanes.batch.job_api import asks_for_jobs
from proxy.lanes.lane import Lane as LanePort
from proxy.observe.recorder import Recorder
from proxy.pipeline import SERVED_LANE, Decision
from proxy.policy.model import Route


@dataclass(frozen=True, slots=True)
class JobLanes:
    """What carries requests that have to do with jobs, in a process that keeps some."""

    batch: LanePort
    api: LanePort
    parents: LanePort


class EdgeService:
    """Implements what `http.server` and `edge.handler` ask for; constructed by `app`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        deadlines: Deadlines,
        limits: ServerLimits,
        recorder: Recorder,
        lanes: Mapping[Lane, LanePort],
        routing: Routing,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.deadlines = deadlines
        self.limits = limits
        self.recorder = recorder
        self.lanes = lanes
        self.jobs: JobLanes | None = None
        self.batch_api: LanePort | None = None
        self.routing = routing
        self.connections: set[ServerConnection] = set()
        self.tunnels: set[asyncio.Transport] = set()
        self.decisions = DecisionThreads()
        self.is_draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_route: dict[str, int] = {}
        self._id_prefix = os.urandom(8).hex()
        self._id_count = 0

    @property
    def keeps_batches(self) -> bool:
        """Whether Weir's own batch API is there for the upstreams that it serves."""
        return self.batch_api is not None

    def lane(self, decision: Decision, exchange: Exchange) -> LanePort:
        """Return what carries a request: the lane that was decided, or who answers questions of callers."""
        if decision.lane is SERVED_LANE and self.batch_api is not None:
            return self.batch_api
        jobs = self.jobs
        if jobs is not None:
            if asks_for_jobs(exchange.path):
                return jobs.api
            if decision.dialect is RESPONSES and continues_deferred(decision.document):
                return jobs.parents
            if decision.deferral is not None:
                return jobs.batch
        traffic = self.recorder.traffic
        if traffic is not None:
            traffic.begun(exchange)
        return self.lanes[decision.lane.value]

    def connect(self) -> ServerConnection:
        """Make the protocol of a new connection."""
        return ServerConnection(self, self.loop)

    def handler(self, connection: ServerConnection) -> RequestHandler:
        """Make the handler of the next request."""
        return ExchangeHandler(self, connection)

    def refuse(self, error: ProxyError) -> bytes:
        """Record a request that could not be read; return the response."""
        exchange = Exchange(self.next_request_id(), self.clock.monotonic())
        exchange.ended_at = exchange.started_at
        exchange.error, exchange.status = error.kind.code, error.kind.status
        self.recorder.refused(exchange)
        report = f"x-weir-request-id: {exchange.request_id}\r\n".encode("ascii")
        return error_response(error, report, keep_alive=False)

    def next_request_id(self) -> str:
        """Return an id that is unique across processes and restarts."""
        self._id_count += 1
        return f"{self._id_prefix}{self._id_count:08x}"

    def enter_route(self, route: Route) -> bool:
        """Claim one of the route's places."""
        in_progress = self._in_route.get(route.name, 0)
        if in_progress >= route.max_concurrent:
            return False
        self._in_route[route.name] = in_progress + 1
        return True

    def leave_route(self, route: Route) -> None:
        """Give a place back."""
        self._in_route[route.name] -= 1

    def start(self, handler: Deciding, parts: list[bytes]) -> bool:
        """Decide about a long body in a task of its own; `False` where there is no room for it."""
        body_bytes = sum(map(len, parts))
        if not self.decisions.claim(body_bytes):
            return False
        name = f"decide {handler.exchange.request_id}"
        task = self.loop.create_task(handler.decide_in_thread(parts), name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._decided(handler, body_bytes, done))
        return True

    def _decided(self, handler: Deciding, body_bytes: int, task: asyncio.Task[None]) -> None:
        self.decisions.release(body_bytes)
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            handler.crashed(cast(Exception, problem))

    @property
    def in_flight(self) -> int:
        """Connections with a request in progress."""
        return sum(1 for connection in self.connections if not connection.is_idle)

    def close_idle(self) -> None:
        """Close connections that wait for a request; the others close after their current one."""
        self.is_draining = True
        for connection in tuple(self.connections):
            connection.close_idle()
