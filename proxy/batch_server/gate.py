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
from dataclasses import replace

from proxy.batch_server.capacity import LineEnd
from proxy.batch_server.limit import Encounter, Limit, Met
from proxy.batch_server.load import InteractiveKey, Load, UpstreamLoad
from proxy.core.clock import Clock
from proxy.core.upstream import ServedBatchApi, Upstream

_LONGEST_LOOK_SECONDS = 1.0
_SHORTEST_LOOK_SECONDS = 0.001


Watcher = Callable[[str, Met], None]
"""Hears of each interactive request that is over at an upstream, and which lines it met."""


class Turn:
    """The right to send one line. `leave` it exactly once.

    `give_way`, if whoever has the turn sets it, is called when the line is to be cut off at once: the turn
    is over then. `has_given_way` tells so afterwards.
    """

    __slots__ = ("_begun_at", "_gate", "give_way", "has_given_way", "is_protected")

    def __init__(self, gate: Gate, begun_at: float, is_protected: bool) -> None:
        self._gate = gate
        self._begun_at = begun_at
        self.is_protected = is_protected
        self.give_way: Callable[[], object] | None = None
        self.has_given_way = False

    @property
    def upstream(self) -> str:
        """Where to."""
        return self._gate.upstream

    @property
    def can_give_way(self) -> bool:
        """Whether the line may be cut off."""
        return self.give_way is not None and not self.is_protected

    def leave(
        self,
        end: LineEnd = LineEnd.OTHER,
        output_tokens: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Give the turn back and say how the line fared."""
        if self.has_given_way:
            self._gate.came_back()
        else:
            self._gate.left(self, self._begun_at, end, output_tokens, retry_after_seconds)


class Gate:
    """The way to one upstream: a `Follower` of what goes on there."""

    def __init__(
        self,
        upstream: str,
        served: ServedBatchApi,
        load: UpstreamLoad,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        watcher: Watcher | None,
    ) -> None:
        self.upstream = upstream
        self._served = served
        self._limit = Limit(served)
        self._load = load
        self._loop = loop
        self._clock = clock
        self._watcher = watcher
        self._waiting: OrderedDict[str, deque[asyncio.Future[Turn]]] = OrderedDict()
        # Beside the others: what these wait for is rarer.
        self._protected: deque[asyncio.Future[Turn]] = deque()
        # In the order in which they began.
        self._turns: dict[Turn, None] = {}
        self._coming_back = 0
        self._timer: asyncio.TimerHandle | None = None
        load.follower = self

    @property
    def most(self) -> int:
        """Lines that may be on their way at once at the very most."""
        return self._served.max_in_flight

    @property
    def in_flight(self) -> int:
        """Lines that are on their way now."""
        return self._load.lines_in_flight

    @property
    def limit(self) -> int:
        """Return how many may be, whatever requests come; 0: only as the budget allows."""
        return self._limit.lines(self._clock.monotonic())

    @property
    def waiting(self) -> int:
        """Lines that wait for their turn."""
        return sum(map(len, self._waiting.values())) + len(self._protected)

    async def turn(self, batch_id: str, is_again: bool = False, is_protected: bool = False) -> Turn:
        """Wait for a turn. Lines of one batch have theirs in the order in which they came.

        is_again        before others of its batch, as its last turn was taken from it
        is_protected    the line will not be cut off again
        """
        future: asyncio.Future[Turn] = self._loop.create_future()
        queue = self._protected if is_protected else self._waiting.setdefault(batch_id, deque())
        (queue.appendleft if is_again and not is_protected else queue.append)(future)
        self._look()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().leave()
            raise

    def change(self, served: ServedBatchApi) -> None:
        """Follow these settings from now on."""
        if served != self._served:
            self._served = served
            self._limit.change(served)

    def left(
        self,
        turn: Turn,
        begun_at: float,
        end: LineEnd,
        output_tokens: int | None,
        retry_after_seconds: float | None,
    ) -> None:
        """See `Turn.leave`."""
        now = self._clock.monotonic()
        del self._turns[turn]
        self._load.lines_in_flight -= 1
        self._limit.line_ended(now, now - begun_at, end, output_tokens, retry_after_seconds)
        self._look()

    def came_back(self) -> None:
        """A line that was cut off has stopped; it queues again at once, before others, if it does at all."""
        self._coming_back -= 1
        self._loop.call_soon(self._look)

    def interactive_begun(self, lines: int) -> Encounter:
        """See `Follower`. Lines that are in the way are cut off before the request is sent."""
        now = self._clock.monotonic()
        if not lines:
            return self._limit.interactive_started(now, 0)
        free = [turn for turn in self._turns if turn.can_give_way]
        encounter = self._limit.interactive_started(now, lines, lines - len(free))
        # The youngest: least is lost of them.
        for turn in free[len(free) - encounter.cut :]:
            self._cut_off(turn)
        return encounter

    def interactive_ended(
        self,
        encounter: Encounter,
        key: InteractiveKey,
        seconds: float | None,
        token_seconds: float | None,
    ) -> None:
        """See `Follower`."""
        now = self._clock.monotonic()
        met = self._limit.interactive_ended(now, encounter, key, seconds, token_seconds)
        if self._watcher is not None:
            self._watcher(self.upstream, met)
        if self._waiting or self._protected:
            self._look()

    def _cut_off(self, turn: Turn) -> None:
        if turn.give_way is not None:
            turn.has_given_way = True
            self._coming_back += 1
            del self._turns[turn]
            self._load.lines_in_flight -= 1
            turn.give_way()

    def _look(self) -> None:
        """Give turns to those who wait, as long as the limit lets them start; look again when it may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._coming_back:
            return
        waits = [
            wait for is_protected in (True, False) if (wait := self._start_those(is_protected)) is not None
        ]
        if waits:
            wait = min(max(min(waits), _SHORTEST_LOOK_SECONDS), _LONGEST_LOOK_SECONDS)
            self._timer = self._loop.call_later(wait, self._look)

    def _start_those(self, are_protected: bool) -> float | None:
        """Give turns to lines of one sort; return when to look again, `None`: none is left."""
        load = self._load
        while (future := self._next_protected() if are_protected else self._next()) is not None:
            now = self._clock.monotonic()
            wait = self._limit.may_start(now, load.lines_in_flight, are_protected)
            if wait is not None:
                return wait
            if are_protected:
                del self._protected[0]
            else:
                self._take_next()
            load.lines_in_flight += 1
            self._limit.line_started(now, load.lines_in_flight)
            turn = Turn(self, now, are_protected)
            self._turns[turn] = None
            future.set_result(turn)
        return None

    def _next_protected(self) -> asyncio.Future[Turn] | None:
        while self._protected and self._protected[0].done():
            del self._protected[0]
        return self._protected[0] if self._protected else None

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
        watcher: Watcher | None = None,
    ) -> None:
        self._load = load
        self._loop = loop
        self._clock = clock
        self._watcher = watcher
        self._upstream = upstream
        self._gates: dict[str, Gate] = {}

    def at(self, name: str) -> Gate:
        """Return the gate of an upstream, as many lines wide as its policy says now."""
        served = self._served(name)
        gate = self._gates.get(name)
        if gate is None:
            gate = Gate(name, served, self._load.at(name), self._loop, self._clock, self._watcher)
            self._gates[name] = gate
        gate.change(served)
        return gate

    def __iter__(self) -> Iterator[Gate]:
        return iter(self._gates.values())

    def _served(self, name: str) -> ServedBatchApi:
        """A line's own route may lead to an upstream that serves no batches itself."""
        upstream = self._upstream(name)
        served = (None if upstream is None else upstream.batch_api) or ServedBatchApi()
        if upstream is None or not upstream.max_connections:
            return served
        # Lines never take the last of an upstream's connections: it is for callers.
        most = min(served.max_in_flight, max(1, upstream.max_connections - 1))
        return replace(served, max_in_flight=most)
