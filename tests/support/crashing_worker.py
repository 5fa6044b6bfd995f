"""A process that works on jobs and dies of SIGKILL after a given number of its calls to the store.

python -m tests.support.crashing_worker URL|PATH FIRST LAST: for every number of calls from FIRST to LAST one
child works on data of its own (namespace or file `<number>`) and is killed. Prints `done` when all are.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from proxy.core.clock import SystemClock
from proxy.jobs.changes import BatchMove, JobChange
from proxy.jobs.model import Batch, Job, JobError, JobTier
from proxy.jobs.redis_store import RedisStore
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.store import JobStore
from proxy.jobs.transitions import BatchEvent, JobEvent
from tests.support.jobs import BODY, answer, booking, held

_T = TypeVar("_T")

LEASE_SECONDS = 30.0
JOBS = 3


def store_of(where: str, number: int, clock_offset_seconds: float = 0.0) -> JobStore:
    """Return the store in which the child with a number worked, not opened."""
    clock = _Later(clock_offset_seconds)
    if "://" in where:
        return RedisStore(where, clock, namespace=f"crash-{number}")
    return SqliteStore(Path(where) / f"{number}.db", clock)


class _Later(SystemClock):
    def __init__(self, offset_seconds: float) -> None:
        self._offset_seconds = offset_seconds

    def wall(self) -> float:
        return SystemClock.wall() + self._offset_seconds


class Calls:
    """Counts calls to the store and ends the process, as a power failure would, when there were enough."""

    def __init__(self, allowed: int) -> None:
        self._left = allowed

    async def __call__(self, call: Awaitable[_T]) -> _T:
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        return await call


async def live(store: JobStore, call: Calls) -> None:
    """Go through a life with a single call, a batch, its refusal, a retry and the cleaning, step by step."""
    await store.open()
    now = SystemClock.wall()
    jobs = [(await call(store.accept(_job(now, number), BODY))).job for number in range(JOBS)]
    flex = (await call(store.claim_jobs("dying", LEASE_SECONDS, 1, frozenset({JobTier.FLEX}))))[0]
    await call(store.commit_job(held(flex), JobChange(JobEvent.SUBMIT, (flex.id,))))
    await call(store.commit_job(held(flex), _success(flex.id, "call:1")))
    ids = tuple(job.id for job in jobs[1:])
    whole = await call(store.pack(_batch(jobs[1], now), ids, "dying", LEASE_SECONDS))
    assert whole is not None
    parts = await call(store.split(held(whole), [(_batch(jobs[1], now), ids)]))
    claimed = {batch.id: batch for batch in await call(store.claim_batches("dying", LEASE_SECONDS, 9))}
    batch = claimed[parts[0].id]
    lease = held(batch)
    await call(store.commit_batch(lease, BatchMove(BatchEvent.UPLOAD, input_file_id="file-1")))
    created = BatchMove(BatchEvent.CREATE, provider_id="batch_1")
    await call(store.commit_batch(lease, created, [JobChange(JobEvent.SUBMIT, ids)]))
    await call(store.commit_batch(lease, BatchMove(BatchEvent.END)))
    outcomes = [
        _success(ids[0], f"batch:{batch.id}"),
        JobChange(JobEvent.RETRY, ids[1:], error=JobError("rate_limit", "later"), due=now + 60),
    ]
    await call(store.commit_batch(lease, BatchMove(BatchEvent.SETTLE), outcomes))
    await call(store.commit_batch(lease, BatchMove(BatchEvent.CLEAN)))
    await call(store.deliver(ids[0]))
    await call(asyncio.sleep(0))
    raise AssertionError("there are fewer calls than the test believes")


CALLS = JOBS + 12
"""After how many calls a life is over."""


def _job(now: float, number: int) -> Job:
    job_id = uuid.uuid4().hex
    return Job(
        job_id,
        f"attach-{job_id}",
        "owner",
        "openai",
        "/v1/chat/completions",
        "m",
        "account",
        created=now,
        deadline=now + 3600,
        due=now if number == 0 else now + 60,
        tier=JobTier.FLEX if number == 0 else JobTier.BATCH,
    )


def _batch(job: Job, now: float) -> Batch:
    return Batch(uuid.uuid4().hex, job.group, now, due=now)


def _success(job_id: str, source: str) -> JobChange:
    return JobChange(JobEvent.SUCCEED, (job_id,), answer=answer(source), booking=booking(job_id, source))


def main() -> None:
    """Fork a child for every number of calls. This process has but one thread, so that forking is safe."""
    where, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for number in range(first, last + 1):
        child = os.fork()
        if child == 0:
            asyncio.run(live(store_of(where, number), Calls(number)))
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"the child with {number} calls was not killed")
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
