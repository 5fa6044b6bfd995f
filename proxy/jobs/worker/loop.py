"""The worker: claims what is due, takes each a step further in a task of its own, stops in peace.

    worker = Worker(kit)
    await worker.run()                  # until `stop`, or cancelled
    await worker.stop(drain_seconds)    # from elsewhere: finish or give back, then return

Owns what goes on at once and the looks at the store. Several workers share one store by leases: in one
process, in many, on many machines. An error of a step is the step's: it is logged, and the subject is looked
at again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from proxy.jobs.changes import JobChange
from proxy.jobs.model import Batch, Job, JobState, JobTier, Lease
from proxy.jobs.store import Conflict, StoreError, StoreUnavailable
from proxy.jobs.transitions import JobEvent
from proxy.jobs.worker.background import background, cancelled
from proxy.jobs.worker.batches import advance
from proxy.jobs.worker.clocks import Clocks
from proxy.jobs.worker.endings import expire, lose
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.notices import tell
from proxy.jobs.worker.packer import ROLE as PACKER
from proxy.jobs.worker.packer import Packer
from proxy.jobs.worker.ports import Trouble
from proxy.jobs.worker.rescue import book_cut_off, give_back, rescue_from_batch
from proxy.jobs.worker.single import call
from proxy.webhooks.sender import BUSY_CALLS, Sender

_log = logging.getLogger("weir")
JANITOR = "janitor"


class Worker:
    """One worker over one store. Not started twice."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self._clocks = Clocks(kit.settings.beat_seconds)
        self._packer = Packer(kit, self._begin_packed)
        self._calls: set[asyncio.Task[None]] = set()
        self._batches: set[asyncio.Task[None]] = set()
        self._notices: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._slot_freed = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop` is called. Cancelled, it gives everything back first."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, turn in (
                    ("jobs", self._claim_jobs),
                    ("batches", self._claim_batches),
                    ("notices", self._claim_notices),
                    ("packer", self._pack),
                    ("janitor", self._purge),
                ):
                    group.create_task(self._repeat(self._believed(turn)), name=f"worker {name}")
                group.create_task(self._repeat(self._beat), name="worker clock")
        finally:
            await self._give_back_everything()
            await self._let_go(self.kit.store.beats(self.kit.settings.name, is_leaving=True))
            self._stopped.set()

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Claim nothing more, give work in progress so much time, then give the rest back to others."""
        self._stopping.set()
        running = self._calls | self._batches | self._notices
        if running and drain_seconds > 0:
            await asyncio.wait(running, timeout=drain_seconds)
        await self._give_back_everything()
        await self._stopped.wait()

    async def cancel(self, job_id: str, *, if_unwanted: bool = False) -> Job:
        """End a live job for its owner, here and at the provider; return it as it was.

        What a batch does with it is discarded (and booked) when it comes; a batch of which nobody wants
        anything any more is cancelled as a whole at its next poll. Raises `Conflict` as the store does.
        """
        kit = self.kit
        job = await kit.store.cancel(job_id, if_unwanted=if_unwanted)
        after = await kit.store.get(job_id)
        if after is not None:
            kit.watch.ended(after)
        if job.provider_id is not None:
            await self._cancel_background(job)
        return job

    async def _cancel_background(self, job: Job) -> None:
        await lose(self.kit, job, await cancelled(self.kit, job), f"call:{job.attempts}")

    # ---- turns

    async def _repeat(self, turn: Callable[[], Awaitable[bool]]) -> None:
        """Take turns; one that says it did nothing is followed by a wait for work."""
        failures = 0
        while not self._stopping.is_set():
            try:
                did_something = await turn()
                failures = 0
            except StoreUnavailable as problem:
                failures += 1
                did_something = False
                self.kit.watch.trouble(Trouble.STORE, "")
                if failures == 1:
                    _log.warning("the job store is unavailable: %s", problem)
            except Exception as problem:
                failures += 1
                did_something = False
                self.kit.watch.trouble(Trouble.INTERNAL, "")
                _log.error("a turn of the job worker failed", exc_info=problem)
            if not did_something:
                await self._wait(failures)

    async def _wait(self, failures: int) -> None:
        idle = self.kit.settings.idle_seconds
        loop = asyncio.get_running_loop()
        waits: list[asyncio.Task[Any]] = [loop.create_task(self._stopping.wait(), name="worker stop")]
        if failures == 0:
            waits.append(loop.create_task(self._hear(idle), name="worker wait"))
        try:
            await asyncio.wait(waits, timeout=idle, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)

    async def _hear(self, timeout_seconds: float) -> None:
        try:
            if self._has_room():
                await self.kit.store.wait_for_work(timeout_seconds)
            else:
                self._slot_freed.clear()
                await self._slot_freed.wait()
        except StoreError:
            await asyncio.sleep(timeout_seconds)

    def _has_room(self) -> bool:
        settings = self.kit.settings
        return len(self._calls) < settings.calls and len(self._batches) < settings.batches

    async def _claim_jobs(self) -> bool:
        settings = self.kit.settings
        room = settings.calls - len(self._calls)
        if room <= 0:
            return False
        jobs = await self.kit.store.claim_jobs(settings.name, settings.lease_seconds, room)
        for job in jobs:
            if job.lease is not None:
                self._begin(self._calls, self._on_job(job, job.lease), f"job {job.id}")
        return bool(jobs)

    async def _claim_batches(self) -> bool:
        settings = self.kit.settings
        room = settings.batches - len(self._batches)
        if room <= 0:
            return False
        batches = await self.kit.store.claim_batches(settings.name, settings.lease_seconds, room)
        for batch in batches:
            self._begin_batch(batch, is_fresh=False)
        return bool(batches)

    async def _claim_notices(self) -> bool:
        kit, sender = self.kit, self.kit.sender
        if sender is None:
            return False
        name, lease_seconds = kit.settings.name, kit.settings.lease_seconds
        # Few at a time, so that an address that is slow does not take every place.
        room = min(kit.settings.notices - len(self._notices), BUSY_CALLS)
        jobs = await kit.store.claim_notices(name, lease_seconds, room, sender.busy()) if room > 0 else ()
        for job in jobs:
            if job.lease is not None:
                self._begin(self._notices, self._on_notice(job, job.lease, sender), f"notice {job.id}")
        if jobs or not self._notices:
            return bool(jobs)
        idle = kit.settings.idle_seconds
        await asyncio.wait(self._notices, timeout=idle, return_when=asyncio.FIRST_COMPLETED)
        return True

    async def _pack(self) -> bool:
        settings = self.kit.settings
        room = settings.batches - len(self._batches)
        if room <= 0:
            return False
        # Short, because nothing breaks when two pack for a moment, but pools wait when nobody does.
        role_seconds = max(2.0, 5 * settings.idle_seconds)
        role = await self.kit.store.claim_role(PACKER, settings.name, role_seconds)
        return role is not None and await self._packer.pack(room) > 0

    async def _purge(self) -> bool:
        kit = self.kit
        role = await kit.store.claim_role(JANITOR, kit.settings.name, kit.settings.purge_every_seconds)
        if role is not None:
            await kit.store.purge()
        try:
            async with asyncio.timeout(kit.settings.purge_every_seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass
        return True

    # ---- clocks

    def _believed(self, turn: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
        """Return a turn that is taken only while no other clock contradicts ours."""

        async def take() -> bool:
            if not self._clocks.is_fresh(self.kit.now(), self.kit.monotonic()):
                await self._compare_clocks()
            return self._clocks.may_work and await turn()

        return take

    async def _beat(self) -> bool:
        await self._compare_clocks()
        try:
            async with asyncio.timeout(self.kit.settings.beat_seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass
        return True

    async def _compare_clocks(self) -> None:
        kit, clocks = self.kit, self._clocks
        was_contradicted = clocks.is_contradicted
        clocks.look(await kit.store.beats(kit.settings.name), kit.now(), kit.monotonic())
        if clocks.is_contradicted:
            kit.watch.trouble(Trouble.CLOCK_AHEAD, "")
            if not was_contradicted:
                _log.error(
                    "this machine's clock is %.0f s ahead of others that use the job store: no job is worked "
                    "on, expired or deleted here until they agree",
                    clocks.ahead_seconds,
                )
        elif was_contradicted:
            _log.warning("this machine's clock agrees with the others again: jobs are worked on")

    # ---- tasks

    def _begin(self, kind: set[asyncio.Task[None]], work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        kind.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            kind.discard(done)
            self._slot_freed.set()
            if not done.cancelled() and done.exception() is not None:
                _log.error("a step of the job worker failed", exc_info=done.exception())

        task.add_done_callback(ended)

    def _begin_packed(self, batch: Batch) -> None:
        self._begin_batch(batch, is_fresh=True)

    def _begin_batch(self, batch: Batch, *, is_fresh: bool) -> None:
        if batch.lease is not None:
            work = self._on_batch(batch, batch.lease, is_fresh=is_fresh)
            self._begin(self._batches, work, f"batch {batch.id}")

    async def _on_job(self, job: Job, lease: Lease) -> None:
        try:
            if not await self.kit.holding(lease, self._carry(job, lease)):
                await book_cut_off(self.kit, lease)
        except asyncio.CancelledError:
            await self._let_go(give_back(self.kit, lease))
            raise
        except Exception as problem:
            await self._failed(lease, problem, job.attempts)

    async def _on_notice(self, job: Job, lease: Lease, sender: Sender) -> None:
        try:
            await self.kit.holding(lease, tell(self.kit, sender, lease, job))
        except asyncio.CancelledError:
            await self._let_go(self.kit.store.release(lease))
            raise
        except Exception as problem:
            self.kit.watch.trouble(Trouble.INTERNAL, "")
            _log.error("the end of the job %s could not be told", job.id, exc_info=problem)

    async def _on_batch(self, batch: Batch, lease: Lease, *, is_fresh: bool) -> None:
        try:
            await self.kit.holding(lease, advance(self.kit, lease, batch, is_fresh=is_fresh))
        except asyncio.CancelledError:
            await self._let_go(self.kit.store.release(lease, self.kit.now()))
            raise
        except Exception as problem:
            await self._failed(lease, problem, batch.attempts)

    async def _failed(self, lease: Lease, problem: Exception, attempts: int) -> None:
        if _is_only(problem, Conflict):
            return  # it ended by other hands
        self.kit.watch.trouble(Trouble.INTERNAL, "")
        _log.error("work on the %s %s failed", lease.kind.value, lease.subject, exc_info=problem)
        due = self.kit.now() + self.kit.backoff(max(3, attempts))
        await self._let_go(self.kit.store.release(lease, due))

    async def _let_go(self, work: Awaitable[object]) -> None:
        try:
            await work
        except StoreError as problem:
            # The lease runs out by itself.
            _log.warning("work could not be given back: %s", problem)

    async def _give_back_everything(self) -> None:
        self._stopping.set()
        running = self._calls | self._batches | self._notices
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _carry(self, job: Job, lease: Lease) -> None:
        """Do what is due for a claimed job."""
        kit = self.kit
        if kit.now() >= job.deadline:
            if job.provider_id is not None and job.state is JobState.SUBMITTED:
                await self._cancel_background(job)
            await expire(kit, lease, job)
            return
        match job.tier:
            case JobTier.DIRECT | JobTier.FLEX:
                await call(kit, lease, job)
            case JobTier.BACKGROUND_2H | JobTier.BACKGROUND_8H:
                await background(kit, lease, job)
            case JobTier.BATCH if job.state is JobState.ACCEPTED:
                # Not packed in time: nothing runs elsewhere, so this is no race.
                back = JobChange(JobEvent.RETURN, (job.id,), tier=JobTier.DIRECT, tiers=())
                kit.watch.rescue_begun(job)
                await call(kit, lease, await kit.commit(lease, back))
            case JobTier.BATCH:
                await rescue_from_batch(kit, lease, job)


def _is_only(problem: BaseException, kind: type[Exception]) -> bool:
    if isinstance(problem, BaseExceptionGroup):
        return all(_is_only(each, kind) for each in problem.exceptions)
    return isinstance(problem, kind)
