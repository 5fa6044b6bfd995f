"""How late the event loop runs: a timer that notes its own delay."""

from __future__ import annotations

import asyncio

from proxy.core.clock import Clock
from proxy.observe.catalogue import LOOP_LAG
from proxy.observe.metrics import Metrics

_INTERVAL_SECONDS = 0.1


class LoopLag:
    """Observes the event loop ten times a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, metrics: Metrics) -> None:
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def start(self) -> None:
        """Begin observing."""
        self._due_at = self._clock.monotonic() + _INTERVAL_SECONDS
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._tick)

    def stop(self) -> None:
        """Stop observing."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._metrics.observe(LOOP_LAG, (), max(0.0, self._clock.monotonic() - self._due_at))
        self.start()
