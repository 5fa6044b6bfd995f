"""When things are due: the provider's pace for one request.

It owns the arithmetic and the waiting for it. Waiting is real time; nothing is decided by it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from proxy.sim.scenario import Faults, Timing


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds after `started_at` (event loop time) at which head, first token and further tokens are due.

    `head_seconds` is None where the head leaves together with the first token.
    """

    started_at: float
    head_seconds: float | None
    first_token_seconds: float
    token_seconds: float

    async def wait_for_head(self) -> None:
        """Wait until the head is due."""
        await _until(
            self.started_at + (self.first_token_seconds if self.head_seconds is None else self.head_seconds)
        )

    async def wait_for_step(self, step: int) -> None:
        """Wait until decode step `step` is done; step 0 is the first token."""
        await _until(self.started_at + self.first_token_seconds + step * self.token_seconds)

    def step_at(self, now: float, last_step: int) -> int:
        """Return the last decode step done at `now` (event loop time), -1 before the first token."""
        passed_seconds = now - self.started_at - self.first_token_seconds
        if passed_seconds < 0:
            return -1
        return (
            last_step if not self.token_seconds else min(last_step, int(passed_seconds / self.token_seconds))
        )


def pace_of(
    timing: Timing, faults: Faults, uncached_tokens: int, started_at: float, slowdown: float = 1.0
) -> Pace:
    """Return the pace of a request whose prompt has `uncached_tokens` left to read.

    `slowdown` stretches the scenario's times, not those that a fault sets.
    """
    first_ms = slowdown * (timing.base_ms + timing.prefill_ms_per_token * uncached_tokens)
    if faults.first_byte_ms is not None:
        first_ms = faults.first_byte_ms
    token_ms = slowdown * timing.decode_ms_per_token if faults.token_ms is None else faults.token_ms
    head_ms = None if faults.head_ms is None else min(faults.head_ms, first_ms)
    return Pace(started_at, None if head_ms is None else head_ms / 1000, first_ms / 1000, token_ms / 1000)


async def _until(due_at: float) -> None:
    """Wait until `due_at`, and let other requests run even where nothing is to be waited for."""
    await asyncio.sleep(max(0.0, due_at - asyncio.get_running_loop().time()))
