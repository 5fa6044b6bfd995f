"""Deferred work of one process: the store, who works on its jobs, and the lanes of those who wait for them.

    DeferredWork      everything, for a process that serves callers or only works
    PolicyDirectory   what the worker asks about policies, answered from the set in force

Owns their construction, their life (`open`, `close`) and what is looked after every second: how the store is,
how fast tiers are, how many jobs there are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from proxy.batch_server.api import BatchApi
from proxy.batch_server.line_call import Carriage
from proxy.batch_server.notices import Notices
from proxy.batch_server.serving import BatchServer, serves_any
from proxy.batch_server.working import BatchWork, executor_settings
from proxy.core.clock import Clock
from proxy.core.upstream import Upstream
from proxy.jobs.breaker import Breaker, GuardedStore
from proxy.jobs.changes import Census, JobQuery
from proxy.jobs.counting import MetricsWatch
from proxy.jobs.inspection import Inspector
from proxy.jobs.model import LIVE_JOB_STATES
from proxy.jobs.opening import DEFAULT, SQLITE, make_store
from proxy.jobs.sealing import PlainVault, SealError, SecretVault, vault_from
from proxy.jobs.store import JobStore, StoreUnavailable
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.loop import Worker
from proxy.jobs.worker.ports import RouteRules, WorkerSettings
from proxy.jobs.worker.providers import Providers
from proxy.lanes.batch.deferring import Deferring
from proxy.lanes.batch.job_api import JobApi
from proxy.lanes.batch.lane import BatchLane
from proxy.lanes.batch.pace import Pace
from proxy.lanes.batch.parents import Parents
from proxy.lanes.lane import Lane
from proxy.observe import catalogue
from proxy.observe.metrics import Metrics
from proxy.policy.model import PolicySet
from proxy.settings import Settings
from proxy.upstream.providers.prices import PriceTable
from proxy.upstream.refusals import Refusals
from proxy.webhooks.sender import Sender

_log = logging.getLogger("weir")

_TICK_SECONDS = 1.0
_SLOW_TICKS = 5
_ENDING_SECONDS = 0.2
_MOST_COUNTED = 1000
_SETTLED_TICKS = 2
"""Ticks after a recovery before jobs are cancelled that may have arrived with it."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where jobs are kept and with which key. `is_given`: an operator named the store."""

    setting: str
    vault: SecretVault | None
    is_given: bool


def keeping(settings: Settings, policies: PolicySet) -> Keeping | None:
    """Return how jobs are kept, `None` where nothing is deferred. Raises ValueError for a bad key or store.

    Without a setting a file is used as soon as a route has a `batch` section, or an upstream is served by
    Weir's own batch API.
    """
    setting = settings.store
    if setting is None and (
        serves_any(policies) or any(route.batch is not None for route in policies.routes)
    ):
        setting = DEFAULT
    if setting is None or setting == "off":
        return None
    try:
        return Keeping(setting, vault_from(settings.secret_key), settings.store is not None)
    except SealError as problem:
        raise ValueError(str(problem)) from None


class PolicyDirectory:
    """Answers the worker from the policy set that `policies` returns."""

    def __init__(self, policies: Callable[[], PolicySet]) -> None:
        self._policies = policies

    def upstream(self, name: str) -> Upstream | None:
        """See `Directory`."""
        return self._policies().upstreams.get(name)

    def rules(self, route: str) -> RouteRules:
        """See `Directory`."""
        for known in self._policies().routes:
            if known.name == route and known.batch is not None:
                batch = known.batch
                return RouteRules(batch.flush_jobs, batch.flush_after_seconds, batch.min_jobs)
        return RouteRules()


