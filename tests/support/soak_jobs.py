"""Many jobs through workers that are killed, over a store that is restarted, at a provider that fails.

report = soak(Plan(jobs=10_000))      # raises AssertionError for a job that is lost or has two answers

`make soak-jobs` runs the long form, tests/functional/test_p4_jobs_soak.py a short one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from proxy.core.clock import SystemClock
from proxy.jobs.model import LIVE_JOB_STATES, BookingKind, Job, JobState, JobTier
from proxy.jobs.redis_store import RedisStore
from proxy.jobs.store import JobStore, StoreUnavailable
from proxy.jobs.worker.loop import Worker
from proxy.jobs.worker.ports import RouteRules
from tests.support.job_worker import (
    QUICK,
    Policies,
    body_of,
    executions_of,
    kit_for,
    new_job,
    stats_of,
    upstream_at,
)
from tests.support.redis_server import RedisServer, running

_T = TypeVar("_T")
NAMESPACE = "soak"
_ACCEPTED_AT_ONCE = 16
ROOT = Path(__file__).resolve().parent.parent.parent

SCENARIO: dict[str, Any] = {
    "timing": {"base_ms": 1, "prefill_ms_per_token": 0, "decode_ms_per_token": 0.05, "output_tokens": 5},
    "batches": {
        "turnaround_seconds": 0.5,
        "cancel_seconds": 0.05,
        "creations_per_hour": 0,
        "lines": [
            {"status": 429, "share": 0.03, "first": 1},
            {"code": "batch_expired", "share": 0.03, "first": 1},
            {"duplicate": True, "share": 0.02},
            {"missing": True, "share": 0.01, "first": 1},
        ],
    },
    "flex": {"miss_share": 0.2},
    "background": {"time_factor": 0.0001},
    "faults": [
        {"do": {"status_after": 502}, "match": {"path": "/v1/batches", "method": "POST"}, "chance": 0.1},
        {"do": {"batch_refuse": "token_limit_exceeded"}, "match": {"path": "/v1/batches", "method": "POST"},
         "chance": 0.05},
        {"do": {"batch_expire_seconds": 0.3}, "match": {"path": "/v1/batches", "method": "POST"},
         "chance": 0.1},
        {"do": {"cut_before": True}, "chance": 0.02},
        {"do": {"status": 503}, "chance": 0.03},
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How much and how rough; `seconds` is the most that it may take."""

    jobs: int = 10_000
    workers: int = 2
    kill_every_seconds: float = 8.0
    restart_every_seconds: float = 20.0
    seconds: float = 600.0
    seed: int = 1
    tiers: Sequence[tuple[JobTier, float]] = (
        (JobTier.BATCH, 0.8),
        (JobTier.FLEX, 0.1),
        (JobTier.DIRECT, 0.05),
        (JobTier.BACKGROUND_2H, 0.05),
    )


@dataclass
class Report:
    """What came of it."""

    jobs: int = 0
    seconds: float = 0.0
    kills: int = 0
    restarts: int = 0
    batches: int = 0
    executions: int = 0
    unknown_executions: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    worker_peak_bytes: int = 0

    def lines(self) -> list[str]:
        """Return it for people."""
        return [
            f"{self.jobs} jobs in {self.seconds:.1f} s: {self.jobs / self.seconds:.0f} a second",
            f"{self.kills} workers killed, {self.restarts} restarts of the store",
            f"{self.batches} batches, {self.executions} executions, of which {self.unknown_executions} "
            "were lost with their worker or line and booked as unknown",
            f"endings: {dict(self.endings)}",
            f"largest worker: {self.worker_peak_bytes / 2**20:.0f} MiB",
        ]


