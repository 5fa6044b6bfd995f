"""Works batches off: claims what is due, runs each in a task of its own, stops in peace.

    executor = Executor(kit)
    await executor.run()                  # until `stop`, or cancelled
    await executor.stop(drain_seconds)    # from elsewhere: finish lines or give back, then return

Owns which batches this process works on, and the recurring purge. Several processes share one store by
leases. An error of a run is its batch's: it is logged, and the batch is looked at again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from proxy.batch_server.kit import Kit
from proxy.batch_server.model import BatchLease, ServedBatch
from proxy.batch_server.run import BatchRun, Ending
from proxy.jobs.sealing import SealError
from proxy.jobs.store import LeaseLost, StoreError, StoreUnavailable

_log = logging.getLogger("weir")
_AFTER_FAILURE_SECONDS = 30.0
_PURGED_AT_ONCE = 1000
_ENDS_AT_ONCE = 8
_RECORDING_SECONDS = 2.0
"""What a run that was told to stop may take beyond its lines, for their results."""

Notify = Callable[[ServedBatch, BatchLease], Awaitable[None]]
"""Tells whoever wants to know that a batch has ended, and notes that under the lease."""


class Executor:
    """One executor over one store. Not started twice. `notify`: without it nobody is told of ends."""

    def __init__(self, kit: Kit, notify: Notify | None = None) -> None:
        self._kit = kit
        self._notify = notify
        self._runs: dict[asyncio.Task[None], BatchRun | None] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._woken = asyncio.Event()
        self._grace_seconds = 0.0

    def wake(self) -> None:
        """Look for work now."""
        self._woken.set()

    async def run(self) -> None:
        """Work until `stop` is called. Cancelled, it gives everything back first."""
        purging = asyncio.get_running_loop().create_task(self._purge(), name="purge of batches")
        try:
            await self._claim_forever()
            if self._runs:
                # Each run was told to stop and knows how long it may take.
                await asyncio.wait(self._runs, timeout=self._grace_seconds + _RECORDING_SECONDS)
        finally:
            self._stopping.set()
            purging.cancel()
            await asyncio.gather(purging, return_exceptions=True)
            await self._give_back()
            self._stopped.set()

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Claim and start nothing more, give lines that run so much time, give batches back to others."""
        self._grace_seconds = drain_seconds
        self._stopping.set()
        self._woken.set()
        for run in self._runs.values():
            if run is not None:
                run.stop(drain_seconds)
        await self._stopped.wait()

    async def _give_back(self) -> None:
        for task in tuple(self._runs):
            task.cancel()
        if self._runs:
            await asyncio.wait(self._runs)

    # ---- looking for work

    async def _claim_forever(self) -> None:
        is_away = False
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                await self._claim()
                is_away = False
            except StoreUnavailable as problem:
                if not is_away:
                    _log.warning("the store of batches is unavailable: %s", problem)
                is_away = True
            except Exception as problem:
                _log.error("no batch could be claimed", exc_info=problem)
            if not self._stopping.is_set():
                await self._wait(self._kit.settings.idle_seconds)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _claim(self) -> None:
        settings = self._kit.settings
        name, lease_seconds, claim = settings.name, settings.lease_seconds, self._kit.store.claim
        stuck = [run for run in self._runs.values() if run is not None and run.is_stuck()]
        room = settings.batches - (len(self._runs) - len(self._ends))
        # What gets nothing done, as its upstream is away, makes way for what may.
        claimed = await claim(name, lease_seconds, room + len(stuck)) if room + len(stuck) > 0 else ()
        for batch in claimed:
            self._begin(batch, is_end=not batch.is_live)
        for run in stuck[: max(0, sum(batch.is_live for batch in claimed) - room)]:
            run.stop(0.0)
        # Ends come beside long work: nobody waits for one until another is over.
        room = _ENDS_AT_ONCE - len(self._ends)
        for batch in await claim(name, lease_seconds, room, only_ends=True) if room > 0 else ():
            self._begin(batch, is_end=True)

    def _begin(self, batch: ServedBatch, is_end: bool) -> None:
        lease = batch.lease
        if lease is None:
            return
        run = BatchRun(self._kit, batch, lease) if batch.is_live else None
        work = self._notice(batch, lease) if run is None else self._work(run, lease)
        task = asyncio.get_running_loop().create_task(work, name=f"batch {batch.id}")
        self._runs[task] = run
        if is_end:
            self._ends.add(task)
        task.add_done_callback(self._ended)
        if run is not None and self._stopping.is_set():
            run.stop(self._grace_seconds)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._runs[task]
        self._ends.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("work on a batch failed", exc_info=problem)

    # ---- one batch

    async def _work(self, run: BatchRun, lease: BatchLease) -> None:
        now = self._kit.now
        try:
            ending = await run.work()
            if ending is not None:
                # At once, though it may be nothing for us: others may have policies that know its upstream.
                await self._let_go(lease, now())
            if ending is not Ending.GONE:
                self._woken.set()
        except asyncio.CancelledError:
            await self._let_go(lease, now())
            raise
        except SealError as problem:
            # Others may have the key, or will: what a caller has is not given up for how this process is set.
            _log.error("the batch %s waits for its key: %s", lease.batch_id, problem)
            await self._let_go(lease, now() + self._kit.settings.lease_seconds)
        except LeaseLost as problem:
            _log.warning("a batch went to another worker: %s", problem)
        except Exception as problem:
            _log.error("the batch %s could not be worked on", lease.batch_id, exc_info=problem)
            await self._let_go(lease, now() + _AFTER_FAILURE_SECONDS)

    async def _notice(self, batch: ServedBatch, lease: BatchLease) -> None:
        if self._notify is not None:
            await self._notify(batch, lease)
        else:
            await self._kit.store.noted(lease, None)

    async def _let_go(self, lease: BatchLease, due: float) -> None:
        try:
            await self._kit.store.release(lease, due)
        except StoreError as problem:
            # The lease runs out by itself.
            _log.warning("a batch could not be given back: %s", problem)

    # ---- purge

    async def _purge(self) -> None:
        while True:
            try:
                while await self._kit.store.purge(self._kit.now(), _PURGED_AT_ONCE) >= _PURGED_AT_ONCE:
                    pass
            except StoreUnavailable:
                pass  # whoever claims says so
            except Exception as problem:
                _log.error("old files and batches could not be deleted", exc_info=problem)
            await asyncio.sleep(self._kit.settings.purge_every_seconds)
