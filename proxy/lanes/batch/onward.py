"""The part of a call of this lane that goes onward, should its request be carried by itself after all.

Until then there is no answer of an upstream to pause, and nothing to cancel there.
"""

from __future__ import annotations

from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.lanes.lane import Call, Lane, Outgoing


class Onward:
    """Base of such calls: half of `lanes.lane.Call`. `_own` is what carries the request by itself."""

    def __init__(self) -> None:
        self._own: Call | None = None
        self._is_paused = False

    def pause(self) -> None:
        """Stop reading an upstream's answer, now or as soon as one is coming."""
        self._is_paused = True
        if self._own is not None:
            self._own.pause()

    def resume(self) -> None:
        """Read it again."""
        self._is_paused = False
        if self._own is not None:
            self._own.resume()

    def _go_onward(
        self, direct: Lane, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler
    ) -> Call:
        call = self._own = direct.carry(outgoing, exchange, reply)
        if self._is_paused:
            call.pause()
        return call

    def _let_go(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.cancel()
