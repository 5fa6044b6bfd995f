"""Where time comes from. Nothing else in Weir reads the system clock.

Durations are measured on `monotonic`; `wall` exists for timestamps that people and other machines read.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time, in seconds."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""
        ...

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's clocks, without a Python frame between caller and clock."""

    monotonic = staticmethod(time.perf_counter)
    wall = staticmethod(time.time)


class ManualClock:
    """The in-memory twin: time stands still until it is told to `advance`."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._now = 0.0
        self._wall_offset = wall

    def monotonic(self) -> float:
        """Return the seconds advanced so far."""
        return self._now

    def wall(self) -> float:
        """Return the epoch given at construction plus the seconds advanced so far."""
        return self._wall_offset + self._now

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        self._now += seconds
