"""The executor of one process: its construction, its life beside the store's, and its figures.

It begins as soon as the store of files and batches is open, and its figures are as old as the last look.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace

from proxy.batch_server.counting import MetricsWatch, measure_batches
from proxy.batch_server.executor import Executor, Notify
from proxy.batch_server.gate import Gates
from proxy.batch_server.kit import ExecutorSettings, Kit
from proxy.batch_server.line_call import Carriage, LineCaller
from proxy.batch_server.load import Load
from proxy.batch_server.store import BatchStore, Census
from proxy.core.clock import Clock
from proxy.core.upstream import Upstream
from proxy.edge.decision_threads import DecisionThreads
from proxy.jobs.sealing import PlainVault, Vault
from proxy.jobs.store import StoreUnavailable
from proxy.jobs.worker.ports import WorkerSettings
from proxy.observe.metrics import Metrics
from proxy.policy.model import PolicySet
from proxy.upstream.refusals import Refusals

_log = logging.getLogger("weir")
_CENSUS_TICKS = 5


def executor_settings(worker: WorkerSettings) -> ExecutorSettings:
    """Return how batches are worked off by a process whose worker of jobs is set so."""
    usual = ExecutorSettings(worker.name)
    return replace(
        usual,
        lease_seconds=worker.lease_seconds,
        idle_seconds=worker.idle_seconds,
        backoff_seconds=min(usual.backoff_seconds, worker.backoff_seconds),
        backoff_most_seconds=min(usual.backoff_most_seconds, worker.backoff_most_seconds),
    )


class BatchWork:
    """See the module. Lines are carried by `carriage`, which carries the requests of callers, too."""

    def __init__(
        self,
        store: BatchStore,
        vault: Vault | None,
        clock: Clock,
        metrics: Metrics,
        policies: Callable[[], PolicySet],
        settings: ExecutorSettings,
        carriage: Carriage,
        refusals: Refusals,
        notify: Notify | None = None,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._policies = policies
        self._load = Load()
        # One, of its own: no more than a core is taken from callers, and a process that ends does not wait.
        self._threads = DecisionThreads(1)
        watch = MetricsWatch(metrics)
        self._gates = Gates(self._load, carriage.loop, clock, self._upstream, watch.interactive_met)
        self._executor = Executor(
            Kit(
                store,
                clock,
                settings,
                LineCaller(carriage, refusals, self._threads),
                self._gates,
                vault or PlainVault(),
                lambda name: self._upstream(name) is not None,
                random.SystemRandom().random,
                self._threads,
                watch,
            ),
            notify,
        )
        self._carriage = carriage
        self._working: asyncio.Task[None] | None = None
        self._census: Census | None = None
        self._ticks = 0

    def _upstream(self, name: str) -> Upstream | None:
        return self._policies().upstreams.get(name)

    def wake(self) -> None:
        """Look for work now: something has become due."""
        self._executor.wake()

    async def look_after(self, is_open: bool) -> None:
        """Begin once the store is open, and look at how things are; called every second."""
        served = [name for name, each in self._policies().upstreams.items() if each.batch_api is not None]
        if served:
            # From now on, so that the first batch finds out what callers are used to.
            for name in served:
                self._gates.at(name)
            self._carriage.recorder.traffic = self._load
        if not is_open:
            return
        if self._working is None:
            loop = asyncio.get_running_loop()
            self._working = loop.create_task(self._executor.run(), name="work on batches")
        if self._ticks % _CENSUS_TICKS == 0:
            try:
                self._census = await self._store.census()
            except StoreUnavailable:
                self._ticks -= 1  # who works on batches says so
            except Exception as problem:
                _log.error("batches could not be counted", exc_info=problem)
        self._ticks += 1

    async def drain(self, seconds: float) -> None:
        """Start no more lines, give those that run so much time, and give batches back to others."""
        if self._working is not None:
            await self._executor.stop(max(0.0, seconds))

    async def close(self) -> None:
        """Stop at once and give batches back, while the store is still open."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        self._threads.shutdown()

    def measure(self) -> None:
        """Bring the gauges up to date."""
        if self._working is not None:
            measure_batches(self._metrics, self._gates, self._census)
