"""Whoever dies between any two calls to the store leaves a state from which others go on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.jobs.changes import BatchMove, JobChange, JobQuery
from proxy.jobs.model import LIVE_BATCH_STATES, Batch, BatchState, Job, JobState, JobTier
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.store import JobStore
from proxy.jobs.transitions import BatchEvent, JobEvent
from tests.support.crashing_worker import CALLS, JOBS, store_of
from tests.support.jobs import DURABLE_KINDS, answer, booking, held, new_batch_of
from tests.support.redis_server import ServerOf

ROOT = Path(__file__).resolve().parents[3]


async def take_over(store: JobStore) -> None:
    """Work as a second worker does, long after the first one died, until nothing is left to do."""
    for _ in range(12):
        for job in await store.claim_jobs("heir", 60.0, 10, frozenset({JobTier.FLEX})):
            await finish(store, job)
        for pool in await store.pools():
            ids = [job.id for job in await store.candidates(pool.group, 100)]
            await store.pack(new_batch_of(pool.group), ids, "packer", 0.0)
        for batch in await store.claim_batches("heir", 60.0, 10):
            await advance(store, batch)


async def finish(store: JobStore, job: Job) -> None:
    if job.state is JobState.ACCEPTED:
        await store.commit_job(held(job), JobChange(JobEvent.SUBMIT, (job.id,)))
    await store.commit_job(held(job), success(job.id, "call:2"))


async def advance(store: JobStore, batch: Batch) -> None:
    """Carry a batch one step on from wherever it stands."""
    lease = held(batch)
    ids = await store.batch_job_ids(batch.id, only_open=True)
    source = f"batch:{batch.id}"
    moves: dict[BatchState, tuple[BatchMove, list[JobChange]]] = {
        BatchState.INTENT: (BatchMove(BatchEvent.UPLOAD, due=0.0), []),
        BatchState.UPLOADED: (BatchMove(BatchEvent.CREATE, due=0.0), [JobChange(JobEvent.SUBMIT, ids)]),
        BatchState.CREATED: (BatchMove(BatchEvent.END, due=0.0), []),
        BatchState.ENDED: (
            BatchMove(BatchEvent.SETTLE, due=0.0),
            [success(job_id, source) for job_id in ids],
        ),
    }
    move, changes = moves.get(batch.state, (BatchMove(BatchEvent.CLEAN), []))
    await store.commit_batch(lease, move, changes)


def success(job_id: str, source: str) -> JobChange:
    return JobChange(JobEvent.SUCCEED, (job_id,), answer=answer(source), booking=booking(job_id, source))


async def check_heritage(where: str, calls: int) -> None:
    """See that every accepted job ends once."""
    store = store_of(where, calls, clock_offset_seconds=120.0)
    await store.open()
    try:
        await take_over(store)
        jobs = (await store.list_jobs(JobQuery())).jobs
        assert len(jobs) == min(calls, JOBS)
        for job in jobs:
            assert job.ended_as is JobState.SUCCEEDED, (calls, job)
            found = await store.answer(job.id)
            assert found is not None
            assert found.source == job.answer_source
            assert [one.key for one in await store.bookings(job.id)] == [job.answer_source]
        batches = (await store.census()).batches
        assert not LIVE_BATCH_STATES & batches.keys(), (calls, batches)
    finally:
        await store.close()


_ACCEPTING = """
import asyncio, sys
from pathlib import Path
from proxy.jobs.sqlite_store import SqliteStore
from tests.support.jobs import BODY, Bench, new_job

async def accept_on(store, bench):
    while True:
        accepted = await store.accept(new_job(bench), BODY)
        sys.stdout.write(accepted.job.id + "\\n")
        sys.stdout.flush()

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    bench = Bench("sqlite", Path(sys.argv[1]), None)
    await asyncio.gather(*(accept_on(store, bench) for _ in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 40, 173])
def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "jobs.db"
    command = [sys.executable, "-c", _ACCEPTING, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(lines)]
        process.kill()
        acknowledged += [
            line.strip() for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")
        ]

    async def look() -> None:
        store = SqliteStore(path)
        await store.open()
        assert len(await store.jobs(acknowledged)) == len(acknowledged) >= lines
        assert len(await store.bodies(acknowledged)) == len(acknowledged)
        await store.close()

    asyncio.run(look())


@pytest.mark.parametrize("kind", [kind for kind in DURABLE_KINDS if kind != "cluster"])
def test_work_goes_on_after_a_kill_between_any_two_calls(
    kind: str, tmp_path: Path, redis_server: ServerOf
) -> None:
    where = str(tmp_path) if kind == "sqlite" else redis_server(kind).url
    command = [sys.executable, "-m", "tests.support.crashing_worker", where, "0", str(CALLS)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert died.stdout == "done\n", died.stderr
    for calls in range(CALLS + 1):
        asyncio.run(check_heritage(where, calls))
