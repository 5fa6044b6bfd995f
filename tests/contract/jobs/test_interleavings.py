"""Three workers in any order, some of them late: the laws hold, and every store does as the memory one does.

Each example is a list of small actions. Workers remember their leases, also those that they have lost, and go
on using them.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.jobs.changes import BatchMove, JobChange, JobQuery
from proxy.jobs.model import LIVE_BATCH_STATES, Batch, Booking, BookingKind, Job, JobState, JobTier, Lease
from proxy.jobs.store import Conflict, JobStore, LeaseLost
from proxy.jobs.transitions import BatchEvent, JobEvent
from tests.support.jobs import BODY, DURABLE_KINDS, Bench, answer, booking, new_batch, new_job
from tests.support.redis_server import ServerOf

WORKERS = 3

Action = tuple[str, int, int, int]
"""What, by which worker, and two numbers that choose among what there is."""

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("accept", "accept", "claim_jobs", "claim_job", "claim_batches", "pack", "pack"),
                *("commit_job", "commit_job", "commit_batch", "commit_batch", "commit_batch", "split"),
                *("cancel", "deliver", "reset", "delete", "release", "renew", "book", "advance", "purge"),
            ]
        ),
        st.integers(0, WORKERS - 1),
        st.integers(0, 1000),
        st.integers(0, 1000),
    ),
    min_size=5,
    max_size=60,
)


@dataclass
class World:
    """One store and everything that its workers believe."""

    bench: Bench
    stores: list[JobStore]
    ids: random.Random = field(default_factory=lambda: random.Random(7))
    jobs: list[Job] = field(default_factory=list)
    job_leases: list[Lease] = field(default_factory=list)
    batch_leases: list[Lease] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)

    def fresh_id(self) -> str:
        """Return an id that is the same in every world after the same actions."""
        return uuid.UUID(int=self.ids.getrandbits(128)).hex

    async def act(self, action: Action) -> Any:
        """Do one thing and return what can be compared."""
        name, worker, one, two = action
        store = self.stores[worker % len(self.stores)]
        try:
            return await getattr(self, f"_{name}")(store, worker, one, two)
        except Conflict as conflict:
            return "conflict", conflict.state
        except LeaseLost:
            return "lost"

    def _job(self, number: int) -> Job | None:
        return self.jobs[number % len(self.jobs)] if self.jobs else None

    def _lease(self, leases: list[Lease], number: int) -> Lease | None:
        return leases[-1 - number % min(len(leases), 8)] if leases else None

    async def _accept(self, store: JobStore, _: int, one: int, two: int) -> Any:
        job = new_job(
            self.bench,
            id=self.fresh_id(),
            attach_key=f"key-{one % 4}",
            model=("m", "n")[one % 2],
            tier=(JobTier.BATCH, JobTier.BATCH, JobTier.FLEX)[two % 3],
            due=self.bench.now + two % 40,
            ready=self.bench.now + one % 3,
            is_borrowing=two % 5 == 0,
        )
        result = await store.accept(job, BODY, attach=one % 5 > 0)
        if result.is_new:
            self.jobs.append(result.job)
        return result

    async def _claim_jobs(self, store: JobStore, worker: int, one: int, _: int) -> Any:
        tiers = None if one % 2 else frozenset({JobTier.FLEX})
        found = await store.claim_jobs(f"w{worker}", 20.0, 1000, tiers)
        found = tuple(sorted(found, key=lambda job: job.id))
        self.job_leases += [job.lease for job in found if job.lease]
        return found

    async def _claim_job(self, store: JobStore, worker: int, one: int, _: int) -> Any:
        job = self._job(one)
        found = None if job is None else await store.claim_job(job.id, f"w{worker}", 20.0)
        if found is not None and found.lease:
            self.job_leases.append(found.lease)
        return found

    async def _claim_batches(self, store: JobStore, worker: int, *_: int) -> Any:
        found = await store.claim_batches(f"w{worker}", 20.0, 1000)
        found = tuple(sorted(found, key=lambda batch: batch.id))
        self.batch_leases += [batch.lease for batch in found if batch.lease]
        return found

    async def _pack(self, store: JobStore, worker: int, one: int, two: int) -> Any:
        job = self._job(one)
        if job is None:
            return None
        batch = new_batch(self.bench, job.group, id=self.fresh_id(), due=self.bench.now + two % 5)
        ids = [other.id for other in self.jobs[one % len(self.jobs) :]] + [job.id]
        packed = await store.pack(batch, ids, f"w{worker}", 20.0)
        if packed is not None and packed.lease:
            self.batch_leases.append(packed.lease)
            self.batches.append(packed.id)
        return packed

    async def _commit_job(self, store: JobStore, _: int, one: int, two: int) -> Any:
        lease = self._lease(self.job_leases, one)
        if lease is None:
            return None
        events = (
            *(JobEvent.SUBMIT, JobEvent.SUCCEED, JobEvent.RESCUE, JobEvent.RETRY, JobEvent.FAIL),
            *(JobEvent.BEGIN_RESCUE, JobEvent.PROGRESS, JobEvent.RETURN, JobEvent.EXPIRE),
        )
        event = events[two % len(events)]
        return await store.commit_job(lease, self._change(event, (lease.subject,), f"call:{two}", two))

    def _change(self, event: JobEvent, job_ids: tuple[str, ...], source: str, number: int) -> JobChange:
        change = JobChange(
            event,
            job_ids,
            due=self.bench.now + number % 30 if number % 4 == 0 else None,
            ready=self.bench.now + number % 3,
            tier=(None, JobTier.BATCH, JobTier.FLEX)[number % 3],
        )
        if event in (JobEvent.SUCCEED, JobEvent.RESCUE):
            paid = booking(job_ids[0], source)
            change = replace(change, answer=answer(source, source.encode()), booking=paid)
        return change

    async def _commit_batch(self, store: JobStore, _: int, one: int, two: int) -> Any:
        lease = self._lease(self.batch_leases, one)
        if lease is None:
            return None
        batch = await store.batch(lease.subject)
        ids = await store.batch_job_ids(lease.subject)
        still = await store.batch_job_ids(lease.subject, only_open=True)
        events = tuple(BatchEvent)
        # As a rule the next step of a life, else anything.
        following = {"intent": 1, "uploaded": 1, "created": 3, "ended": 4}
        state = "" if batch is None else batch.state.value
        event = events[two % len(events)] if two % 4 == 0 else events[following.get(state, 7)]
        changes: list[JobChange] = []
        if event is BatchEvent.CREATE:
            changes = [JobChange(JobEvent.SUBMIT, ids)]
        elif event in (BatchEvent.SETTLE, BatchEvent.REFUSE, BatchEvent.ABANDON):
            wanted = still if two % 5 else ids
            changes = [self._outcome(job_id, lease, two + place) for place, job_id in enumerate(wanted)]
        move = BatchMove(event, due=self.bench.now + two % 10 if two % 6 == 0 else None, note=f"{two}")
        return await store.commit_batch(lease, move if two % 7 else None, changes)

    def _outcome(self, job_id: str, lease: Lease, number: int) -> JobChange:
        events = (JobEvent.SUCCEED, JobEvent.RETRY, JobEvent.RETURN, JobEvent.EXPIRE)
        return self._change(events[number % 4], (job_id,), f"batch:{lease.subject}", number)

    async def _split(self, store: JobStore, _: int, one: int, two: int) -> Any:
        lease = self._lease(self.batch_leases, one)
        batch = None if lease is None else await store.batch(lease.subject)
        if lease is None or batch is None:
            return None
        ids = await store.batch_job_ids(batch.id)
        middle = two % (len(ids) + 1)
        parts = [
            (Batch(self.fresh_id(), batch.group, self.bench.now, due=self.bench.now + 1), ids[:middle]),
            (Batch(self.fresh_id(), batch.group, self.bench.now, due=self.bench.now + 1), ids[middle:-1]),
        ]
        made = await store.split(lease, parts)
        self.batches += [part.id for part in made]
        return made

    async def _cancel(self, store: JobStore, _: int, one: int, __: int) -> Any:
        job = self._job(one)
        return None if job is None else await store.cancel(job.id)

    async def _deliver(self, store: JobStore, _: int, one: int, __: int) -> Any:
        job = self._job(one)
        return None if job is None else await store.deliver(job.id)

    async def _reset(self, store: JobStore, _: int, one: int, two: int) -> Any:
        job = self._job(one)
        if job is None:
            return None
        now = self.bench.now
        again = await store.reset(job.id, tier=JobTier.BATCH, due=now + two % 9, deadline=now + 3600)
        self.answers.pop(job.id, None)
        return again

    async def _delete(self, store: JobStore, _: int, one: int, two: int) -> Any:
        job = self._job(one)
        return None if job is None or two % 3 else await store.delete(job.id)

    async def _release(self, store: JobStore, _: int, one: int, two: int) -> Any:
        lease = self._lease((self.job_leases, self.batch_leases)[two % 2], one)
        if lease is not None:
            await store.release(lease, self.bench.now + two % 7 if two % 3 else None)

    async def _renew(self, store: JobStore, _: int, one: int, two: int) -> Any:
        lease = self._lease((self.job_leases, self.batch_leases)[two % 2], one)
        return None if lease is None else await store.renew(lease, 15.0)

    async def _book(self, store: JobStore, _: int, one: int, two: int) -> Any:
        job = self._job(one)
        if job is not None:
            return await store.book(Booking(job.id, f"late:{two % 2}", BookingKind.LOSER, "batch", two))
        return None

    async def _advance(self, _: JobStore, __: int, one: int, ___: int) -> Any:
        self.bench.clock.advance(float(one % 25))

    async def _purge(self, store: JobStore, _: int, one: int, __: int) -> Any:
        if one % 10 == 0:
            self.bench.clock.advance(5000.0)
        return await store.purge()

    async def look(self) -> dict[str, Any]:
        """Return everything that can be seen from outside."""
        store = self.stores[0]
        ids = [job.id for job in self.jobs]
        batches = [await store.batch(batch_id) for batch_id in self.batches]
        census = await store.census()
        return {
            "jobs": await store.jobs(ids),
            "answers": {job_id: await store.answer(job_id) for job_id in ids},
            "bookings": {job_id: await store.bookings(job_id) for job_id in ids},
            "batches": batches,
            "open": {
                batch_id: await store.batch_job_ids(batch_id, only_open=True) for batch_id in self.batches
            },
            "pools": await store.pools(),
            "listed": [job.id for job in (await store.list_jobs(JobQuery(limit=500))).jobs],
            "counts": (dict(census.jobs), dict(census.oldest), dict(census.batches)),
        }

    def check_laws(self, seen: dict[str, Any]) -> None:
        """One ending per job, no job in two live batches or in a batch and a pool, none lost."""
        live = {batch.id for batch in seen["batches"] if batch and batch.state in LIVE_BATCH_STATES}
        holders: dict[str, str] = {}
        for batch_id, job_ids in seen["open"].items():
            assert batch_id in live or not job_ids, "a batch that is over holds jobs"
            for job_id in job_ids:
                assert holders.setdefault(job_id, batch_id) == batch_id, "a job in two batches"
        for job in seen["jobs"]:
            in_batch = job.state is JobState.PACKED or job.batch_id is not None
            assert in_batch == (job.id in holders), job
            assert (job.ended_as is None) == job.is_live
            found = seen["answers"][job.id]
            assert (found is None) == (job.answer_source is None)
            if found is not None:
                assert found.source == job.answer_source
                assert self.answers.setdefault(job.id, found.source) == found.source, "a second answer"
        pooled = sum(pool.jobs for pool in seen["pools"])
        assert pooled == sum(
            job.state is JobState.ACCEPTED and job.tier is JobTier.BATCH for job in seen["jobs"]
        )


async def play(bench: Bench, actions: list[Action], instances: int = 2) -> list[Any]:
    """Act all of it, check the laws after each, and return what was seen."""
    stores = [await bench.another() for _ in range(instances)]
    world = World(bench, stores)
    seen = []
    for action in actions:
        result = await world.act(action)
        view = await world.look()
        world.check_laws(view)
        seen.append((action, result, view))
    return seen


def played(make: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
    async def run() -> list[Any]:
        return await make()

    return asyncio.run(run())


@given(ACTIONS)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_the_laws_hold_in_memory(actions: list[Action]) -> None:
    played(lambda: closing(Bench("memory", Path(), None), actions))


async def closing(bench: Bench, actions: list[Action]) -> list[Any]:
    try:
        return await play(bench, actions)
    finally:
        await bench.close()


@pytest.mark.parametrize("kind", [kind for kind in DURABLE_KINDS if kind != "cluster"])
def test_every_store_does_what_the_memory_store_does(
    kind: str, tmp_path_factory: pytest.TempPathFactory, redis_server: ServerOf
) -> None:
    server = None if kind == "sqlite" else redis_server(kind)

    @given(ACTIONS)
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    def compare(actions: list[Action]) -> None:
        folder = tmp_path_factory.mktemp("jobs")
        expected = played(lambda: closing(Bench("memory", folder, None), actions))
        found = played(lambda: closing(Bench(kind, folder, server), actions))
        for before, after in zip(expected, found, strict=True):
            assert after == before

    compare()
