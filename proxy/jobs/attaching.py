"""Which job a second try of a request takes, and what becomes of that job. Pure.

Several jobs may have one attach key: whoever samples an answer ten times asks ten times alike. A retry takes
the one that the fewest callers wait for, and one whose answer somebody has only where no other is left, so
that the retries of all ten find ten, also after the process that held them has died. `lua/prelude.lua` and
`lua/accept.lua` say the same for Redis.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.jobs.model import Delivery, Job, JobState, JobTier
from proxy.jobs.notices import is_wished

_GOOD_ENDINGS = frozenset({JobState.SUCCEEDED, JobState.RESCUED})
_TAKEN = 1_000_000_000


def attach_order(job: Job) -> int | None:
    """Return which of several jobs with one key is taken first, the least; `None`: never."""
    if job.is_live:
        return job.waiting
    if job.ended_as not in _GOOD_ENDINGS:
        return None
    return job.waiting + (_TAKEN if job.state is JobState.DELIVERED else 0)


def attached(job: Job, newcomer: Job, now: float, retention_seconds: float) -> Job:
    """Return a job as it is once another request has joined it.

    A promise to one of them is a promise; the last deadline ends the work, the first one begins its rescue.
    """
    is_promised = job.delivery is not Delivery.HOLD
    joined = replace(
        job, waiting=job.waiting + 1, delivery=job.delivery if is_promised else newcomer.delivery
    )
    if not job.is_live:
        # Whoever was held has heard the end; to the newcomer it is promised, so that it has to be told.
        return joined if is_promised or not is_wished(joined) else replace(joined, notice_due=now)
    wanted = min(job.wanted_by, newcomer.deadline)
    due = job.due
    if job.tier is JobTier.BATCH:
        # What is due then is its rescue: it keeps its distance to the deadline.
        due = max(min(job.due, now), job.due - (job.wanted_by - wanted))
    deadline = max(job.deadline, newcomer.deadline)
    purge_at = max(job.purge_at, max(deadline, now) + retention_seconds)
    return replace(joined, wanted=wanted, due=due, deadline=deadline, purge_at=purge_at)


def left(job: Job) -> Job:
    """Return a job that one of its callers waits for no longer."""
    return replace(job, waiting=max(0, job.waiting - 1))


def is_wanted(job: Job) -> bool:
    """Tell whether somebody waits for a job as far as is known; who was promised its answer never leaves."""
    return job.waiting > 0
