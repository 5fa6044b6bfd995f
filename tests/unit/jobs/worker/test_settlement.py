"""Result files to jobs: whatever the lines, their order and where the reader dies, one outcome each."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.jobs.changes import BatchMove, Committed, JobChange
from proxy.jobs.memory_store import MemoryStore
from proxy.jobs.model import Batch, BatchState, Booking, BookingKind, Job, JobState, JobTier, Lease
from proxy.jobs.sealing import PlainVault
from proxy.jobs.store import JobStore
from proxy.jobs.transitions import BatchEvent, JobEvent
from proxy.jobs.unpacking import OutcomeKind, unpack
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import WorkerSettings
from proxy.jobs.worker.providers import Providers
from proxy.jobs.worker.settlement import READINGS, settle
from proxy.upstream.providers.batch_api import BatchApi, RemoteBatch
from tests.support.job_worker import Counting, Policies, Table

DAY = 24 * 3600.0
LIVE = {JobState.ACCEPTED}


class Died(Exception):
    """Stands for the end of the process."""


class Mortal:
    """A store whose user dies after so many commits."""

    def __init__(self, store: JobStore, commits: int) -> None:
        self._store = store
        self._left = commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit_batch(
        self, lease: Lease, move: BatchMove | None = None, changes: Sequence[JobChange] = ()
    ) -> Committed:
        if not self._left:
            raise Died
        self._left -= 1
        return await self._store.commit_batch(lease, move, changes)


@dataclass
class Files:
    """A provider's result files."""

    lines: list[bytes]

    async def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        for line in self.lines:
            yield line


