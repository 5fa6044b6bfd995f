"""The coalesce lane: which strategy carries a request, and with which others it may travel.

It owns no pool itself: strategies do. What no strategy takes goes straight to the direct lane.
"""

from __future__ import annotations

import asyncio

from proxy.core.clock import Clock
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.lanes.lane import Call, Lane, Outgoing


class CoalesceLane:
    """Carries requests that may travel together."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, direct: Lane) -> None:
        self._direct = direct

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Carry a request with others of its kind, or alone."""
        return self._direct.carry(outgoing, exchange, reply)
