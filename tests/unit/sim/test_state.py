"""What outlives a simulated provider that has a state file."""

from __future__ import annotations

import time
from pathlib import Path

from proxy.core.clock import ManualClock
from proxy.sim.scenario import Scenario
from tests.unit.sim.deferred.batching import (
    QUICK,
    body_of,
    create,
    ended,
    errors,
    line,
    lines_about,
    outputs,
    retrieve,
    retrieved_when,
    run,
    seen_as,
    slow,
)
from tests.unit.sim.running import FAST, INSTANT, running

BACKGROUND = {"model": "gpt-4o", "input": "Rivers", "background": True}


def test_files_batches_and_counters_are_there_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running(QUICK, state=state) as sim:
        sim.chat()
        batch = run(sim, lines_about(3))
        before = sim.stats()
    with running(QUICK, state=state) as sim:
        assert retrieve(sim, batch["id"]) == batch
        assert sim.get("/v1/batches").json()["data"] == [batch]
        assert sorted(outputs(sim, batch)) == ["c0", "c1", "c2"]
        after = sim.stats()
        same = ("executions", "executions_by_tier", "batch_lines", "tokens", "batches", "batches_created")
        assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_a_batch_goes_on_where_it_was_and_runs_no_line_twice(tmp_path: Path) -> None:
    state = tmp_path / "state"
    scenario, clock = slow()
    with running(scenario, clock, state) as sim:
        batch_id = create(sim, [*lines_about(7), line("bad", body_of("x", n=0))]).json()["id"]
        clock.advance(50)
        retrieved_when(sim, batch_id, lambda found: found["request_counts"]["completed"] == 4)
    with running(scenario, clock, state) as sim:
        batch = retrieve(sim, batch_id)
        assert (batch["status"], batch["request_counts"]["completed"]) == ("in_progress", 4)
        clock.advance(50)
        batch = ended(sim, batch_id)
        assert batch["request_counts"] == {"total": 8, "completed": 7, "failed": 1}
        assert (len(outputs(sim, batch)), list(errors(sim, batch))) == (7, ["bad"])
        assert sim.stats()["batch_lines"] == {f"c{number}": 1 for number in range(7)}
        assert batch["usage"]["output_tokens"] == sim.stats()["tokens"]["batch"]["output"]


def test_a_batch_goes_on_from_any_status(tmp_path: Path) -> None:
    state = tmp_path / "state"
    scenario, clock = slow()
    with running(scenario, clock, state) as sim:
        validating = create(sim, lines_about(2)).json()["id"]
        cancelling = create(sim, lines_about(2)).json()["id"]
        sim.send("POST", f"/v1/batches/{cancelling}/cancel")
    clock.advance(95)
    with running(scenario, clock, state) as sim:
        seen_as(sim, validating, "finalizing")
        assert ended(sim, cancelling)["status"] == "cancelled"
    clock.advance(5)
    with running(scenario, clock, state) as sim:
        assert len(outputs(sim, ended(sim, validating))) == 2


def test_background_responses_go_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    clock = ManualClock()
    with running(Scenario(timing=INSTANT), clock, state) as sim:
        options = {"completion_window": "2h"}
        queued = sim.post("/v1/responses", {**BACKGROUND, "background_options": options}).json()["id"]
        done = sim.post("/v1/responses", BACKGROUND).json()["id"]
        sim.stats_when(lambda found: bool(found["tokens"]))
    with running(Scenario(timing=INSTANT), clock, state) as sim:
        assert sim.get(f"/v1/responses/{done}").json()["status"] == "completed"
        assert sim.get(f"/v1/responses/{queued}").json()["status"] == "queued"
        clock.advance(7.2)
        until = time.monotonic() + 5
        while sim.get(f"/v1/responses/{queued}").json()["status"] != "completed":
            assert time.monotonic() < until
        assert sim.stats()["executions_total"] == 2


def test_ids_do_not_come_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ids = set()
    for _ in range(2):
        with running(FAST, state=state) as sim:
            ids.add(sim.upload(b"x").json()["id"])
            ids.add(sim.chat().json()["id"])
    assert len(ids) == 4


def test_attempts_at_a_body_are_still_counted(tmp_path: Path) -> None:
    state = tmp_path / "state"
    scenario, clock = slow()
    headers = {"x-sim-batch-fail-share": "0.5"}
    fates = []
    for restarts in (True, False):
        clock = ManualClock()
        kept = state if restarts else None
        found = []
        with running(scenario, clock, kept) as sim:
            batch_id = create(sim, lines_about(8), headers=headers).json()["id"]
            clock.advance(100)
            found.append(sorted(errors(sim, ended(sim, batch_id))))
            if not restarts:
                batch_id = create(sim, lines_about(8), headers=headers).json()["id"]
                clock.advance(100)
                found.append(sorted(errors(sim, ended(sim, batch_id))))
        if restarts:
            with running(scenario, clock, kept) as sim:
                batch_id = create(sim, lines_about(8), headers=headers).json()["id"]
                clock.advance(100)
                found.append(sorted(errors(sim, ended(sim, batch_id))))
        fates.append(found)
    assert fates[0] == fates[1]
    assert fates[0][0] != fates[0][1]


def test_reset_forgets_what_was_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    scenario, clock = slow()
    with running(scenario, clock, state) as sim:
        create(sim, lines_about(3_000))
        clock.advance(50)
        sim.stats_when(lambda found: bool(found["executions_total"]))
        sim.send("POST", "/sim/reset")
        again = create(sim, lines_about(2)).json()["id"]
        clock.advance(100)
        assert ended(sim, again)["status"] == "completed"
        assert sim.stats()["executions_total"] == 2
        sim.send("POST", "/sim/reset")
    with running(QUICK, state=state) as sim:
        assert sim.get("/v1/batches").json()["data"] == []
        assert sim.stats()["executions"] == {}