def line(job_id: str, kind: str, number: int) -> bytes:
    body = {"id": f"r{number}", "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    refusal = {"error": {"code": "x", "message": "m"}}
    shapes: dict[str, Any] = {
        "good": {"response": {"status_code": 200, "body": body}, "error": None},
        "bad": {"response": {"status_code": 400, "body": refusal}, "error": None},
        "busy": {"response": {"status_code": 429, "body": refusal}, "error": None},
        "expired": {"response": None, "error": {"code": "batch_expired", "message": "m"}},
        "cancelled": {"response": None, "error": {"code": "batch_cancelled", "message": "m"}},
        "empty": {"response": None, "error": None},
        "null": {"response": {"status_code": 200, "body": None}, "error": None},
        "told": {"response": {"status_code": 200, "body": refusal}, "error": None},
    }
    return json.dumps({"custom_id": job_id, **shapes[kind]}).encode()


async def ended_batch(store: MemoryStore, clock: ManualClock, ids: Sequence[str]) -> Batch:
    """Return a batch of these jobs that the provider has finished with, leased to `w`."""
    now = clock.wall()
    jobs = [
        Job(each, each, "o", "openai", "/v1/chat/completions", "m", "a", now, now + DAY, due=now + DAY)
        for each in ids
    ]
    for job in jobs:
        await store.accept(job, b"{}")
    batch = await store.pack(Batch(uuid.uuid4().hex, jobs[0].group, now), ids, "w", 60.0)
    assert batch is not None
    assert batch.lease is not None
    submit = [JobChange(JobEvent.SUBMIT, tuple(ids))]
    await store.commit_batch(batch.lease, BatchMove(BatchEvent.CREATE, provider_id="b"), submit)
    # Read so often that nothing is put off any more.
    ended = BatchMove(BatchEvent.END, output_file_id="f", attempts=READINGS)
    done = await store.commit_batch(batch.lease, ended)
    return done.batch


def kit_over(store: JobStore, clock: ManualClock) -> Kit:
    policies = Policies(None)
    return Kit(
        store,
        clock,
        WorkerSettings("w"),
        policies,
        Providers(policies, {}, PlainVault()),
        Table(),
        Counting(),
        random.Random(1).random,
    )


KINDS = ("good", "bad", "busy", "expired", "cancelled", "empty", "null", "told")
EXPECTED = {
    OutcomeKind.ANSWER: {JobState.SUCCEEDED},
    OutcomeKind.FAILED: {JobState.FAILED},
    OutcomeKind.RETRY: LIVE,
    OutcomeKind.EXPIRED: LIVE,
    OutcomeKind.CANCELLED: LIVE,
    OutcomeKind.MISSING: LIVE,
}


@given(
    wanted=st.lists(st.tuples(st.integers(0, 11), st.sampled_from(KINDS)), max_size=24),
    strange=st.lists(st.sampled_from([b"", b"  ", b"no json", b'{"custom_id":"other"}', b"[]", b'{"a":1}'])),
    gone=st.sets(st.integers(0, 11), max_size=4),
    deaths=st.lists(st.integers(0, 4), max_size=3),
    seed=st.integers(0, 10_000),
)
def test_every_job_has_the_outcome_of_its_lines_once(
    wanted: list[tuple[int, str]], strange: list[bytes], gone: set[int], deaths: list[int], seed: int
) -> None:
    ids = [f"{number:032x}" for number in range(12)]
    lines = [line(ids[index], kind, number) for number, (index, kind) in enumerate(wanted)] + strange
    random.Random(seed).shuffle(lines)
    asyncio.run(_settle_and_check(ids, lines, {ids[index] for index in gone}, deaths))


async def _settle_and_check(ids: list[str], lines: list[bytes], gone: set[str], deaths: list[int]) -> None:
    clock = ManualClock()
    store = MemoryStore(clock, DAY)
    batch = await ended_batch(store, clock, ids)
    for job_id in gone:
        await store.cancel(job_id)
    api = cast(BatchApi, Files(lines))
    for commits in deaths:
        mortal = cast(JobStore, Mortal(store, commits))
        assert batch.lease is not None
        try:
            await settle(kit_over(mortal, clock), batch.lease, batch, api)
        except Died:
            clock.advance(61.0)
            (batch,) = await store.claim_batches("w", 60.0, 1)
        else:
            break
    seen = await store.batch(batch.id)
    assert seen is not None
    if seen.state is BatchState.ENDED:
        assert batch.lease is not None
        settled = await settle(kit_over(store, clock), batch.lease, batch, api)
        assert settled.state is BatchState.SETTLED
    assert await store.batch_job_ids(batch.id, only_open=True) == ()
    await _check(store, batch, ids, lines, gone)


async def _check(
    store: MemoryStore, batch: Batch, ids: list[str], lines: list[bytes], gone: set[str]
) -> None:
    source = f"batch:{batch.id}"
    outcomes = unpack(lines, ids, source).outcomes
    for job_id in ids:
        job, outcome = await store.get(job_id), outcomes[job_id]
        bookings: tuple[Booking, ...] = await store.bookings(job_id)
        assert job is not None
        assert len(bookings) <= 1
        if job_id in gone:
            assert job.state is JobState.CANCELLED
            assert [each.kind for each in bookings] == (
                [BookingKind.LOSER] if outcome.kind is OutcomeKind.ANSWER else []
            )
            continue
        assert job.state in EXPECTED[outcome.kind], (job, outcome)
        assert job.batch_id is None or not job.is_live
        answer = await store.answer(job_id)
        if outcome.kind is OutcomeKind.ANSWER:
            assert outcome.answer is not None
            assert answer == replace(outcome.answer, tier="batch")
            assert [(each.kind, each.tier) for each in bookings] == [(BookingKind.ANSWER, "batch")]
        elif outcome.kind is OutcomeKind.FAILED:
            assert answer == outcome.answer
            assert bookings == ()
        else:
            assert answer is None
            assert job.tier in (JobTier.BATCH, JobTier.DIRECT)
            is_unknown = outcome.may_have_run
            assert [each.kind for each in bookings] == ([BookingKind.FAILURE] if is_unknown else [])
