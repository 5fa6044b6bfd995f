"""The coalesce lane: which strategy carries a request, and with which others it may travel.

The strategies stand in a chain, in the order of `choice`. Each takes what it has a key for and passes
everything else on; what it sends upstream itself, as the first of many or alone, goes on along the chain,
too: a request that nobody shares may still be warmed or paced. The end of the chain is the direct lane.

It owns no pool: strategies do. A fault in choosing leaves the request to the next, named in its record.
"""

from __future__ import annotations

import asyncio
import logging

from proxy.core.clock import Clock
from proxy.core.decision import StepReport, Strategy
from proxy.core.exchange import Exchange
from proxy.core.price import PriceLookup
from proxy.http.client import ResponseHandler
from proxy.lanes.coalesce.choice import key_of
from proxy.lanes.coalesce.limits import BatchLimits
from proxy.lanes.coalesce.merge import MergeCarrier
from proxy.lanes.coalesce.pace import PaceCarrier
from proxy.lanes.coalesce.sample import SampleCarrier
from proxy.lanes.coalesce.share import ShareCarrier
from proxy.lanes.coalesce.strategy import Carrier
from proxy.lanes.coalesce.warm import WarmCarrier
from proxy.lanes.lane import Call, Lane, Outgoing
from proxy.steps.step import TokenCounting

_log = logging.getLogger("weir")


class CoalesceLane:
    """Carries requests that may travel together.

    `tokens` counts what each caller of a merged call used; without it lengths stand for counts. `prices` say
    whose prompt caches are worth a wait; without them nobody waits for one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        direct: Lane,
        tokens: TokenCounting | None = None,
        prices: PriceLookup | None = None,
    ) -> None:
        pace = _Stage(Strategy.PACE, PaceCarrier(loop, clock, direct), direct)
        warm = _Stage(Strategy.WARM, WarmCarrier(loop, clock, pace, prices), pace)
        sample = _Stage(Strategy.SAMPLE, SampleCarrier(loop, clock, warm), warm)
        merging = MergeCarrier(loop, clock, pace, sample, BatchLimits(clock), tokens)
        merge = _Stage(Strategy.MERGE, merging, sample)
        share = _Stage(Strategy.SHARE, ShareCarrier(loop, clock, merge), merge)
        self._first: Lane = share
        self._stages = (share, merge, sample, warm, pace)

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Carry a request with others of its kind, or alone."""
        return self._first.carry(outgoing, exchange, reply)

    def flush(self) -> None:
        """Send all that waits now, and let nothing wait any more: the process is about to end."""
        for stage in self._stages:
            stage.carrier.flush()


class _Stage:
    """One strategy of the chain, itself a lane."""

    __slots__ = ("_next", "_strategy", "carrier")

    def __init__(self, strategy: Strategy, carrier: Carrier, following: Lane) -> None:
        self._strategy = strategy
        self.carrier = carrier
        self._next = following

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Carry a request by this strategy if it has a key for it."""
        pooling = outgoing.pooling
        if pooling is None:
            return self._next.carry(outgoing, exchange, reply)
        try:
            key = key_of(self._strategy, pooling, outgoing)
        except Exception as problem:
            _log.error("a request could not be pooled", exc_info=problem)
            exchange.steps = (*exchange.steps, StepReport.of_failure("coalesce", problem))
            key = None
        if key is None:
            return self._next.carry(outgoing, exchange, reply)
        return self.carrier.carry(key, pooling, outgoing, exchange, reply)
