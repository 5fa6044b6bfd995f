"""One timer that follows a moment which moves: set whenever the moment may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.core.clock import Clock


class Alarm:
    """Calls `rings` when the moment has come that was set last; an event loop may be a millisecond early."""

    __slots__ = ("_clock", "_due_at", "_loop", "_rings", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, rings: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._rings = rings
        self._due_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_at: float | None) -> None:
        """Ring at `due_at` (monotonic seconds) and at no other moment; `None` is never."""
        if due_at == self._due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_at = due_at
        if due_at is not None:
            self._timer = self._loop.call_later(max(0.0, due_at - self._clock.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer = self._due_at = None
        self._rings()
