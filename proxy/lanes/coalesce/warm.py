"""Requests of a burst that share a long prefix find it in the provider's cache instead of paying for it each.

The first leaves at once. Those that come before its answer has begun wait for that, at most `warm_max_wait`
each, since a provider's cache has nothing of a prefix before. The first that has waited in vain leads in its
place, so that a call that hangs costs one such wait and not one for each request. Owns these waits. What is
cached and who leads is `warm_rules`' arithmetic, what a prefix is `warm_prefix`'s.
"""

from __future__ import annotations

import asyncio
import logging

from proxy.core.clock import Clock
from proxy.core.decision import ClosedBy, Pooled, Strategy
from proxy.core.exchange import Exchange
from proxy.core.price import Price, PriceLookup
from proxy.http.client import ResponseHandler
from proxy.lanes.coalesce.warm_call import WarmCall
from proxy.lanes.coalesce.warm_prefix import Prefix, cacheable_prefix, pays_to_warm
from proxy.lanes.coalesce.warm_rules import Warmth
from proxy.lanes.lane import Call, Lane, Outgoing, Pooling

_log = logging.getLogger("weir")


class WarmCarrier:
    """Carries requests with long prefixes. A `key` says who asks whom for which model; no body is in it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, direct: Lane, prices: PriceLookup | None
    ) -> None:
        """`prices` as `None`: nothing is known to be cheaper, and nothing waits."""
        self._loop = loop
        self._clock = clock
        self._direct = direct
        self._prices = prices
        self._warmth: Warmth[WarmCall] = Warmth()
        self._waiting: set[WarmCall] = set()
        self._is_draining = False

    @property
    def waiting(self) -> int:
        """How many requests wait for others."""
        return len(self._waiting)

    def carry(
        self, key: bytes, pooling: Pooling, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler
    ) -> Call:
        """Send a request, or let it wait for one that has its prefix."""
        prefix = self._prefix(key, pooling, outgoing)
        if prefix is None or self._is_draining:
            return self._direct.carry(outgoing, exchange, reply)
        now = self._clock.monotonic()
        kind = key + (b"s" if pooling.is_stream else b"w")
        call = WarmCall(self, prefix, kind, outgoing, exchange, reply, now)
        self._place(call, now)
        return call

    def flush(self) -> None:
        """Send what waits; from now on nothing waits."""
        self._is_draining = True
        for call in sorted(self._waiting, key=lambda each: each.arrived_at):
            self._release(call, ClosedBy.SHUTDOWN)

    def _price(self, pooling: Pooling, outgoing: Outgoing) -> Price | None:
        if self._prices is None:
            return None
        provider = outgoing.pool.target.upstream.provider
        return self._prices.price(provider.value, pooling.model)

    def _prefix(self, key: bytes, pooling: Pooling, outgoing: Outgoing) -> Prefix | None:
        price = self._price(pooling, outgoing)
        if price is None or price.cache is None or not pays_to_warm(pooling, price):
            return None
        return cacheable_prefix(key, pooling, price.cache)

    # --- who waits for whom ---------------------------------------------------------------------------

    def _place(self, call: WarmCall, now: float) -> None:
        """Send a request as a leader or by itself, or have it wait."""
        pooling = call.outgoing.pooling
        assert pooling is not None, "only what may be pooled is"
        plan = self._warmth.plan(call.prefix, now)
        leader = plan.leader
        max_wait_seconds = pooling.policy.warm_max_wait_seconds - (now - call.arrived_at)
        if leader is not None and self._warmth.is_worth_waiting(leader.kind, max_wait_seconds):
            self._follow(call, leader, max_wait_seconds)
            return
        call.exchange.queue_seconds += now - call.arrived_at
        call.note(Pooled(Strategy.WARM, 1, ClosedBy.IDLE, is_leader=not plan.is_warm))
        if plan.is_warm:
            self._warmth.renew(call.prefix, now, now + call.prefix.lifetime_seconds)
        leads = plan.leads and leader is None
        if leads:
            self._warmth.lead(call.prefix, call, now)
        self._send(call, now, leads)

    def _send(self, call: WarmCall, now: float, leads: bool) -> None:
        """Send a request. Whatever that raises is told to its caller, not to the leader."""
        try:
            call.send(self._direct, now, leads)
        except Exception as problem:
            _log.error("a request could not be sent", exc_info=problem)
            call.refuse(problem)

    def _follow(self, call: WarmCall, leader: WarmCall, max_wait_seconds: float) -> None:
        call.leader = leader
        leader.followers.append(call)
        self._waiting.add(call)
        call.timer = self._loop.call_later(max(0.0, max_wait_seconds), self._expired, call, leader)

    def _expired(self, call: WarmCall, leader: WarmCall) -> None:
        """A request has waited in vain: the first such takes the lead over from a leader that is too slow."""
        takes_over, leader.is_late = not leader.is_late, True
        if takes_over:
            now = self._clock.monotonic()
            self._warmth.give_up(leader.prefix, leader)
            self._warmth.learn_pace(leader.kind, now - leader.sent_at)
            self._warmth.lead(call.prefix, call, now)
        self._release(call, ClosedBy.MAX_WAIT, leads=takes_over)

    def _release(self, call: WarmCall, closed_by: ClosedBy, leads: bool = False) -> None:
        """Let a request leave that waited."""
        self._forget(call)
        now = self._clock.monotonic()
        call.exchange.queue_seconds += now - call.arrived_at
        call.note(Pooled(Strategy.WARM, 1, closed_by, is_leader=False))
        self._send(call, now, leads)

    def _forget(self, call: WarmCall) -> None:
        self._waiting.discard(call)
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        leader, call.leader = call.leader, None
        if leader is not None and call in leader.followers:
            leader.followers.remove(call)

    # --- what calls tell ------------------------------------------------------------------------------

    def began(self, leader: WarmCall) -> None:
        """The prefix is cached now: let everybody go."""
        now = self._clock.monotonic()
        self._warmth.give_up(leader.prefix, leader)
        self._warmth.began(leader.prefix, now + leader.prefix.lifetime_seconds)
        self._warmth.learn_pace(leader.kind, now - leader.sent_at)
        # The leader's first byte reaches its caller before anybody else's request is sent.
        self._loop.call_soon(self._release_all, leader)

    def _release_all(self, leader: WarmCall) -> None:
        for call in tuple(leader.followers):
            self._release(call, ClosedBy.RETURNED)

    def lost(self, leader: WarmCall) -> None:
        """One of those that wait goes first in its place, once; then all leave."""
        self._warmth.give_up(leader.prefix, leader)
        if leader.is_second or self._is_draining:
            self._release_all(leader)
            return
        now = self._clock.monotonic()
        followers = tuple(leader.followers)
        for call in followers:
            self._forget(call)
            call.is_second = True
        for call in followers:
            self._place(call, now)

    def left(self, follower: WarmCall) -> None:
        """A caller that waited is gone: it was not sent."""
        follower.exchange.queue_seconds += self._clock.monotonic() - follower.arrived_at
        self._forget(follower)
