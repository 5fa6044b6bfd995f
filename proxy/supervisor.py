"""Several serving processes that share one port: start them, watch them, speak for all of them.

Each worker is a whole `app.App` with a listener of its own (SO_REUSEPORT); the kernel spreads connections.
The supervisor carries no traffic: it restarts workers that die, passes signals on and serves the admin API.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import uvloop

from proxy.app import App, end_soon, fallback_upstream, load_counter, load_policies
from proxy.core.clock import SystemClock
from proxy.deferred_work import deferred_work
from proxy.edge.admin import Admin
from proxy.edge.listener import cannot_listen, parse_listen
from proxy.jobs.inspection import Inspector
from proxy.observe.metrics import Metrics, Snapshot, counted, merge
from proxy.pipeline import Pipeline
from proxy.policy.lane import LaneCapabilities
from proxy.policy.model import PolicySet
from proxy.policy.reload import PolicyWatcher
from proxy.settings import Settings
from proxy.upstream.providers.prices import load_prices

_log = logging.getLogger("weir")
_START_SECONDS = 60.0
_ANSWER_SECONDS = 2.0
_RESTART_SECONDS = 1.0

_READY = "ready"


class _Worker:
    """One serving process and the pipe to it."""

    def __init__(self, process: SpawnProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.is_ready = False
        self.last: Snapshot = {}
        self._asked = 0

    async def measure(self) -> None:
        """Bring `last` up to date. Raises TimeoutError, EOFError or OSError for one that does not answer.

        Questions have numbers: what comes late, after the worker was held up, answers an earlier one.
        """
        self._asked += 1
        self.pipe.send(self._asked)
        clock = SystemClock()
        deadline = clock.monotonic() + _ANSWER_SECONDS
        while await asyncio.to_thread(self.pipe.poll, max(0.0, deadline - clock.monotonic())):
            number, snapshot = self.pipe.recv()
            if number == self._asked:
                self.last = snapshot
                return
        raise TimeoutError(f"worker {self.process.pid} does not answer")


class Supervisor:
    """Runs `settings.workers` processes until it is told to stop."""

    def __init__(self, settings: Settings, environment: dict[str, str]) -> None:
        where = parse_listen(settings.listen)
        if isinstance(where, str):
            raise ValueError("a unix socket serves one process: use --workers 1")
        self._environment = environment
        self._context = multiprocessing.get_context("spawn")
        self._reserved = _reserve(where)
        host, port = self._reserved.getsockname()[:2]
        try:
            self._claim = _claim(host, port)
        except OSError:
            self._reserved.close()
            raise
        shown_host = f"[{host}]" if ":" in host else host
        self._settings = replace(settings, listen=f"{shown_host}:{port}")
        scheme = "http" if settings.tls_certificate is None else "https"
        self.url = f"{scheme}://{shown_host}:{port}"
        self._workers: list[_Worker] = []
        self._retired: Snapshot = {}
        self._asking = asyncio.Lock()
        self._stop_asked = asyncio.Event()
        policies = load_policies(settings, environment)
        # What is wrong with an edit is each worker's to report; here it only must not be explained with.
        self._watcher = PolicyWatcher(
            settings.policies, environment, fallback_upstream(settings), lambda findings: None, policies
        )
        self._counter = load_counter(policies)
        self._prices = load_prices(own=None if settings.prices is None else Path(settings.prices))
        # Counts what is cancelled here, and is shown to nobody: the workers' figures are what counts.
        own = (SystemClock(), Metrics(), self._prices)
        self._jobs = deferred_work(settings, environment, policies, lambda: self.pipeline, *own, works=False)
        self._pipeline = self._pipeline_of(policies)

    def _pipeline_of(self, policies: PolicySet) -> Pipeline:
        return Pipeline(
            policies,
            self._counter,
            SystemClock(),
            LaneCapabilities(coalesce=True, batch=self._jobs is not None),
            prices=self._prices,
            deferring=None if self._jobs is None else self._jobs.deferring,
        )

    @property
    def pipeline(self) -> Pipeline:
        """What the workers decide with, for those who ask what would happen; looks at the files each time."""
        if self._watcher.changed():
            policies = self._watcher.reload()
            if policies is not self._pipeline.policies:
                self._pipeline = self._pipeline_of(policies)
        return self._pipeline

    @property
    def jobs(self) -> Inspector | None:
        """What operators see of jobs, where any are kept."""
        return None if self._jobs is None else self._jobs.inspector

    @property
    def is_ready(self) -> bool:
        """Whether at least one worker accepts and nobody asked to stop."""
        return not self._stop_asked.is_set() and any(worker.is_ready for worker in self._workers)

    async def snapshots(self) -> list[Snapshot]:
        """Return the metrics of every worker, the last known ones of those that do not answer or are gone."""
        found = [self._retired]
        async with self._asking:
            for worker in self._workers:
                if worker.is_ready:
                    # What it says first is that it is ready; an answer must not be taken for that.
                    try:
                        await worker.measure()
                    except (TimeoutError, EOFError, OSError) as problem:
                        _log.warning("old metrics of worker %s: %s", worker.process.pid, problem)
                found.append(worker.last)
        return found

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; `announce` gets a line per listener once all workers accept."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._signal, signal.SIGHUP)
        # One that came while the process was starting has waited until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        if self._jobs is not None:
            await self._jobs.open()
        admin = None if self._settings.admin == "off" else Admin(self)
        if admin is not None:
            announce(f"weir: admin on {await admin.start(self._settings.admin)}")
        try:
            self._workers = [self._start() for _ in range(self._settings.workers)]
            await asyncio.gather(*map(self._await_ready, self._workers))
            announce(f"weir: listening on {self.url} with {self._settings.workers} workers")
            async with asyncio.TaskGroup() as group:
                watching = [
                    group.create_task(self._keep_alive(index), name=f"worker {index}")
                    for index in range(self._settings.workers)
                ]
                await self._stop_asked.wait()
                await asyncio.gather(*(asyncio.to_thread(worker.process.join) for worker in self._workers))
                for task in watching:
                    task.cancel()
        finally:
            self._signal(signal.SIGKILL)
            self.close()
            if admin is not None:
                await admin.stop()
            if self._jobs is not None:
                await self._jobs.close()

    def close(self) -> None:
        """Give the port up; nothing of this process serves it any more."""
        self._reserved.close()
        if self._claim is not None:
            self._claim.close()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        arguments = (self._settings, self._environment, theirs)
        process = self._context.Process(target=work, args=arguments, name="weir worker", daemon=True)
        # A process inherits what is blocked: the worker takes SIGHUP once it has a handler for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        theirs.close()
        return _Worker(process, ours)

    async def _await_ready(self, worker: _Worker) -> None:
        if not await asyncio.to_thread(worker.pipe.poll, _START_SECONDS):
            raise OSError(f"worker {worker.process.pid} did not start")
        try:
            answer = worker.pipe.recv()
        except EOFError:
            raise OSError("a worker ended while starting: see its log above") from None
        if answer != _READY:
            raise OSError(str(answer))
        worker.is_ready = True

    async def _keep_alive(self, index: int) -> None:
        """Replace a worker that ends without having been told to."""
        while True:
            worker = self._workers[index]
            await asyncio.to_thread(worker.process.join)
            worker.is_ready = False
            async with self._asking:
                # Its counts must stay in the sums: a counter that falls says that all began anew.
                self._retired = merge([self._retired, counted(worker.last)])
                worker.last = {}
            if self._stop_asked.is_set():
                return
            _log.error(
                "worker %s ended with %s; starting another", worker.process.pid, worker.process.exitcode
            )
            await asyncio.sleep(_RESTART_SECONDS)
            async with self._asking:
                self._workers[index] = self._start()
            try:
                await self._await_ready(self._workers[index])
            except OSError as problem:
                _log.error("%s", problem)

    def _stop(self) -> None:
        """Pass a stop on; a second one, passed on too, ends the workers at once."""
        self._stop_asked.set()
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                if number is signal.SIGKILL:
                    worker.process.kill()
                else:
                    os.kill(worker.process.pid, number)


def _reserve(where: tuple[str, int]) -> socket.socket:
    """Hold the port (and find one for port 0) without listening on it. Raises OSError if it is taken.

    That is asked first without SO_REUSEPORT, with which the workers of another Weir would share theirs.
    """
    host, port = where
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe, reserved = (socket.socket(family, socket.SOCK_STREAM) for _ in range(2))
    for sock in (probe, reserved):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        probe.bind((host, port))
        probe.close()
        reserved.bind((host, port))
    except OSError as problem:
        probe.close()
        reserved.close()
        raise cannot_listen(f"{host}:{port}", problem) from None
    return reserved


def _claim(host: str, port: int) -> socket.socket | None:
    """Hold the name that goes with a port, and with which only one process can be. Raises OSError.

    Until its workers listen, a reserved port looks free to another Weir that starts meanwhile. Only Linux has
    names that end with their process, one set for each network namespace, as it is with ports.
    """
    if not sys.platform.startswith("linux"):
        return None
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0weir workers on {host}:{port}")
    except OSError as problem:
        claim.close()
        raise cannot_listen(f"{host}:{port}", problem) from None
    return claim


def work(settings: Settings, environment: dict[str, str], pipe: Connection) -> None:
    """Be a worker: serve until SIGTERM, or until the supervisor is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s weir: %(levelname)s: %(message)s")
    uvloop.run(_work(settings, environment, pipe))


async def _work(settings: Settings, environment: dict[str, str], pipe: Connection) -> None:
    app = App(settings, environment, load_policies(settings, environment))
    loop = asyncio.get_running_loop()

    def answer() -> None:
        try:
            number = pipe.recv()
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            app.stop()
            return
        app.measure()
        pipe.send((number, app.metrics.snapshot()))

    app.handle_signals()
    loop.remove_signal_handler(signal.SIGINT)
    try:
        await app.start(reuse_port=True)
    except OSError as problem:
        pipe.send(str(problem))
        return
    loop.add_reader(pipe.fileno(), answer)
    pipe.send(_READY)
    await app.run_until_stopped()
    end_soon()
