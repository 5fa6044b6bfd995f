"""Workers in processes of their own that end by SIGKILL at a chosen step.

A nursery is one interpreter that has imported everything and forks a worker when it is told to:

with nursery() as bear:
    bear(Killing("sqlite:jobs.db", url, step="batch.create", when="before"))   # returns when it is dead
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from proxy.core.clock import SystemClock
from proxy.core.upstream import Secret
from proxy.core.webhook import Webhook
from proxy.jobs.changes import BatchMove, Committed, JobChange
from proxy.jobs.model import Batch, Job, Lease
from proxy.jobs.redis_store import RedisStore
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.store import JobStore
from proxy.jobs.worker.loop import Worker
from proxy.observe.metrics import Metrics
from proxy.webhooks.sender import Sender
from tests.support.job_worker import QUICK, Policies, kit_for, upstream_at
from tests.support.webhook_receiver import SECRET

LEASE_SECONDS = 0.5
_LONGEST_LIFE_SECONDS = 15


@dataclass(frozen=True)
class Killing:
    """Where a worker dies: before or after `job.<event>`, `batch.<event>`, `pack`, `split` or `noted`.

    `webhook` is the address of the only one.
    """

    store: str
    upstream: str
    step: str
    when: str
    webhook: str = ""


def open_store(address: str) -> JobStore:
    """Return the store at `sqlite:PATH` or `NAMESPACE@REDIS-URL`."""
    if address.startswith("sqlite:"):
        return SqliteStore(Path(address.removeprefix("sqlite:")), SystemClock())
    namespace, _, url = address.partition("@")
    return RedisStore(url, SystemClock(), namespace=namespace)


class KillingStore:
    """A store that kills its process at a step."""

    def __init__(self, store: JobStore, step: str, when: str) -> None:
        self._store = store
        self._step = step
        self._when = when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _reached(self, when: str, *steps: str) -> None:
        if when == self._when and self._step in steps:
            os.kill(os.getpid(), signal.SIGKILL)

    async def commit_job(self, lease: Lease, change: JobChange) -> Job:
        steps = (f"job.{change.event.value}",)
        self._reached("before", *steps)
        job = await self._store.commit_job(lease, change)
        self._reached("after", *steps)
        return job

    async def commit_batch(
        self, lease: Lease, move: BatchMove | None = None, changes: Sequence[JobChange] = ()
    ) -> Committed:
        steps = [f"job.{change.event.value}" for change in changes]
        steps += [] if move is None else [f"batch.{move.event.value}"]
        self._reached("before", *steps)
        done = await self._store.commit_batch(lease, move, changes)
        self._reached("after", *steps)
        return done

    async def pack(
        self, batch: Batch, job_ids: Sequence[str], worker: str, lease_seconds: float
    ) -> Batch | None:
        self._reached("before", "pack")
        packed = await self._store.pack(batch, job_ids, worker, lease_seconds)
        self._reached("after", "pack")
        return packed

    async def noted(self, lease: Lease, due: float | None, note: str, *, is_try: bool) -> None:
        self._reached("before", "noted")
        await self._store.noted(lease, due, note, is_try=is_try)
        self._reached("after", "noted")

    async def split(self, lease: Lease, parts: Sequence[tuple[Batch, Sequence[str]]]) -> tuple[Batch, ...]:
        self._reached("before", "split")
        made = await self._store.split(lease, parts)
        self._reached("after", "split")
        return made


async def _work(killing: Killing) -> None:
    store = open_store(killing.store)
    await store.open()
    doomed = cast(JobStore, KillingStore(store, killing.step, killing.when))
    settings = replace(QUICK, name="doomed", lease_seconds=LEASE_SECONDS)
    kit = kit_for(doomed, Policies(upstream_at(killing.upstream)), settings)
    if killing.webhook:
        kit.sender = sender_to(killing.webhook)
    await Worker(kit).run()


def _nursery() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(_LONGEST_LIFE_SECONDS)
            asyncio.run(_work(Killing(**json.loads(line))))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def sender_to(url: str) -> Sender:
    """Return what tells the only webhook, `ops`."""
    webhook = Webhook("ops", url, (Secret(SECRET),))
    return Sender(SystemClock(), Metrics(), lambda: {"ops": webhook}, {}, lambda: 0.0)


Bear = Callable[[Killing], int]


@contextmanager
def nursery() -> Iterator[Bear]:
    """Give a function that bears a doomed worker and returns how it died: -9 is killed at the step."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    assert stdout.readline() == "ready\n"

    def bear(killing: Killing) -> int:
        stdin.write(json.dumps(asdict(killing)) + "\n")
        stdin.flush()
        return int(stdout.readline())

    try:
        yield bear
    finally:
        stdin.close()
        process.wait(timeout=_LONGEST_LIFE_SECONDS + 1)
        stdout.close()


if __name__ == "__main__":
    _nursery()
