"""What else is going on at an upstream while lines run there: requests that callers wait for.

    begun, ended        told by the edge and the recorder for every exchange (`observe.recorder.TrafficWatch`)
    lines_in_flight     kept by the gate of each upstream, which follows its load

Owns what of an exchange tells how busy a model is. Refuses to conclude anything from it: that is `limit`'s
business. Only calls that work for an answer (POST) are told of: a websocket may stay open for hours.
"""

from __future__ import annotations

from typing import Protocol

from proxy.batch_server.limit import Encounter
from proxy.core.exchange import Exchange
from proxy.dialects import dialect_for_path

_LEAST_TOKENS = 8

InteractiveKey = tuple[str, str, bool]
"""What answers are compared with each other: dialect (empty: unknown), model, whether it is a stream."""


class Follower(Protocol):
    """Whoever follows what goes on at one upstream. Calls must not raise and return at once."""

    def interactive_begun(self, lines: int) -> Encounter:
        """A caller's request is on its way, and so many lines are."""
        ...

    def interactive_ended(
        self,
        encounter: Encounter,
        key: InteractiveKey,
        seconds: float | None,
        token_seconds: float | None,
    ) -> None:
        """A caller's request is over; `encounter` is what was returned when it began.

        `seconds` until its answer began, `None` for one without a good answer; `token_seconds` from one token
        to the next, where that is known.
        """
        ...


class UpstreamLoad:
    """What goes on at one upstream."""

    __slots__ = ("follower", "lines_in_flight")

    def __init__(self) -> None:
        self.lines_in_flight = 0
        self.follower: Follower | None = None


class Load:
    """Implements `TrafficWatch` over the upstreams of one process that somebody follows."""

    def __init__(self) -> None:
        self._upstreams: dict[str, UpstreamLoad] = {}
        self._open: dict[str, tuple[Follower, Encounter]] = {}

    def at(self, upstream: str) -> UpstreamLoad:
        """Return what goes on at an upstream."""
        known = self._upstreams.get(upstream)
        if known is None:
            known = self._upstreams[upstream] = UpstreamLoad()
        return known

    def begun(self, exchange: Exchange) -> None:
        """See `TrafficWatch`."""
        load = self._upstreams.get(exchange.upstream)
        if load is None or load.follower is None or exchange.method != "POST":
            return
        follower = load.follower
        self._open[exchange.request_id] = (follower, follower.interactive_begun(load.lines_in_flight))

    def ended(self, exchange: Exchange) -> None:
        """See `TrafficWatch`."""
        known = self._open.pop(exchange.request_id, None)
        if known is None:
            return
        follower, encounter = known
        dialect = dialect_for_path(exchange.path)
        key = ("" if dialect is None else dialect.name, exchange.model, exchange.is_stream)
        follower.interactive_ended(encounter, key, _answer_seconds(exchange), _token_seconds(exchange))


def _token_seconds(exchange: Exchange) -> float | None:
    """Return the pace of an answer that was long enough to have one."""
    tokens = (None if exchange.usage is None else exchange.usage.output_tokens) or 0
    if tokens < _LEAST_TOKENS:
        return None
    if exchange.is_stream:
        return exchange.tpot_seconds
    seconds = _answer_seconds(exchange)
    return None if seconds is None else seconds / tokens


def _answer_seconds(exchange: Exchange) -> float | None:
    """Return how long a caller waited for the beginning of a good answer of its own."""
    came_at = exchange.first_token_at or exchange.first_byte_at
    if not came_at or exchange.error or exchange.status >= 300 or exchange.pooled is not None:
        return None
    return max(0.0, came_at - (exchange.decided_at or exchange.read_at or exchange.started_at))
