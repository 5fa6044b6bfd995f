from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.clock import ManualClock
from proxy.sim.deferred.rules import BatchRules
from proxy.sim.scenario import FaultMatch, FaultRule, Faults, LimitRules, Scenario
from tests.unit.sim.deferred.batching import (
    QUICK,
    create,
    ended,
    jsonl,
    lines_about,
    retrieve,
    run,
    slow,
)
from tests.unit.sim.running import INSTANT, Sim, as_caller

Start = Callable[..., Sim]


def test_a_new_batch_has_the_whole_object(sim: Sim) -> None:
    batch = create(sim, lines_about(1), metadata={"proxy_batch": "x"}).json()
    assert set(batch) == {
        "id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window", "status",
        "output_file_id", "error_file_id", "created_at", "in_progress_at", "expires_at", "finalizing_at",
        "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at", "request_counts", "usage",
        "metadata",
    }  # fmt: skip
    assert (batch["object"], batch["status"], batch["metadata"]) == (
        "batch",
        "validating",
        {"proxy_batch": "x"},
    )


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"completion_window": None}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k" * 65: "v"}}, f"metadata.{'k' * 65}"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "later", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"priority": 1}, "priority"),
    ],
)
def test_refuses_a_wrong_create(sim: Sim, changes: dict[str, Any], param: str) -> None:
    file_id = sim.upload(jsonl(lines_about(1))).json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    reply = sim.post("/v1/batches", {**body, **changes})
    assert (reply.status, reply.json()["error"]["param"]) == (400, param)
    assert sim.get("/v1/batches").json()["data"] == []


def test_refuses_a_file_of_another_purpose(sim: Sim) -> None:
    file_id = sim.upload(jsonl(lines_about(1)), purpose="user_data").json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert "purpose" in sim.post("/v1/batches", body).json()["error"]["message"]


def test_a_provider_may_offer_other_windows(simulate: Start) -> None:
    sim = simulate(Scenario(timing=INSTANT, batches=BatchRules(windows=("24h", "7d"))))
    batch = create(sim, lines_about(1), completion_window="7d").json()
    assert batch["expires_at"] - batch["created_at"] == 7 * 24 * 3600


def test_lists_newest_first_in_pages(sim: Sim) -> None:
    ids = [create(sim, lines_about(1)).json()["id"] for _ in range(3)]
    first = sim.get("/v1/batches?limit=2").json()
    assert [batch["id"] for batch in first["data"]] == [ids[2], ids[1]]
    assert first["has_more"] is True
    second = sim.get(f"/v1/batches?limit=2&after={ids[1]}").json()
    assert ([batch["id"] for batch in second["data"]], second["has_more"]) == ([ids[0]], False)
    assert sim.get("/v1/batches?limit=101").status == 400
    assert sim.get("/v1/batches?after=batch_none").status == 400


def test_a_caller_sees_its_own_batches_only(sim: Sim) -> None:
    batch_id = create(sim, lines_about(1), key="a").json()["id"]
    for key, status in (("b", 404), ("a", 200)):
        assert sim.get(f"/v1/batches/{batch_id}", key).status == status
        assert sim.send("POST", f"/v1/batches/{batch_id}/cancel", None, as_caller(key)).status == status
    assert sim.get("/v1/batches", "b").json()["data"] == []
    foreign = sim.upload(jsonl(lines_about(1)), key="a").json()["id"]
    body = {"input_file_id": foreign, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert sim.send("POST", "/v1/batches", body, as_caller("b")).status == 400


def test_an_unknown_batch_is_not_found(sim: Sim) -> None:
    for reply in (sim.get("/v1/batches/batch_none"), sim.send("POST", "/v1/batches/batch_none/cancel")):
        assert (reply.status, reply.json()["error"]["type"]) == (404, "invalid_request_error")


def test_creations_are_limited_by_the_hour(simulate: Start) -> None:
    clock = ManualClock()
    sim = simulate(Scenario(timing=INSTANT, batches=BatchRules(creations_per_hour=2)), clock)
    assert [create(sim, lines_about(1)).status for _ in range(2)] == [200, 200]
    refused = create(sim, lines_about(1))
    assert (refused.status, refused.headers["retry-after"]) == (429, "3600")
    assert create(sim, lines_about(1), key="other").status == 200
    clock.advance(3600)
    assert create(sim, lines_about(1)).status == 200


def test_batches_leave_the_live_rate_limits_alone(simulate: Start) -> None:
    rules = BatchRules(turnaround_seconds=0.0)
    sim = simulate(Scenario(timing=INSTANT, limits=LimitRules(requests_per_minute=1), batches=rules))
    assert run(sim, lines_about(5))["request_counts"]["completed"] == 5
    assert [sim.chat().status, sim.chat().status] == [200, 429]


def test_a_create_may_be_done_and_its_answer_lost(simulate: Start) -> None:
    sim = simulate(QUICK)
    tag = {"tag": "t"}
    with pytest.raises(ConnectionError):
        create(sim, lines_about(1), headers={"x-sim-cut-after": "0"}, metadata=tag)
    answered = {"x-sim-status-after": "502", "x-sim-error-html": "1"}
    reply = create(sim, lines_about(1), headers=answered, metadata=tag)
    assert (reply.status, reply.headers["content-type"]) == (502, "text/html; charset=utf-8")
    found = sim.get("/v1/batches").json()["data"]
    assert [batch["metadata"] for batch in found] == [tag, tag]
    assert all(ended(sim, batch["id"])["status"] == "completed" for batch in found)
    assert sim.stats()["batches_created"] == 2


def test_a_create_may_be_lost_before_it_is_done(simulate: Start) -> None:
    sim = simulate(QUICK)
    with pytest.raises(ConnectionError):
        create(sim, lines_about(1), headers={"x-sim-cut-before": "1"})
    assert create(sim, lines_about(1), headers={"x-sim-status": "503"}).status == 503
    stats = sim.stats()
    assert (stats["batches_created"], stats["faults"]) == (0, {"cut_before": 1, "status": 1})


def test_a_scenario_s_rule_is_for_one_method_and_may_wait(simulate: Start) -> None:
    match = FaultMatch(path="/v1/batches/*", method="get")
    rule = FaultRule(Faults(status=404), match, skip=2)
    sim = simulate(Scenario(timing=INSTANT, faults=(rule,)))
    batch_id = create(sim, lines_about(1)).json()["id"]
    assert [sim.get(f"/v1/batches/{batch_id}").status for _ in range(4)] == [200, 200, 404, 404]
    assert sim.send("POST", f"/v1/batches/{batch_id}/cancel").status == 200


def test_reset_forgets_files_and_batches(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    batch = create(sim, lines_about(1)).json()
    sim.send("POST", "/sim/reset")
    assert sim.get(f"/v1/files/{batch['input_file_id']}").status == 404
    assert retrieve(sim, batch["id"])["error"]["type"] == "invalid_request_error"
    assert sim.stats()["batches_created"] == 0
