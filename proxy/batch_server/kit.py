"""What every run of a batch works with: store, clock, gates, and patience with the store; settings and ports.

Owns the rule that a store that is away is waited out: `StoreUnavailable` says that repeating is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from proxy.batch_server.gate import Gates
from proxy.batch_server.line_values import Elsewhere, LineAnswer, Sender
from proxy.batch_server.lines import InputLine
from proxy.batch_server.model import ServedBatch
from proxy.batch_server.store import BatchStore
from proxy.core.clock import Clock
from proxy.jobs.sealing import Vault
from proxy.jobs.store import StoreUnavailable
from proxy.jobs.tiers import backoff_seconds

T = TypeVar("T")
P = ParamSpec("P")
_STORE_FIRST_SECONDS = 0.1
_STORE_MOST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """How batches are worked off. Durations are seconds.

    name               of this worker: no two may share one
    lease              how long a killed worker's batch lies before another takes it over, how long a batch
                       may get nothing done before it makes way, and how long one rests whose key is not here
    batches            how many are worked on at once in one process
    idle               between two looks for work, and at what a caller wants of a batch
    grace              how long lines that run may go on after their batch was cancelled
    backoff, backoff_most    first and longest wait before a line is tried again
    tries              how often a line is tried whose answers say that trying again may be useless
    spare_lines        lines beyond those that may be in flight that wait for a turn or for another try
    """

    name: str
    lease_seconds: float = 30.0
    batches: int = 4
    idle_seconds: float = 1.0
    grace_seconds: float = 10.0
    backoff_seconds: float = 1.0
    backoff_most_seconds: float = 30.0
    tries: int = 5
    spare_lines: int = 16
    purge_every_seconds: float = 60.0


class Caller(Protocol):
    """Whoever sends lines: `line_call.LineCaller`."""

    async def call(
        self, sender: Sender, line: InputLine, body: bytes, expected: str
    ) -> LineAnswer | Elsewhere:
        """Send a line and return its answer; `Elsewhere` unless it goes to the upstream `expected`."""
        ...


class BatchWatch(Protocol):
    """Whoever counts. Calls must not raise and return at once."""

    def batch_ended(self, batch: ServedBatch) -> None:
        """A batch has ended; its progress says how."""
        ...

    def lines_recorded(self, upstream: str, outcome: str, count: int) -> None:
        """Lines have their results: `completed`, `failed`, `expired` or `cancelled`."""
        ...

    def line_retried(self, upstream: str, reason: str) -> None:
        """A line will be tried again after an answer with this status or error code."""
        ...

    def line_gave_way(self, upstream: str) -> None:
        """A line was cut off for a caller's request and will be sent again."""
        ...


class SilentWatch:
    """Counts nothing."""

    def batch_ended(self, batch: ServedBatch) -> None:
        """See `BatchWatch`."""

    def lines_recorded(self, upstream: str, outcome: str, count: int) -> None:
        """See `BatchWatch`."""

    def line_retried(self, upstream: str, reason: str) -> None:
        """See `BatchWatch`."""

    def line_gave_way(self, upstream: str) -> None:
        """See `BatchWatch`."""


class Kit:
    """The tools of one executor. `draw` gives numbers from 0 to 1, for jitter.

    `vault` opens the credentials of callers. `has_upstream` tells whether the policies in force name one.
    `threads` are for what would hold the event loop for more than a few milliseconds.
    """

    def __init__(
        self,
        store: BatchStore,
        clock: Clock,
        settings: ExecutorSettings,
        caller: Caller,
        gates: Gates,
        vault: Vault,
        has_upstream: Callable[[str], bool],
        draw: Callable[[], float],
        threads: Executor,
        watch: BatchWatch | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.caller = caller
        self.gates = gates
        self.vault = vault
        self.has_upstream = has_upstream
        self.watch: BatchWatch = watch or SilentWatch()
        self._clock = clock
        self._draw = draw
        self._threads = threads

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._clock.wall()

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start."""
        return self._clock.monotonic()

    def backoff(self, failures: int) -> float:
        """Return how long a line waits after so many failures in a row."""
        settings = self.settings
        return backoff_seconds(
            failures, settings.backoff_seconds, settings.backoff_most_seconds, self._draw()
        )

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what takes long without holding the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *args, **kwargs))

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call of the store until it is up again."""
        failures = 0
        while True:
            try:
                return await call()
            except StoreUnavailable:
                failures += 1
                wait = backoff_seconds(failures, _STORE_FIRST_SECONDS, _STORE_MOST_SECONDS, self._draw())
                await asyncio.sleep(wait)
