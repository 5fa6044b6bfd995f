"""P4: a job is in the store before anyone is told that it is accepted; no kill loses it, none doubles it."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.sim.scenario import BatchRules
from tests.functional.test_batch_lane_failures import ALICE, CHAT, written
from tests.support.job_worker import FAST
from tests.support.weir_process import WeirProcess, weir_process
from tests.unit.sim.running import running

SCENARIO = replace(FAST, batches=BatchRules(turnaround_seconds=1.0, creations_per_hour=0))
TICKET = [*ALICE, ("Prefer", "respond-async")]


def ticket(process: WeirProcess, number: int) -> str:
    body = CHAT.replace(b"late", b"late %d" % number)
    answer = process.client().request("POST", "/v1/chat/completions", body, TICKET)
    assert answer.status == 202
    return answer.header("location") or ""


def answered(process: WeirProcess, where: str, seconds: float = 60.0) -> bytes:
    until = time.monotonic() + seconds
    while True:
        answer = process.client().request("GET", where, headers=ALICE)
        if answer.status != 202:
            assert answer.status == 200, answer
            return answer.body
        assert time.monotonic() < until, f"{where} did not end"
        time.sleep(0.05)


@pytest.mark.timeout(90)
def test_what_was_acknowledged_outlives_a_kill_and_is_done_once(tmp_path: Path) -> None:
    """The process dies the moment that the last ticket is out; its successor has every job.

    Nothing is packed by then on an idle machine; where it is, a dead worker's lease has to run out first.
    """
    with running(SCENARIO) as sim:
        policy, prices = written(tmp_path, sim, tiers="batch", after="3s")
        options = ["--policies", policy, "--store", f"sqlite:{tmp_path / 'jobs.db'}", "--prices", prices]
        with weir_process(tmp_path, None, *options) as first:
            places = [ticket(first, number) for number in range(5)]
            first.signal(signal.SIGKILL)
            first.process.wait(10)
        with weir_process(tmp_path, None, *options) as second:
            bodies = [answered(second, where) for where in places]
            stats = sim.stats()
    assert all(json.loads(body)["choices"] for body in bodies)
    assert sorted(stats["batch_lines"].values()) == [1, 1, 1, 1, 1]
    assert stats["executions_total"] == 5
