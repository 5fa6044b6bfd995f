"""P4 for webhooks: whoever is killed around a call leaves a notice that is told, and known by its id."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from proxy.core.clock import SystemClock
from proxy.jobs.model import Delivery, Job, JobTier
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.worker.loop import Worker
from tests.support.job_worker import FAST, Policies, body_of, kit_for, new_job, upstream_at
from tests.support.killed_worker import Killing, nursery, sender_to
from tests.support.webhook_receiver import SECRET, receiving
from tests.unit.sim.running import running


async def accept(path: Path) -> Job:
    store = SqliteStore(path, SystemClock())
    await store.open()
    job = new_job(tier=JobTier.DIRECT, webhook="ops", delivery=Delivery.TICKET)
    await store.accept(job, body_of(job))
    await store.close()
    return job


async def work_until_told(path: Path, upstream: str, webhook: str, job: Job) -> Job:
    """Work as the next process does until the job's end is told; return the job."""
    store = SqliteStore(path, SystemClock())
    await store.open()
    kit = kit_for(store, Policies(upstream_at(upstream)))
    kit.sender = sender_to(webhook)
    worker = Worker(kit)
    working = asyncio.get_running_loop().create_task(worker.run(), name="heir")
    try:
        async with asyncio.timeout(20):
            while True:
                seen = await store.get(job.id)
                assert seen is not None
                if not seen.is_live and seen.notice_due is None:
                    return seen
                await asyncio.sleep(0.02)
    finally:
        await worker.stop()
        await working
        await kit.providers.close()
        await kit.sender.close()
        await store.close()


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("step", "when", "calls"),
    [
        ("job.succeed", "before", 1),
        ("job.succeed", "after", 1),
        ("noted", "before", 2),
        ("noted", "after", 1),
    ],
)
def test_a_kill_around_a_notice_neither_loses_nor_renames_it(
    tmp_path: Path, step: str, when: str, calls: int
) -> None:
    path = tmp_path / "jobs.db"
    with receiving() as receiver, running(FAST) as sim, nursery() as bear:
        job = asyncio.run(accept(path))
        url = f"{receiver.address}/hook"
        assert bear(Killing(f"sqlite:{path}", sim.address, step, when, url)) == -9
        told = asyncio.run(work_until_told(path, sim.address, url, job))
        deliveries = list(receiver.deliveries)
    events: list[dict[str, Any]] = [Webhook(SECRET).verify(each.body, each.headers) for each in deliveries]
    assert len(events) == calls
    assert {event["id"] for event in events} == {events[0]["id"]}, "whoever knows the ids has it exactly once"
    assert {event["type"] for event in events} == {"weir.job.succeeded"}
    assert (told.notice_note, told.notice_tries) == ("told", 0)