class DeferredWork:
    """See the module. Create it in the event loop; nothing touches the store before `open`."""

    def __init__(
        self,
        kept: Keeping,
        settings: Settings,
        environment: Mapping[str, str],
        clock: Clock,
        metrics: Metrics,
        prices: PriceTable,
        policies: Callable[[], PolicySet],
        worker: WorkerSettings | None = None,
    ) -> None:
        self._kept = kept
        self._policies = policies
        self._upstreams: frozenset[str] = frozenset()
        self._clock = clock
        self._metrics = metrics
        self._breaker = Breaker(clock, on_change=self._store_changed)
        inner = make_store(kept.setting, clock, settings.job_retention_seconds, kept.vault)
        self.store: JobStore = GuardedStore(inner, self._breaker)
        self.pace = Pace(prices)
        self.deferring = Deferring(prices, prices, self.pace, kept.vault is not None, self.is_available)
        directory = PolicyDirectory(policies)
        self._providers = Providers(directory, environment, kept.vault or PlainVault())
        draw = random.SystemRandom().random
        self.webhooks = Sender(clock, metrics, lambda: policies().webhooks, environment, draw)
        named = worker or WorkerSettings(name="")
        if not named.name:
            named = replace(named, name=_worker_name())
        kit = Kit(
            self.store,
            clock,
            named,
            directory,
            self._providers,
            prices,
            MetricsWatch(metrics),
            draw,
            sender=self.webhooks,
        )
        self._worker = Worker(kit)
        self.inspector = Inspector(self.store, clock.wall, self._worker.cancel)
        self.batch: BatchLane | None = None
        self.works = True
        self._salt: bytes | None = None
        self._named = named
        self.batch_work: BatchWork | None = None
        self.served = BatchServer(
            kept.setting, clock, kept.vault, lambda: self._salt, policies, settings.uploads_at_once
        )
        self._is_open = False
        self._census: Census | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: asyncio.Task[None] | None = None

    def is_available(self) -> bool:
        """Whether jobs can be kept now, as far as is known."""
        return self._is_open and self._salt is not None and not self._breaker.is_open

    def lanes(self, loop: asyncio.AbstractEventLoop, direct: Lane) -> tuple[BatchLane, JobApi, Parents]:
        """Make the lanes of callers; `direct` carries what is not deferred after all."""
        cancel = self._worker.cancel
        batch = self.batch = BatchLane(
            loop, self._clock, self.store, direct, self._kept.vault, self.is_available, cancel
        )
        tasks = batch.tasks
        api = JobApi(loop, self._clock, self.store, direct, lambda: self._salt, tasks, cancel)
        return batch, api, Parents(loop, self._clock, self.store, direct, lambda: self._salt, tasks)

    def batch_api(self, carriage: Carriage, refusals: Refusals) -> BatchApi:
        """Make the lane of those who use Weir's own batch API, and whoever works on their batches here."""
        served = self.served
        if not self.works:
            return served.lane(carriage.loop)
        self.batch_work = BatchWork(
            served.store,
            self._kept.vault,
            self._clock,
            self._metrics,
            self._policies,
            executor_settings(self._named),
            carriage,
            refusals,
            Notices(served.store, self.webhooks).tell,
        )
        return served.lane(carriage.loop, self.batch_work.wake)

    async def open(self) -> None:
        """Open the stores and begin to work.

        A store that is away now is tried again for as long as it takes; only a file that an operator named
        and that cannot be used raises OSError.
        """
        try:
            await self._try_to_open()
            await self.served.open_if_wanted()
        except StoreUnavailable as problem:
            if self._kept.is_given and self._kept.setting.startswith(SQLITE):
                raise OSError(str(problem)) from None
            _log.warning("nothing is deferred for now: %s", problem)
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._look_after(), name="look after jobs"))

    async def _try_to_open(self) -> None:
        if not self._is_open:
            try:
                await self.store.open()
            except StoreUnavailable:
                # What it has begun would stay open for ever.
                await self.store.close()
                raise
            self._is_open = True
        self._salt = await self.store.salt()
        if self.batch is not None:
            self.batch.salt = self._salt
        for warning in await self.store.warnings():
            _log.warning("job store: %s", warning)
        if self.works and not self._is_working:
            working = asyncio.get_running_loop().create_task(self._worker.run(), name="job worker")
            self._tasks.append(working)

    @property
    def _is_working(self) -> bool:
        return any(task.get_name() == "job worker" for task in self._tasks)

    def leave_batches(self, seconds: float) -> None:
        """Start no more lines of batches; those that run have so much time, before `drain` is over."""
        if self.batch_work is not None:
            draining = self.batch_work.drain(seconds)
            self._leaving = asyncio.get_running_loop().create_task(draining, name="batches are left")

    async def drain(self, seconds: float, stop_now: asyncio.Event) -> None:
        """Let held callers go, and give calls in progress so much time: cut off, they would be paid twice."""
        if self.batch is not None:
            self.batch.release()
        loop = asyncio.get_running_loop()
        stopping = [] if self._leaving is None else [self._leaving]
        if self._is_working:
            stopping.append(loop.create_task(self._worker.stop(max(0.0, seconds)), name="job worker stops"))
        if not stopping:
            return
        hurry = loop.create_task(stop_now.wait(), name="stop now")
        hurry.add_done_callback(lambda _: [task.cancel() for task in stopping])
        await asyncio.wait(stopping)
        hurry.cancel()
        await asyncio.gather(*stopping, hurry, return_exceptions=True)

    async def close(self) -> None:
        """Stop working, give leases back, close the store."""
        if self.batch is not None:
            await self.batch.tasks.end(_ENDING_SECONDS)
        if self._is_working:
            await self._worker.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._providers.close()
        if self.batch_work is not None:
            await self.batch_work.close()
        await self.webhooks.close()
        await self.served.close()
        await self.store.close()

    # ---- looked after every second

    async def _look_after(self) -> None:
        healthy_ticks = 0
        while True:
            try:
                await self._tick(healthy_ticks)
                healthy_ticks += 1
            except StoreUnavailable:
                healthy_ticks = 0
            except Exception as problem:
                _log.error("the job store could not be looked after", exc_info=problem)
            await self.served.look_after()
            if self.batch_work is not None:
                await self.batch_work.look_after(self.served.is_open)
            await asyncio.sleep(_TICK_SECONDS)

    async def _tick(self, healthy_ticks: int) -> None:
        if not self._is_open or self._salt is None:
            await self._try_to_open()
        if healthy_ticks % _SLOW_TICKS == 0:
            await self.pace.refresh(self.store)
            self._census = census = await self.store.census()
            self.pace.live_jobs = sum(census.jobs.get(state, 0) for state in LIVE_JOB_STATES)
            await self._check_salt()
            await self._check_upstreams()
        elif self._breaker.is_open:
            await self._check_salt()
        if self.batch is not None and healthy_ticks >= _SETTLED_TICKS:
            await self.batch.clean()

    async def _check_salt(self) -> None:
        """Take up the salt that is in force: a store that was emptied has a new one, for every process."""
        salt = await self.store.salt()
        if salt == self._salt:
            return
        if self._salt is not None:
            _log.error("the job store was emptied or replaced: jobs that it held are gone")
        self._salt = salt
        if self.batch is not None:
            self.batch.salt = salt

    async def _check_upstreams(self) -> None:
        """Tell which live jobs wait for an upstream that a reload has removed."""
        configured = frozenset(self._policies().upstreams)
        removed, self._upstreams = self._upstreams - configured, configured
        for name in sorted(removed):
            query = JobQuery(states=LIVE_JOB_STATES, upstream=name, limit=_MOST_COUNTED)
            count = len((await self.store.list_jobs(query)).jobs)
            if count:
                _log.warning(
                    "the policies have no upstream %s any more, and %d%s live jobs need it: they wait for it "
                    "until their deadlines",
                    name,
                    count,
                    " or more" if count == _MOST_COUNTED else "",
                )

    def _store_changed(self, is_open: bool, reason: str) -> None:
        if is_open:
            _log.warning("job store unavailable, nothing is deferred: %s", reason)
        else:
            _log.info("job store available again")

    def measure(self) -> None:
        """Bring the gauges up to date with what was seen last."""
        self.webhooks.measure()
        metrics, census = self._metrics, self._census
        metrics.set(catalogue.JOB_STORE_DOWN, (), float(not self.is_available()))
        metrics.set(catalogue.JOBS_HELD, (), 0 if self.batch is None else self.batch.held_count)
        if self.batch_work is not None:
            self.batch_work.measure()
        for gauge in (catalogue.JOBS, catalogue.JOB_AGE, catalogue.JOB_BATCHES):
            metrics.clear(gauge)
        if census is None:
            return
        for state, count in census.jobs.items():
            metrics.set(catalogue.JOBS, (state.value,), count)
        for state, created in census.oldest.items():
            metrics.set(catalogue.JOB_AGE, (state.value,), max(0.0, self._clock.wall() - created))
        for batch_state, count in census.batches.items():
            metrics.set(catalogue.JOB_BATCHES, (batch_state.value,), count)


class InForce(Protocol):
    """Whatever holds the policy set in force."""

    @property
    def policies(self) -> PolicySet:
        """The set."""
        ...


def deferred_work(
    settings: Settings,
    environment: Mapping[str, str],
    started_with: PolicySet,
    in_force: Callable[[], InForce],
    clock: Clock,
    metrics: Metrics,
    prices: PriceTable,
    worker: WorkerSettings | None = None,
    works: bool = True,
) -> DeferredWork | None:
    """Return the deferred work of a process, `None` where nothing is deferred. Raises ValueError.

    With `works=False` jobs are looked at and cancelled here, but worked on elsewhere.
    """
    kept = keeping(settings, started_with)
    if kept is None:
        if serves_any(started_with):
            _log.info("files and batches are not served but pass: with --store off nothing is kept")
        return None
    work = DeferredWork(
        kept, settings, environment, clock, metrics, prices, lambda: in_force().policies, worker
    )
    work.works = works
    return work


def _worker_name() -> str:
    """Return a name that no other worker has: people see it in leases."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
