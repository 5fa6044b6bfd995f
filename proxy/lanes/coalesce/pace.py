"""Requests that nothing unites leave under a limit on how many are in flight.

Owns the timers and the queue of each key. Every request is sent as it came, and none waits longer than its
policy's `max_wait`, in which counts what it has waited to be merged or sampled; interactive ones never do. A
call that serves several requests is one in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from proxy.core.clock import Clock
from proxy.core.decision import ClosedBy, Pooled, Strategy, Urgency
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.lanes.coalesce.alarm import Alarm
from proxy.lanes.coalesce.member import Alone, Member
from proxy.lanes.coalesce.paced import waited_seconds
from proxy.lanes.coalesce.pacing import Pacer, Terms
from proxy.lanes.lane import Call, Lane, Outgoing, Pooling

_EARLY_SECONDS = 0.001
"""How much too early an event loop may run a timer."""


class PaceCarrier:
    """Carries requests one by one, not too many at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, direct: Lane) -> None:
        self.loop = loop
        self.clock = clock
        self.direct = direct
        self._queues: dict[bytes, _Queue] = {}
        self._is_draining = False

    @property
    def queues(self) -> int:
        """Keys that have something waiting or in flight."""
        return len(self._queues)

    def carry(
        self, key: bytes, pooling: Pooling, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler
    ) -> Call:
        """Send a request at once if the limit allows, else in its turn."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(self, key, self._is_draining)
        terms = Terms(
            pooling.policy.max_in_flight,
            pooling.policy.max_wait_seconds - waited_seconds(exchange),
            may_wait=pooling.urgency is not Urgency.INTERACTIVE,
            yields=pooling.urgency is Urgency.DEFERRABLE,
        )
        member = _Paced(outgoing, exchange, reply, self.clock.monotonic())
        queue.add(member, terms)
        return member

    def flush(self) -> None:
        """Send what waits now; nothing waits from now on."""
        self._is_draining = True
        for queue in tuple(self._queues.values()):
            queue.drain()

    def forget(self, key: bytes) -> None:
        """Drop a queue that has nothing left."""
        self._queues.pop(key, None)


class _Paced(Member):
    """A request that is sent in its turn."""

    __slots__ = ()

    @property
    def is_waiting(self) -> bool:
        """Whether it is not sent yet."""
        return isinstance(self.holder, _Queue) and not self.is_over


class _Queue:
    """The queue of one key and its timer: a `Holder` for those that wait."""

    def __init__(self, carrier: PaceCarrier, key: bytes, is_draining: bool) -> None:
        self._carrier = carrier
        self._key = key
        self._pacer: Pacer[Member] = Pacer(is_draining=is_draining)
        self._alarm = Alarm(carrier.loop, carrier.clock, self._expired)

    def add(self, member: Member, terms: Terms) -> None:
        """Let a request in."""
        member.holder = self
        leaves = self._pacer.arrive(member, terms, member.arrived_at)
        self._send([member] if leaves else [], ClosedBy.IDLE)

    def drain(self) -> None:
        """Send what waits."""
        self._send(self._pacer.drain(), ClosedBy.SHUTDOWN)

    def _expired(self) -> None:
        due_at = self._carrier.clock.monotonic() + _EARLY_SECONDS
        self._send(self._pacer.expired(due_at), ClosedBy.MAX_WAIT)

    def _returned(self, status: int) -> None:
        self._send(self._pacer.returned(), ClosedBy.RETURNED)

    def _send(self, members: Sequence[Member], closed_by: ClosedBy) -> None:
        self._alarm.set(self._pacer.due_at)
        for member in members:
            exchange = member.exchange
            if closed_by is not ClosedBy.IDLE:
                exchange.queue_seconds += self._carrier.clock.monotonic() - member.arrived_at
            if exchange.pooled is None:
                # What a strategy before this one did with it says more.
                exchange.pooled = Pooled(Strategy.PACE, 1, closed_by, is_leader=True)
            Alone(member, self._returned).start(self._carrier.direct)
        if self._pacer.is_idle:
            self._carrier.forget(self._key)

    # --- holder of those that wait ---------------------------------------------------------------------

    def left(self, member: Member) -> None:
        """Forget a caller that is gone."""
        self._pacer.leave(member)
        member.exchange.queue_seconds += self._carrier.clock.monotonic() - member.arrived_at
        self._send([], ClosedBy.IDLE)

    def paused(self, member: Member) -> None:
        """Nothing comes yet."""

    def resumed(self, member: Member) -> None:
        """Nothing comes yet."""
