"""The batch lane: a request becomes a job before anything is promised, then its caller meets the answer.

    ticket       202 as soon as the store has it
    background   the Responses API's own object, likewise
    hold         `hold`

It owns who is held in this process and what becomes of their jobs when they leave. A request that cannot be
kept goes direct, and its record says why: never an error because of us.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
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
        cancel: Callable[[str], Awaitable[Job]],
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
        self._held: Counter[str] = Counter()
        self._unwanted: set[str] = set()
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

    def hold(self, job: Job) -> None:
        """Note that a caller waits for a job."""
        self._held[job.id] += 1

    def let_go(self, job: Job) -> None:
        """Note that one of its callers waits no longer."""
        self._held[job.id] -= 1
        if self._held[job.id] <= 0:
            del self._held[job.id]

    def over(self, call: BatchCall) -> None:
        """Forget a call."""
        self._calls.discard(call)

    def abandon(self, job: Job) -> None:
        """End a job that nobody waits for, unless somebody does after a moment."""
        self.later(self._grace_seconds, job.id)

    def later(self, seconds: float, job_id: str) -> None:
        """Cancel a job after a while if nobody waits for it then."""
        work = self._cancel_later(seconds, job_id)
        self.tasks.add(self.loop.create_task(work, name=f"abandon {job_id}"))

    async def _cancel_later(self, seconds: float, job_id: str) -> None:
        await asyncio.sleep(seconds)
        if job_id in self._held:
            return
        try:
            await self.cancel(job_id)
        except StoreUnavailable:
            self.forget(job_id)
        except StoreError:
            # It has ended, or is gone.
            return

    def forget(self, job_id: str) -> None:
        """Note a job that the store may have and nobody wants, to be cancelled once the store answers."""
        if len(self._unwanted) < _MOST_FORGOTTEN:
            self._unwanted.add(job_id)

    async def clean(self) -> None:
        """Cancel what `forget` noted. Raises `StoreUnavailable`."""
        while self._unwanted:
            job_id = next(iter(self._unwanted))
            if job_id not in self._held:
                try:
                    await self.cancel(job_id)
                except StoreUnavailable:
                    raise
                except StoreError:
                    # It never arrived, or has ended.
                    pass
            self._unwanted.discard(job_id)

    async def deliver(self, job: Job) -> None:
        """Note that a caller has an ending; the store being away is no harm."""
        if job.state is JobState.DELIVERED:
            return
        try:
            await self.store.deliver(job.id)
        except StoreError as problem:
            _log.info("a delivered job could not be marked: %s", problem)
