"""A worker is killed at each step, before and after it is written: another one ends every job, once.

The provider counts executions. More than one is allowed only where every one of them is booked: a single call
cannot be asked for again, so that the one which a killed worker had under way is booked as unknown.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from proxy.jobs.model import BatchState, JobState, JobTier
from proxy.jobs.transitions import BatchEvent, JobEvent
from proxy.sim.scenario import FaultMatch, FaultRule, Faults, LineRule, Scenario
from tests.support.job_worker import FAST, QUICK, Rig, rig
from tests.support.killed_worker import LEASE_SECONDS, Bear, Killing, nursery, open_store
from tests.support.redis_server import RedisServer, running

CALL = "/v1/chat/completions"


def _at(path: str, method: str = "POST", first: int | None = 1, **do: Any) -> FaultRule:
    return FaultRule(do=Faults(**do), match=FaultMatch(path=path, method=method), first=first)


@dataclass(frozen=True)
class Case:
    """How a life goes: which jobs, at what kind of provider."""

    scenario: Scenario = FAST
    jobs: int = 3
    fields: tuple[tuple[str, Any], ...] = ()
    may_fail: bool = False


PLAIN = Case()
BUSY = Case(replace(FAST, batches=replace(FAST.batches, lines=(LineRule(status=429, first=1),))))
QUOTA = Case(replace(FAST, batches=replace(FAST.batches, enqueued_tokens=25)), jobs=4)
REFUSED = Case(replace(FAST, faults=(_at("/v1/batches", batch_refuse="invalid_request"),)))
NO_BATCHES = Case(replace(FAST, faults=(_at("/v1/files", status=405, first=None),)))
LATE = Case(
    replace(FAST, batches=replace(FAST.batches, turnaround_seconds=30.0)),
    2,
    (("seconds", 5.0), ("due_in", 0.4)),
)
DIRECT = Case(fields=(("tier", JobTier.DIRECT),), jobs=2)
FLEX = Case(fields=(("tier", JobTier.FLEX),), jobs=2)
WRONG = Case(
    replace(FAST, faults=(_at(CALL, status=400, first=None),)),
    2,
    (("tier", JobTier.DIRECT),),
    may_fail=True,
)
DOWN = Case(
    replace(FAST, faults=(_at(CALL, cut_before=True, first=None),)),
    2,
    (("tier", JobTier.DIRECT), ("seconds", 1.0)),
    may_fail=True,
)
WINDOW = Case(
    fields=(("tier", JobTier.BACKGROUND_2H), ("endpoint", "/v1/responses"), ("model", "gpt-5-mini")), jobs=2
)

STEPS: tuple[tuple[str, Case], ...] = (
    ("pack", PLAIN),
    ("batch.upload", PLAIN),
    ("batch.create", PLAIN),
    ("batch.postpone", PLAIN),
    ("batch.end", PLAIN),
    ("job.succeed", PLAIN),
    ("batch.settle", PLAIN),
    ("batch.clean", PLAIN),
    ("job.retry", BUSY),
    ("split", QUOTA),
    ("job.return", REFUSED),
    ("batch.refuse", REFUSED),
    ("batch.abandon", NO_BATCHES),
    ("job.begin_rescue", LATE),
    ("job.rescue", LATE),
    ("job.submit", DIRECT),
    ("job.succeed", FLEX),
    ("job.fail", WRONG),
    ("job.expire", DOWN),
    ("job.submit", WINDOW),
    ("job.progress", WINDOW),
    ("job.succeed", WINDOW),
)

BY_OTHERS = {JobEvent.CANCEL, JobEvent.DELIVER, JobEvent.RESET}
"""Moves that no worker makes: callers and operators do, in one step of the store."""


def test_a_worker_is_killed_at_every_move_that_it_makes() -> None:
    steps = {step for step, _ in STEPS}
    moves = {f"job.{event.value}" for event in set(JobEvent) - BY_OTHERS - {JobEvent.PACK}}
    assert moves | {f"batch.{event.value}" for event in BatchEvent} | {"pack"} <= steps


@pytest.fixture(scope="module")
def bear() -> Iterator[Bear]:
    with nursery() as bear:
        yield bear


@pytest.fixture(scope="module")
def valkey() -> Iterator[Callable[[], RedisServer]]:
    with ExitStack() as stack:
        started: list[RedisServer] = []

        def server() -> RedisServer:
            if not started:
                started.append(stack.enter_context(running("valkey")))
            return started[0]

        yield server


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("step", "case"), STEPS, ids=[f"{step}-{number}" for number, (step, _) in enumerate(STEPS)]
)
def test_another_worker_ends_every_job_once(
    kind: str,
    when: str,
    step: str,
    case: Case,
    tmp_path: Path,
    bear: Bear,
    valkey: Callable[[], RedisServer],
) -> None:
    address = f"sqlite:{tmp_path / 'jobs.db'}" if kind == "sqlite" else f"{uuid.uuid4().hex}@{valkey().url}"
    asyncio.run(_kill_and_recover(address, step, when, case, bear))


async def _kill_and_recover(address: str, step: str, when: str, case: Case, bear: Bear) -> None:
    store = open_store(address)
    await store.open()
    fields = dict(case.fields)
    due_in = fields.pop("due_in", None)
    settings = replace(QUICK, lease_seconds=LEASE_SECONDS)
    try:
        async with rig(case.scenario, store=store, settings=settings, is_running=False) as r:
            if due_in is not None:
                fields["due"] = r.kit.now() + due_in
            jobs = [await r.accept(**fields) for _ in range(case.jobs)]
            died_of = await asyncio.to_thread(bear, Killing(address, r.url, step, when))
            assert died_of == -9, f"the worker never came to {step}"
            second = asyncio.get_running_loop().create_task(r.worker.run())
            for job in jobs:
                ended = await r.ended(job)
                bookings = await r.booked(job)
                executions = await r.executions(job)
                assert executions <= max(1, len(bookings)), (ended, bookings)
                if not case.may_fail:
                    assert ended.state in (JobState.SUCCEEDED, JobState.RESCUED), ended
                    assert (await r.answer(job)).status == 200
                    assert sum(each.kind.value == "answer" for each in bookings.values()) == 1
            await _nothing_is_left(r)
            lines = (await r.stats())["batch_lines"]
            assert all(count == 1 for count in lines.values()), lines
            await r.worker.stop()
            await second
    finally:
        await store.close()


async def _nothing_is_left(r: Rig) -> None:
    async def is_clean() -> bool:
        batches = (await r.store.census()).batches
        return not any(count for state, count in batches.items() if state is not BatchState.CLEANED)

    await r.until(is_clean)
