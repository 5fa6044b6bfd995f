"""The composition root: the only place that constructs and wires what a serving process consists of."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proxy.core.clock import SystemClock
from proxy.core.decision import Lane
from proxy.core.upstream import Upstream
from proxy.deferred_work import deferred_work
from proxy.edge.admin import Admin
from proxy.edge.listener import Listener, server_limits
from proxy.edge.service import EdgeService, JobLanes
from proxy.http.deadlines import Deadlines
from proxy.http.limits import ClientLimits
from proxy.http.tls import server_context
from proxy.jobs.inspection import Inspector
from proxy.jobs.worker.ports import WorkerSettings
from proxy.lanes.coalesce.lane import CoalesceLane
from proxy.lanes.stream import StreamLane
from proxy.observe import catalogue
from proxy.observe.access_log import AccessLog, open_log
from proxy.observe.loop_lag import LoopLag
from proxy.observe.metrics import Metrics, Snapshot
from proxy.observe.prefixes import PrefixMemory
from proxy.observe.recorder import Recorder
from proxy.pipeline import Pipeline
from proxy.policy.builtin import builtin_upstream
from proxy.policy.findings import Finding, PolicyErrors
from proxy.policy.lane import LaneCapabilities
from proxy.policy.load import read
from proxy.policy.model import PolicySet
from proxy.policy.reload import PolicyWatcher
from proxy.settings import Settings
from proxy.tokens.counter import TokenCounter
from proxy.tokens.port import Counter
from proxy.tokens.vocabulary import Vocabularies
from proxy.upstream.pool import Pool
from proxy.upstream.providers.prices import load_prices
from proxy.upstream.refusals import Refusals
from proxy.upstream.registry import Upstreams

_log = logging.getLogger("weir")
_RELOAD_SECONDS = 1.0
_CLOSING_ROUNDS = 100
_SWITCH_SECONDS = 0.001
"""How long a deciding thread may keep the interpreter from the event loop; Python's own choice is 5 ms."""
_LEAVING_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Routing:
    """A policy set in force with its connections; swapped whole on reload."""

    pipeline: Pipeline
    upstreams: Upstreams

    def pool(self, upstream: str) -> Pool:
        """Return the connections to a configured upstream."""
        return self.upstreams.pools[upstream]


def fallback_upstream(settings: Settings) -> Upstream | None:
    """Return the upstream that flags or the environment name, for policy sets that define none."""
    if settings.upstream_url is None:
        return None
    return builtin_upstream(settings.upstream_url, settings.upstream_key)


def load_policies(settings: Settings, environment: dict[str, str]) -> PolicySet:
    """Return the policy set that a process starts with. Raises PolicyErrors."""
    reading = read(settings.policies, environment, fallback_upstream(settings))
    if reading.policies is None:
        raise PolicyErrors(reading.findings)
    for finding in reading.findings:
        _log.warning("policy: %s", finding)
    return reading.policies