def soak(plan: Plan) -> Report:
    """Run a plan and check what came of it."""
    with tempfile.TemporaryDirectory(prefix="weir-s") as folder, running("valkey") as server:
        scenario = Path(folder, "scenario.json")
        scenario.write_text(json.dumps({**SCENARIO, "seed": plan.seed}))
        command = [sys.executable, "-m", "proxy.cli.main", "simulate", "--listen", "127.0.0.1:0"]
        provider = subprocess.Popen(
            [*command, "--scenario", str(scenario)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            assert provider.stdout is not None
            url = provider.stdout.readline().strip().rpartition(" ")[2]
            assert url.startswith("http://"), url
            return asyncio.run(_soak(plan, server, url))
        finally:
            provider.kill()
            provider.communicate()


async def _soak(plan: Plan, server: RedisServer, url: str) -> Report:
    report, draw = Report(jobs=plan.jobs), random.Random(plan.seed)
    store = RedisStore(server.url, SystemClock(), namespace=NAMESPACE)
    await store.open()
    begun = time.monotonic()
    try:
        async with asyncio.timeout(plan.seconds), asyncio.TaskGroup() as group:
            trouble = [
                group.create_task(
                    _keep_killing(plan, server, url, report, random.Random(plan.seed + number), number)
                )
                for number in range(plan.workers)
            ]
            trouble.append(group.create_task(_keep_restarting(plan, server, report)))
            jobs = await _accept(plan, store, draw)
            await _all_ended(store, len(jobs))
            report.seconds = time.monotonic() - begun
            for task in trouble:
                task.cancel()
        await _check(store, jobs, await stats_of(url), report)
    finally:
        await store.close()
    report.worker_peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return report


async def _keep_killing(
    plan: Plan, server: RedisServer, url: str, report: Report, draw: random.Random, number: int
) -> None:
    """Run a worker, kill it, run the next."""
    born = 0
    while True:
        born += 1
        command = [
            sys.executable,
            "-m",
            "tests.support.soak_jobs",
            server.url,
            url,
            f"worker-{number}-{born}",
        ]
        worker = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert worker.stdout is not None
            await worker.stdout.readline()
            await asyncio.sleep(plan.kill_every_seconds * (0.5 + draw.random()))
        finally:
            worker.send_signal(signal.SIGKILL)
            await worker.wait()
        report.kills += 1


async def _keep_restarting(plan: Plan, server: RedisServer, report: Report) -> None:
    while True:
        await asyncio.sleep(plan.restart_every_seconds)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        report.restarts += 1


async def _insist(call: Callable[[], Awaitable[_T]]) -> _T:
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def _accept(plan: Plan, store: JobStore, draw: random.Random) -> dict[str, tuple[Job, bytes]]:
    accepted: dict[str, tuple[Job, bytes]] = {}
    tiers, weights = zip(*plan.tiers, strict=True)
    for _ in range(plan.jobs):
        tier = draw.choices(tiers, weights)[0]
        is_window = tier is JobTier.BACKGROUND_2H
        job = new_job(
            seconds=plan.seconds,
            tier=tier,
            endpoint="/v1/responses" if is_window else "/v1/chat/completions",
            model="gpt-5-mini" if is_window else "gpt-4o-mini",
        )
        body = body_of(job)
        accepted[job.id] = (job, body)
    for part in _parts(list(accepted), _ACCEPTED_AT_ONCE):
        await asyncio.gather(*(_insist(partial(store.accept, *accepted[job_id])) for job_id in part))
    return accepted


def _parts(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


async def _all_ended(store: JobStore, jobs: int) -> None:
    while True:
        await asyncio.sleep(0.25)
        counts = (await _insist(store.census)).jobs
        assert sum(counts.values()) == jobs, f"jobs are lost: {counts}"
        if not any(counts.get(state) for state in LIVE_JOB_STATES):
            return


async def _check(
    store: JobStore, jobs: dict[str, tuple[Job, bytes]], stats: dict[str, Any], report: Report
) -> None:
    report.batches = stats["batches_created"]
    for job_id, (_, body) in jobs.items():
        job, answer = await store.get(job_id), await store.answer(job_id)
        bookings = await store.bookings(job_id)
        assert job is not None
        assert job.ended_as in (JobState.SUCCEEDED, JobState.RESCUED), (job, bookings)
        assert answer is not None, job
        assert answer.status == 200, answer
        kinds = Counter(booking.kind for booking in bookings)
        assert kinds[BookingKind.ANSWER] == 1, bookings
        executions = executions_of(stats, body)
        assert 1 <= executions <= len(bookings), (job, executions, bookings)
        report.executions += executions
        report.unknown_executions += executions - 1
        report.endings[job.ended_as.value] += 1
    twice = {line: count for line, count in stats["batch_lines"].items() if count > 1 and line not in jobs}
    assert not twice


async def _worker(store_url: str, upstream: str, name: str) -> None:
    store = RedisStore(store_url, SystemClock(), namespace=NAMESPACE)
    policies = Policies(upstream_at(upstream), RouteRules(flush_jobs=500, flush_after_seconds=0.5))
    settings = replace(
        QUICK,
        name=name,
        lease_seconds=4.0,
        idle_seconds=0.2,
        calls=24,
        batch_jobs=500,
        batches=4,
        pace_lifetime_seconds=5.0,
    )
    while True:
        try:
            await store.open()
            break
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    sys.stdout.write("at work\n")
    sys.stdout.flush()
    await Worker(kit_for(store, policies, settings)).run()


if __name__ == "__main__":
    # Nobody may be left behind by a soak that was killed itself.
    parent = os.getppid()

    def watch(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(1)
        signal.alarm(1)

    signal.signal(signal.SIGALRM, watch)
    signal.alarm(1)
    asyncio.run(_worker(*sys.argv[1:]))
