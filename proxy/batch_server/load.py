"""What else is going on at an upstream while lines run there: requests that callers wait for.

    begun, ended        told by the edge and the recorder for every exchange (`observe.recorder.TrafficWatch`)
    line_began, ended   told by whoever runs lines

Owns the question whether an exchange met lines at its upstream. Refuses to conclude anything from it: that
is `limit`'s business. Only upstreams that are watched are counted, and only calls that work for an answer
(POST): a websocket that stays open for hours says nothing about how busy a model is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from proxy.core.exchange import Exchange
from proxy.dialects import dialect_for_path

_LEAST_TOKENS = 8

InteractiveKey = tuple[str, str, bool]
"""What answers are compared with each other: dialect (empty: unknown), model, whether it is a stream."""


class Follower(Protocol):
    """Whoever follows what goes on at one upstream. Calls must not raise and return at once."""

    def interactive_begun(self) -> None:
        """A caller's request is on its way."""
        ...

    def interactive_ended(
        self, key: InteractiveKey, seconds: float | None, token_seconds: float | None, was_mixed: bool
    ) -> None:
        """A caller's request is over.

        `seconds` until its answer began, `None` for one without a good answer; `token_seconds` from one token
        to the next, where that is known; `was_mixed`: lines were in flight at some time meanwhile.
        """
        ...


class UpstreamLoad:
    """What goes on at one upstream."""

    __slots__ = ("follower", "interactive_in_flight", "line_starts", "lines_in_flight")

    def __init__(self) -> None:
        self.interactive_in_flight = 0
        self.lines_in_flight = 0
        self.line_starts = 0
        self.follower: Follower | None = None

    def line_began(self) -> None:
        """A line has been sent."""
        self.lines_in_flight += 1
        self.line_starts += 1

    def line_ended(self) -> None:
        """A line's answer is there, or will not come."""
        self.lines_in_flight -= 1


class Load:
    """Implements `TrafficWatch` over the watched upstreams of one process."""

    def __init__(self) -> None:
        self._upstreams: dict[str, UpstreamLoad] = {}
        self._open: dict[str, tuple[UpstreamLoad, int, bool]] = {}

    def watch(self, upstreams: Iterable[str]) -> None:
        """Count at these upstreams, too, from now on."""
        for name in upstreams:
            self.at(name)

    def at(self, upstream: str) -> UpstreamLoad:
        """Return what goes on at an upstream, which is watched from now on."""
        known = self._upstreams.get(upstream)
        if known is None:
            known = self._upstreams[upstream] = UpstreamLoad()
        return known

    def begun(self, exchange: Exchange) -> None:
        """See `TrafficWatch`."""
        load = self._upstreams.get(exchange.upstream)
        if load is None or exchange.method != "POST":
            return
        load.interactive_in_flight += 1
        self._open[exchange.request_id] = (load, load.line_starts, load.lines_in_flight > 0)
        if load.follower is not None:
            load.follower.interactive_begun()

    def ended(self, exchange: Exchange) -> None:
        """See `TrafficWatch`."""
        known = self._open.pop(exchange.request_id, None)
        if known is None:
            return
        load, line_starts, is_mixed = known
        load.interactive_in_flight -= 1
        if load.follower is not None:
            dialect = dialect_for_path(exchange.path)
            key = ("" if dialect is None else dialect.name, exchange.model, exchange.is_stream)
            was_mixed = is_mixed or load.line_starts != line_starts
            seconds = _answer_seconds(exchange)
            load.follower.interactive_ended(key, seconds, _token_seconds(exchange), was_mixed)


def _token_seconds(exchange: Exchange) -> float | None:
    """Return the pace of a stream that was long enough to have one."""
    tokens = None if exchange.usage is None else exchange.usage.output_tokens
    return exchange.tpot_seconds if (tokens or 0) >= _LEAST_TOKENS else None


def _answer_seconds(exchange: Exchange) -> float | None:
    """Return how long a caller waited for the beginning of a good answer of its own."""
    came_at = exchange.first_token_at or exchange.first_byte_at
    if not came_at or exchange.error or exchange.status >= 300 or exchange.pooled is not None:
        return None
    return max(0.0, came_at - (exchange.decided_at or exchange.read_at or exchange.started_at))