class App:
    """One serving process. `start`, then `run_until_stopped`, which drains and closes."""

    def __init__(
        self,
        settings: Settings,
        environment: dict[str, str],
        policies: PolicySet,
        counter: Counter | None = None,
        worker: WorkerSettings | None = None,
    ) -> None:
        self.settings = settings
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()
        self._deadlines = Deadlines(self._loop, self._clock)
        self._counter = counter or load_counter(policies)
        self._refusals = Refusals(self._clock)
        self._prices = load_prices(own=None if settings.prices is None else Path(settings.prices))
        self._prefixes = PrefixMemory(self._clock)
        self._log_file = open_log(settings.access_log)
        self.metrics = Metrics()
        self._access_log = AccessLog(self._log_file, settings.log_format == "text")
        self._recorder = Recorder(self.metrics, self._access_log, self._clock)
        self._lag = LoopLag(self._loop, self._clock, self.metrics)
        limits = ClientLimits(head_bytes=settings.upstream_head_bytes)
        upstreams = Upstreams(self._loop, self._deadlines, limits, environment)
        measured = (self._clock, self.metrics, self._prices)
        self._jobs = deferred_work(settings, environment, policies, lambda: self.pipeline, *measured, worker)
        routing = self._routing(policies, upstreams)
        self._watcher = PolicyWatcher(
            settings.policies, environment, fallback_upstream(settings), self._report, policies
        )
        self._recorder.models = policies.models
        stream = StreamLane(self._loop, self._clock, self._refusals)
        self._coalesce = CoalesceLane(self._loop, self._clock, stream, self._counter, self._prices)
        self.service = EdgeService(
            self._loop,
            self._clock,
            self._deadlines,
            server_limits(settings),
            self._recorder,
            {Lane.STREAM: stream, Lane.COALESCE: self._coalesce},
            routing,
        )
        if self._jobs is not None:
            self.service.jobs = JobLanes(*self._jobs.lanes(self._loop, stream))
            self.service.batch_api = self._jobs.batch_api(self.service, self._refusals)
        self.is_ready = False
        self._are_rejected = False  # the files as they are now cannot be used, so others are in force
        self._reload_asked = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._listener: Listener | None = None
        self._admin: Admin | None = None

    def _routing(self, policies: PolicySet, upstreams: Upstreams) -> Routing:
        pipeline = Pipeline(
            policies,
            self._counter,
            self._clock,
            LaneCapabilities(coalesce=True, batch=self._jobs is not None),
            refusals=self._refusals.known,
            prices=self._prices,
            prefixes=self._prefixes,
            deferring=None if self._jobs is None else self._jobs.deferring,
        )
        return Routing(pipeline, upstreams.replaced_by(policies.upstreams))

    # --- serving --------------------------------------------------------------------------------------

    async def start(self, reuse_port: bool = False) -> str:
        """Begin to accept; return the data listener's address as a URL. After a failure all is closed."""
        try:
            return await self._start(reuse_port)
        except BaseException:
            await self._close()
            raise

    async def _start(self, reuse_port: bool) -> str:
        settings = self.settings
        tls = None
        if settings.tls_certificate is not None:
            key = settings.tls_key or settings.tls_certificate
            tls = server_context(settings.tls_certificate, key, settings.tls_client_ca)
        if self._jobs is not None:
            await self._jobs.open()
        self._deadlines.start()
        self._lag.start()
        if settings.listen != "off":
            self._listener = await Listener.open(
                self._loop, settings.listen, self.service.connect, tls, reuse_port
            )
        self.is_ready = not self._stop_asked.is_set()
        _settle_garbage_collector()
        sys.setswitchinterval(_SWITCH_SECONDS)
        return "" if self._listener is None else self._listener.url

    async def start_admin(self) -> str | None:
        """Begin to serve the admin API; return its URL, `None` when it is off."""
        if self.settings.admin == "off":
            return None
        self._admin = Admin(self)
        try:
            return await self._admin.start(self.settings.admin)
        except BaseException:
            await self._close()
            raise

    @property
    def jobs(self) -> Inspector | None:
        """What operators see of jobs, where any are kept."""
        return None if self._jobs is None else self._jobs.inspector

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline in force."""
        return self.service.routing.pipeline

    def handle_signals(self) -> None:
        """Stop at SIGTERM or SIGINT, at once at the second; read the policies again at SIGHUP."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)
        # One that came while the process was starting has waited until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    async def run_until_stopped(self) -> None:
        """Serve until `stop` is called, then drain."""
        async with asyncio.TaskGroup() as group:
            reloading = group.create_task(self._reload_forever(), name="policy reload")
            await self._stop_asked.wait()
            reloading.cancel()
            await self._drain()
        await self._close()

    def stop(self) -> None:
        """Begin to drain; asked twice, stop at once."""
        self.is_ready = False
        self.service.is_draining = True
        if self._stop_asked.is_set():
            self._stop_now.set()
        self._stop_asked.set()

    async def _drain(self) -> None:
        """Keep accepting for `drain_delay`, then let what is in progress end within `drain_timeout`."""
        _log.info("draining")
        self._coalesce.flush()
        if self._jobs is not None:
            self._jobs.leave_batches(self.settings.drain_timeout_seconds)
        await self._pause(self.settings.drain_delay_seconds)
        if self._listener is not None:
            self._listener.close()
        self.service.close_idle()
        deadline = self._clock.monotonic() + self.settings.drain_timeout_seconds
        while (self.service.connections or self.service.tunnels) and self._clock.monotonic() < deadline:
            if await self._pause(0.02):
                break
            self.service.close_idle()
        if self._jobs is not None:
            await self._jobs.drain(deadline - self._clock.monotonic(), self._stop_now)

    async def _pause(self, seconds: float) -> bool:
        """Wait; return whether stopping at once was asked for."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop_now.wait()
        except TimeoutError:
            return False
        return True

    async def _close(self) -> None:
        for transport in [*(each.transport for each in self.service.connections), *self.service.tunnels]:
            transport.abort()
        self.routing.upstreams.close_except(None)
        if self._admin is not None:
            await self._admin.stop()
        self.service.decisions.shutdown()
        for _ in range(_CLOSING_ROUNDS):
            # What was aborted tells its exchange, which then writes its record, in callbacks of its own.
            if self.service.connections or self.service.tunnels:
                await asyncio.sleep(0)
        if self._jobs is not None:
            await self._jobs.close()
        self._lag.stop()
        self._deadlines.stop()
        self._access_log.close()

    # --- policies -------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Have the policies read again now, whether or not their files seem to have changed."""
        self._reload_asked.set()

    @property
    def routing(self) -> Routing:
        """The policy set in force with its connections."""
        routing = self.service.routing
        assert isinstance(routing, Routing)
        return routing

    async def _reload_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_RELOAD_SECONDS):
                    await self._reload_asked.wait()
            except TimeoutError:
                pass
            is_forced = self._reload_asked.is_set()
            self._reload_asked.clear()
            try:
                if is_forced or await asyncio.to_thread(self._watcher.changed):
                    await self._reload()
            except Exception as problem:
                # Whatever it is, the set in force stays so; messages may hold what the files say.
                _log.error("policies could not be read again: %s", type(problem).__name__)
                self.metrics.add(catalogue.RELOADS, ("rejected",))

    async def _reload(self) -> None:
        policies = await asyncio.to_thread(self._watcher.reload)
        if policies is self.pipeline.policies:
            self._are_rejected = self._watcher.failed
            if self._are_rejected:
                self.metrics.add(catalogue.RELOADS, ("rejected",))
            return
        if policies.counts_tokens:
            await asyncio.to_thread(self._counter.prepare)
        before = self.routing
        try:
            self.service.routing = self._routing(policies, before.upstreams)
        except (OSError, ValueError) as problem:
            _log.error("the new policies are not used: %s", problem)
            self.metrics.add(catalogue.RELOADS, ("rejected",))
            self._are_rejected = True
            return
        self._are_rejected = False
        self._recorder.models = policies.models
        before.upstreams.close_except(self.routing.upstreams)
        self.metrics.add(catalogue.RELOADS, ("ok",))
        _log.info("policies reloaded: version %s, %d routes", policies.version, len(policies.routes))

    def _report(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            _log.error("policy not reloaded: %s", finding)

    # --- observing ------------------------------------------------------------------------------------

    async def snapshots(self) -> list[Snapshot]:
        """Return the metrics of this process, gauges up to date."""
        self.measure()
        return [self.metrics.snapshot()]

    def measure(self) -> None:
        """Bring the gauges up to date."""
        metrics = self.metrics
        if self._jobs is not None:
            self._jobs.measure()
        metrics.set(catalogue.IN_FLIGHT, (), self._recorder.in_flight)
        metrics.set(catalogue.CALLERS, (), len(self.service.connections))
        metrics.set(catalogue.LOG_DROPPED, (), self._access_log.dropped)
        metrics.set(catalogue.TOKEN_FALLBACKS, (), self._counter.fallbacks)
        metrics.set(catalogue.POLICY_BAD, (), float(self._are_rejected))
        for gauge in (catalogue.POLICY, catalogue.CONNECTIONS):
            metrics.clear(gauge)
        metrics.set(catalogue.POLICY, (self.pipeline.policies.version,), 1.0)
        for name, pool in self.routing.upstreams.pools.items():
            metrics.set(catalogue.CONNECTIONS, (name, "in_use"), pool.in_use)
            metrics.set(catalogue.CONNECTIONS, (name, "idle"), pool.open_connections - pool.in_use)


async def serve(
    settings: Settings, environment: dict[str, str], policies: PolicySet, announce: Callable[[str], None]
) -> None:
    """Run one process until it is told to stop. `announce` gets one line per listener."""
    app = App(settings, environment, policies)
    app.handle_signals()
    admin = await app.start_admin()
    url = await app.start()
    if admin is not None:
        announce(f"weir: admin on {admin}")
    announce(f"weir: listening on {url}" if url else "weir: working on jobs")
    await app.run_until_stopped()
    end_soon()


def end_soon() -> None:
    """Let the process end now even if a thread is still at work, which nobody can stop.

    Closing the event loop and Python itself wait for threads, however long they decide or resolve a name.
    """
    end = threading.Timer(_LEAVING_SECONDS, os._exit, (0,))
    end.daemon = True
    end.start()


def _settle_garbage_collector() -> None:
    """Leave what was built at start out of every collection, and collect less often.

    Requests free themselves by reference counting; a full collection would walk vocabularies and policies.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


def load_counter(policies: PolicySet) -> TokenCounter:
    """Return a counter that is ready if these policies count tokens, which takes about half a second."""
    counter = TokenCounter(Vocabularies(lambda problem: _log.warning("tokens are estimated: %s", problem)))
    if policies.counts_tokens:
        counter.prepare()
    return counter
