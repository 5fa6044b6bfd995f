"""Identical sampling requests that come while one is in flight leave together, as one with `n`.

Owns the pools, one per key, and their timers. Who waits and who leaves when is `window`'s arithmetic, whose
choice is whose `sample_choices`'.
"""

from __future__ import annotations

import asyncio

from proxy.core.clock import Clock
from proxy.core.decision import ClosedBy, Pooled, Strategy
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.lanes.coalesce.limits import BatchLimits
from proxy.lanes.coalesce.member import Alone, Member
from proxy.lanes.coalesce.sample_call import SampledCall
from proxy.lanes.coalesce.sample_choices import MOST_CHOICES
from proxy.lanes.coalesce.taker import taker_of
from proxy.lanes.coalesce.window import Batch, Bounds, Load, Window
from proxy.lanes.lane import Call, Lane, Outgoing, Pooling
from proxy.policy.model import CoalescePolicy

_ONE = Load(items=1, tokens=0, bytes=0)
_LEARNT = "n"


class SampleCarrier:
    """Carries requests that are the same in every byte of their bodies."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, direct: Lane) -> None:
        self.loop = loop
        self.clock = clock
        self.direct = direct
        self._limits = BatchLimits(clock)
        self._pools: dict[bytes, _Pool] = {}
        self._is_draining = False

    @property
    def pools(self) -> int:
        """How many keys have something waiting or in flight."""
        return len(self._pools)

    def carry(
        self, key: bytes, pooling: Pooling, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler
    ) -> Call:
        """Send a request, or let it wait for what is in flight."""
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(self, key, self._is_draining)
        member = Member(outgoing, exchange, reply, self.clock.monotonic())
        pool.arrive(member, self._bounds(pooling.policy, outgoing, pooling.model))
        return member

    def flush(self) -> None:
        """Send what waits; from now on nothing waits."""
        self._is_draining = True
        for pool in tuple(self._pools.values()):
            pool.drain()

    def _bounds(self, policy: CoalescePolicy, outgoing: Outgoing, model: str) -> Bounds:
        most = min(policy.max_items, MOST_CHOICES.get(outgoing.pool.target.upstream.provider, 1))
        if len(self._limits):
            most = min(most, self._limits.most(taker_of(outgoing, _LEARNT, model)))
        return Bounds(most, policy.max_tokens, policy.max_bytes, policy.max_wait_seconds)

    # --- what pools and calls ask for -----------------------------------------------------------------

    def refuses(self, outgoing: Outgoing, model: str) -> None:
        """Ask for single choices of a model where this request went, for a while."""
        self._limits.learn(taker_of(outgoing, _LEARNT, model), 1)

    def empty(self, key: bytes) -> None:
        """Forget a pool in which nothing is left."""
        self._pools.pop(key, None)


class _Pool:
    """The requests of one key: a `Holder` for those that wait."""

    def __init__(self, carrier: SampleCarrier, key: bytes, is_draining: bool) -> None:
        self._carrier = carrier
        self._key = key
        self._window: Window[Member] = Window(is_draining=is_draining)
        self._timer: asyncio.TimerHandle | None = None

    def arrive(self, member: Member, bounds: Bounds) -> None:
        """Take a request."""
        member.holder = self
        self._send(self._window.arrive(member, _ONE, bounds, self._carrier.clock.monotonic()))

    def drain(self) -> None:
        """Send what waits."""
        self._send(self._window.drain())

    def left(self, member: Member) -> None:
        """Forget a request whose caller is gone; it was not sent."""
        member.exchange.queue_seconds += self._carrier.clock.monotonic() - member.arrived_at
        self._window.leave(member)
        self._send(())

    def paused(self, member: Member) -> None:
        """Nothing comes yet."""

    def resumed(self, member: Member) -> None:
        """Nothing comes yet."""

    def _returned(self) -> None:
        self._send(self._window.returned())

    def _due(self) -> None:
        self._timer = None
        self._send(self._window.expired())

    def _send(self, batches: tuple[Batch[Member], ...]) -> None:
        """Send batches and wait for what is left."""
        now = self._carrier.clock.monotonic()
        for batch in batches:
            for member in batch.members:
                exchange, is_leader = member.exchange, member is batch.members[0]
                if batch.closed_by is not ClosedBy.IDLE:
                    exchange.queue_seconds += now - member.arrived_at
                exchange.pooled = Pooled(Strategy.SAMPLE, len(batch.members), batch.closed_by, is_leader)
            if len(batch.members) == 1:
                Alone(batch.members[0], lambda _: self._returned()).start(self._carrier.direct)
            else:
                SampledCall(self._carrier, batch.members, self._returned).start()
        self._wait(now)
        if self._window.is_idle:
            self._carrier.empty(self._key)

    def _wait(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_at = self._window.due_at
        if due_at is not None:
            self._timer = self._carrier.loop.call_later(max(0.0, due_at - now), self._due)
