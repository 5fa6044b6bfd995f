"""Whose turn it is: lines of all batches of a process wait here for their upstream, fairly between batches.

    gates.at(name)              the gate of an upstream
    await gate.turn(batch_id)   wait until a line may be sent; the turn is given back by `leave`

Owns the waiting and the counting of what is in flight. How many may be in flight at once, and when, is
`limit`'s decision, which hears from here how lines and callers' requests fare.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from proxy.batch_server.limit import Limit, LineEnd
from proxy.batch_server.load import InteractiveKey, Load, UpstreamLoad
from proxy.core.clock import Clock
from proxy.core.upstream import Upstream

DEFAULT_MOST = 32
"""Lines at once at an upstream that a line's own route leads to, and that serves no batches itself."""

_LONGEST_LOOK_SECONDS = 1.0
_SHORTEST_LOOK_SECONDS = 0.001


class Turn:
    """The right to send one line. `leave` it exactly once."""

    __slots__ = ("_begun_at", "_gate")

    def __init__(self, gate: Gate, begun_at: float) -> None:
        self._gate = gate
        self._begun_at = begun_at

    @property
    def upstream(self) -> str:
        """Where to."""
        return self._gate.upstream

    def leave(
        self,
        end: LineEnd = LineEnd.OTHER,
        output_tokens: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Give the turn back and say how the line fared."""
        self._gate.left(self._begun_at, end, output_tokens, retry_after_seconds)


class Gate:
    """The way to one upstream: a `Follower` of what goes on there."""

    def __init__(
        self, upstream: str, most: int, load: UpstreamLoad, loop: asyncio.AbstractEventLoop, clock: Clock
    ) -> None:
        self.upstream = upstream
        self.limit = Limit(most)
        self.most = most
        self._load = load
        self._loop = loop
        self._clock = clock
        self._waiting: OrderedDict[str, deque[asyncio.Future[Turn]]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        load.follower = self

    @property
    def in_flight(self) -> int:
        """Lines that are on their way now."""
        return self._load.lines_in_flight

    @property
    def waiting(self) -> int:
        """Lines that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    async def turn(self, batch_id: str) -> Turn:
        """Wait for a turn. Lines of one batch have theirs in the order in which they came."""
        future: asyncio.Future[Turn] = self._loop.create_future()
        self._waiting.setdefault(batch_id, deque()).append(future)
        self._look()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().leave()
            raise

    def widen(self, most: int) -> None:
        """Let so many lines pass at once at most; what the limit knows is forgotten where that is news."""
        if most != self.most:
            self.most = most
            self.limit = Limit(most)

    def left(
        self, begun_at: float, end: LineEnd, output_tokens: int | None, retry_after_seconds: float | None
    ) -> None:
        """See `Turn.leave`."""
        now = self._clock.monotonic()
        self._load.line_ended()
        self.limit.line_ended(now, now - begun_at, end, output_tokens, retry_after_seconds)
        self._look()

    def interactive_begun(self) -> None:
        """See `Follower`."""
        self.limit.interactive_started(self._clock.monotonic())

    def interactive_ended(
        self, key: InteractiveKey, seconds: float | None, token_seconds: float | None, was_mixed: bool
    ) -> None:
        """See `Follower`."""
        if seconds is not None:
            now = self._clock.monotonic()
            self.limit.interactive_ended(now, key, seconds, was_mixed, token_seconds)
        if self._waiting:
            self._look()

    def _look(self) -> None:
        """Give turns to those who wait, as long as the limit lets them start; look again when it may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (future := self._next()) is not None:
            now = self._clock.monotonic()
            load = self._load
            wait = self.limit.may_start(now, load.lines_in_flight, load.interactive_in_flight)
            if wait is not None:
                wait = min(max(wait, _SHORTEST_LOOK_SECONDS), _LONGEST_LOOK_SECONDS)
                self._timer = self._loop.call_later(wait, self._look)
                return
            self._take_next()
            load.line_began()
            self.limit.line_started(now, load.lines_in_flight)
            future.set_result(Turn(self, now))

    def _next(self) -> asyncio.Future[Turn] | None:
        """Return who is next; those who gave up are forgotten."""
        while self._waiting:
            batch_id, futures = next(iter(self._waiting.items()))
            while futures and futures[0].done():
                del futures[0]
            if futures:
                return futures[0]
            del self._waiting[batch_id]
        return None

    def _take_next(self) -> None:
        """Take the next one out; its batch goes behind the others."""
        batch_id, futures = next(iter(self._waiting.items()))
        del futures[0]
        self._waiting.move_to_end(batch_id)


class Gates:
    """The gates of one process. `upstream` tells how one is configured now, `None`: it is gone."""

    def __init__(
        self,
        load: Load,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        upstream: Callable[[str], Upstream | None],
    ) -> None:
        self._load = load
        self._loop = loop
        self._clock = clock
        self._upstream = upstream
        self._gates: dict[str, Gate] = {}

    def at(self, name: str) -> Gate:
        """Return the gate of an upstream, as many lines wide as its policy says now."""
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = Gate(name, DEFAULT_MOST, self._load.at(name), self._loop, self._clock)
        gate.widen(self._most(name))
        return gate

    def __iter__(self) -> Iterator[Gate]:
        return iter(self._gates.values())

    def _most(self, name: str) -> int:
        """Lines never take the last of an upstream's connections: it is for callers."""
        upstream = self._upstream(name)
        if upstream is None:
            return DEFAULT_MOST
        most = DEFAULT_MOST if upstream.batch_api is None else upstream.batch_api.max_in_flight
        return min(most, max(1, upstream.max_connections - 1)) if upstream.max_connections else most
