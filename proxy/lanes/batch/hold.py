"""One caller that is held: waiting for its job within its patience, and what comes of it.

    Ending       the job's answer, in the form that the caller asked for
    WayOut       nothing can come in time by the job's own way: the request is to be sent direct
    ProxyError   there is neither: the job has no answer, or it goes on beyond the caller's patience

The worker makes the direct call that rescues a late job; the way out is for when no worker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.core.clock import Clock
from proxy.core.errors import JOB_CANCELLED, JOB_PENDING, ProxyError
from proxy.jobs.changes import Accepted
from proxy.jobs.model import LIVE_JOB_STATES, Delivery, Job, JobState, JobTier
from proxy.jobs.store import Conflict, JobStore, StoreError, StoreUnavailable
from proxy.lanes.batch.answers import Whole, events, paid_usd, whole
from proxy.lanes.lane import Deferral
from proxy.policy.model import KeepAlive

HEARTBEAT_SECONDS = 10.0
"""Below the 15 s that the shortest common idle limits on the way leave."""

_LOOK_SECONDS = 5.0
_STORE_PAUSE_SECONDS = 0.5
_LEAST_SLACK_SECONDS = 3.0
_SLACK_SHARE = 0.1
_PENDING_RETRY_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Ending:
    """The job has an answer, of the provider's `status`. `tier` is its word for what it used."""

    job: Job
    answer: Whole
    status: int
    tier: str
    paid_usd: float | None


@dataclass(frozen=True, slots=True)
class WayOut:
    """The request is to be sent direct; `job_to_cancel` is what nobody wants any more then."""

    reason: str
    job_to_cancel: str | None = None


Outcome = Ending | WayOut | ProxyError


class Holding(Protocol):
    """What a hold needs of its lane."""

    store: JobStore
    clock: Clock

    is_available: Callable[[], bool]
    """Whether the store is up, as far as is known."""

    async def give_up(self, job_id: str) -> None:
        """Leave a job and end it where nobody else waits for it. Raises as `JobStore.cancel` does."""
        ...


class Hold:
    """Waits for one caller. `begun_at` is when it began to wait (monotonic)."""

    def __init__(self, lane: Holding, deferral: Deferral, accepted: Accepted, begun_at: float) -> None:
        self._lane = lane
        self._store = lane.store
        clock = self._clock = lane.clock
        self._deferral = deferral
        self._job = accepted.job
        self._is_first = accepted.is_new
        plan = deferral.plan
        begun_wall = clock.wall() - (clock.monotonic() - begun_at)
        self._until = begun_wall + (plan.hold_seconds or 0.0)
        deadline = min(accepted.job.deadline, begun_wall + plan.deadline_seconds)
        slack = max(_LEAST_SLACK_SECONDS, _SLACK_SHARE * plan.direct_seconds)
        self._way_out_at = deadline - plan.direct_seconds + slack

    @property
    def heartbeat_seconds(self) -> float | None:
        """How often the caller is given a sign of life, `None`: it gets no byte before the answer."""
        is_alive = self._deferral.is_stream or self._deferral.policy.keep_alive is KeepAlive.WHITESPACE
        return HEARTBEAT_SECONDS if is_alive else None

    async def wait(self) -> Outcome:
        """Return what comes of it."""
        while True:
            now = self._clock.wall()
            if now >= self._until:
                return self._pending()
            try:
                seen = await self._look(now)
                if seen is None:
                    return ProxyError(JOB_CANCELLED, "This request was deleted while it waited.")
                self._job = seen
                if not seen.is_live:
                    return await self._ended(seen)
            except StoreUnavailable:
                await asyncio.sleep(_STORE_PAUSE_SECONDS)
            if self._clock.wall() >= self._way_out_at and not self._is_in_hands():
                outcome = await self._leave()
                if outcome is not None:
                    return outcome

    async def _look(self, now: float) -> Job | None:
        ahead = [self._until - now, _LOOK_SECONDS]
        if self._way_out_at > now:
            ahead.append(self._way_out_at - now)
        return await self._store.wait(self._job.id, max(0.05, min(ahead)))

    def _is_in_hands(self) -> bool:
        """Whether a worker makes the direct call already."""
        job = self._job
        if not self._lane.is_available():
            return False
        return job.rescue_begun is not None or (
            job.tier is JobTier.DIRECT and job.state is JobState.SUBMITTED
        )

    async def _leave(self) -> Outcome | None:
        """Take the request out of its job's hands; `None` if the job has ended meanwhile."""
        if self._job.delivery is not Delivery.HOLD:
            return WayOut("the job that it belongs to takes longer than its caller waits")
        try:
            await self._lane.give_up(self._job.id)
        except StoreUnavailable:
            return WayOut("job store unavailable, sent direct in time", self._job.id)
        except Conflict as conflict:
            if conflict.state not in LIVE_JOB_STATES:
                return None
            return WayOut("the job that it belongs to takes longer than its caller waits")
        except StoreError:
            pass
        return WayOut("no worker had taken the job up, sent direct in time")

    async def _ended(self, job: Job) -> Outcome:
        answer = await self._store.answer(job.id)
        ended_as = job.ended_as or job.state
        if answer is None and ended_as is JobState.FAILED:
            code = "unknown" if job.error is None else job.error.code
            return WayOut(f"the job failed without an answer: {_word(code)}")
        time_left = self._until - self._clock.wall()
        if (
            answer is None
            and ended_as is JobState.EXPIRED
            and time_left >= self._deferral.plan.direct_seconds
        ):
            # Whoever works on jobs could not reach the upstream; the caller's own request may.
            return WayOut("the job expired without an answer")
        if ended_as is JobState.CANCELLED and not self._is_first:
            # Its first caller had left, and the process that it had left did not know of this one.
            return WayOut("the job was cancelled")
        told = whole(job, answer)
        if isinstance(told, ProxyError) or answer is None:
            return told if isinstance(told, ProxyError) else self._pending()
        deferral = self._deferral
        if deferral.is_stream:
            told = events(told, deferral.dialect, deferral.wants_usage)
        paid = paid_usd(await self._store.bookings(job.id))
        return Ending(job, told, answer.status, answer.tier or job.tier.value, paid)

    def _pending(self) -> ProxyError:
        message = f"The answer is not there yet (job {self._job.id}); trying again finds it."
        return ProxyError(JOB_PENDING, message, retry_after_seconds=_PENDING_RETRY_SECONDS)


def _word(code: str) -> str:
    """Return a code as a reason may hold it: a provider may say anything."""
    return "".join(char for char in code[:64] if char.isalnum() or char in "_-") or "unknown"
