"""One coarse timer for all connections: a sweep instead of a timer per request.

A guarded object carries the absolute `deadline` (monotonic seconds, `inf` for none) that it keeps up to date
itself, and looks at the clock when it is swept. `horizon` lies one
interval after the last sweep, never before now: a deadline counted from it fires up to two intervals late,
never early, and costs no look at the clock.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from proxy.core.clock import Clock

NEVER = float("inf")


class Guarded(Protocol):
    """What the sweep watches."""

    deadline: float

    def sweep(self, now: float) -> None:
        """Compare `deadline` with `now` and act; called once per interval."""
        ...


class Deadlines:
    """The sweep itself. Objects must be discarded when they are done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, interval_seconds: float = 0.05) -> None:
        self._loop = loop
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._guarded: set[Guarded] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.horizon = clock.monotonic() + interval_seconds

    def after(self, seconds: float | None) -> float:
        """Return the deadline `seconds` from now, `NEVER` for `None`; at most two intervals late."""
        return NEVER if seconds is None else self.horizon + seconds

    def start(self) -> None:
        """Begin sweeping."""
        self.horizon = self._clock.monotonic() + self._interval_seconds
        self._timer = self._loop.call_later(self._interval_seconds, self._tick)

    def stop(self) -> None:
        """Stop sweeping; what is guarded stays as it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def add(self, item: Guarded) -> None:
        """Watch `item` until it is discarded."""
        self._guarded.add(item)

    def discard(self, item: Guarded) -> None:
        """Stop watching `item`."""
        self._guarded.discard(item)

    def __len__(self) -> int:
        return len(self._guarded)

    def sweep(self) -> None:
        """Let every guarded object look at the clock once."""
        now = self._clock.monotonic()
        self.horizon = now + self._interval_seconds
        for item in tuple(self._guarded):
            item.sweep(now)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_seconds, self._tick)
        self.sweep()
