"""The batch lane: a request becomes a job before anything is promised, then its caller meets the answer.

    ticket       202 as soon as the store has it
    background   the Responses API's own object, likewise
    hold         `hold`

It owns who is held in this process; who else waits for a job, in other processes too, the store knows. A
request that cannot be kept goes direct, and its record says why: never an error because of us.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import uuid4

from proxy.core.clock import Clock
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.jobs.model import Job, JobState
from proxy.jobs.sealing import Vault
from proxy.jobs.store import JobStore, StoreError, StoreUnavailable
from proxy.lanes.batch.call import BatchCall
from proxy.lanes.batch.intake import Intake, Submission, take_in
from proxy.lanes.batch.task import OpenTasks
from proxy.lanes.lane import Call, Deferral, Lane, Outgoing

_log = logging.getLogger("weir")

GRACE_SECONDS = 15.0
"""How long a held job outlives its caller: an SDK's retry comes within 8 seconds and finds it again."""

LONG_BODY_BYTES = 256 * 1024
_MOST_FORGOTTEN = 10_000


class Cancel(Protocol):
    """Ends a job here and at the provider. Raises as `JobStore.cancel` does."""

    def __call__(self, job_id: str, *, if_unwanted: bool = False) -> Awaitable[Job]:
        """End a job."""
        ...


class BatchLane:
    """Makes jobs of requests. `salt` comes from the store; until it is known nothing is deferred.

    `vault` seals the credentials of callers, `None` where there is no key for it. `is_available` tells
    whether the store is up as far as is known, `cancel` ends a job here and at the provider, `new_id` makes
    job ids.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        store: JobStore,
        direct: Lane,
        vault: Vault | None,
        is_available: Callable[[], bool],
        cancel: Cancel,
        grace_seconds: float = GRACE_SECONDS,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.store = store
        self.direct = direct
        self.is_available = is_available
        self.cancel = cancel
        self.salt: bytes | None = None
        self._vault = vault
        self._grace_seconds = grace_seconds
        self._new_id = new_id
        self._calls: set[BatchCall] = set()
        self._unwanted: dict[str, bool] = {}
        self.tasks = OpenTasks()

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Defer a request in a task of its own."""
        deferral = outgoing.deferral
        if deferral is None:
            return self.direct.carry(outgoing, exchange, reply)
        call = BatchCall(self, deferral, outgoing, exchange, reply)
        self._calls.add(call)
        call.start()
        return call

    @property
    def held_count(self) -> int:
        """Callers that are held now."""
        return len(self._calls)

    async def take_in(
        self, deferral: Deferral, outgoing: Outgoing, exchange: Exchange, salt: bytes
    ) -> Intake:
        """Make the job of a request. Raises `UnfitBody`."""
        submission = Submission(
            plan=deferral.plan,
            upstream=outgoing.pool.target.upstream,
            route=deferral.route,
            model=deferral.model,
            dialect=deferral.dialect,
            document=deferral.document,
            headers=tuple(outgoing.head.headers),
            input_tokens=exchange.tokens_after,
            salt=salt,
            vault=self._vault,
        )
        now = self.clock.wall()
        if len(deferral.document.raw) <= LONG_BODY_BYTES:
            return take_in(submission, self._new_id(), now)
        return await self.loop.run_in_executor(None, take_in, submission, self._new_id(), now)

    def release(self) -> None:
        """Let every held caller go: the process ends. Their jobs go on, and their retries find them."""
        for call in tuple(self._calls):
            call.release()

    # ---- who is held

    def over(self, call: BatchCall) -> None:
        """Forget a call."""
        self._calls.discard(call)

    def leave(self, job: Job, cancels: bool) -> None:
        """Note that a caller waits for a job no longer; `cancels`: end it if nobody does after a moment."""
        work = self._leave(job.id, self._grace_seconds if cancels else None)
        self.tasks.add(self.loop.create_task(work, name=f"leave {job.id}"))

    def abandon(self, job_id: str) -> None:
        """Leave a job and end it now where nobody else waits for it."""
        self.tasks.add(self.loop.create_task(self._leave(job_id, 0.0), name=f"abandon {job_id}"))

    async def _leave(self, job_id: str, grace_seconds: float | None) -> None:
        has_left = False
        try:
            await self.store.leave(job_id)
            has_left = True
            if grace_seconds is not None:
                await asyncio.sleep(grace_seconds)
                await self.cancel(job_id, if_unwanted=True)
        except StoreUnavailable:
            if grace_seconds is not None:
                self.forget(job_id, has_left=has_left)
        except StoreError:
            # It has ended, is gone, or somebody waits for it, in whichever process.
            return

    async def give_up(self, job_id: str) -> None:
        """Leave a job and end it where nobody else waits for it. Raises as `JobStore.cancel` does."""
        await self.store.leave(job_id)
        await self.cancel(job_id, if_unwanted=True)

    def forget(self, job_id: str, *, has_left: bool = False) -> None:
        """Note a job that the store may have, to be left and cancelled once the store answers."""
        if len(self._unwanted) < _MOST_FORGOTTEN:
            self._unwanted[job_id] = has_left

    async def clean(self) -> None:
        """Cancel what `forget` noted. Raises `StoreUnavailable`."""
        while self._unwanted:
            job_id, has_left = next(iter(self._unwanted.items()))
            try:
                if not has_left:
                    await self.store.leave(job_id)
                    self._unwanted[job_id] = True
                await self.cancel(job_id, if_unwanted=True)
            except StoreUnavailable:
                raise
            except StoreError:
                # It never arrived, has ended, or somebody waits for it.
                pass
            self._unwanted.pop(job_id, None)

    async def deliver(self, job: Job) -> None:
        """Note that a caller has an ending; the store being away is no harm."""
        if job.state is JobState.DELIVERED:
            return
        try:
            await self.store.deliver(job.id)
        except StoreError as problem:
            _log.info("a delivered job could not be marked: %s", problem)
