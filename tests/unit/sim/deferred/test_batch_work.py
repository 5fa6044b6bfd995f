"""The course of batches: statuses, times, counts, files, whatever becomes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.sim.deferred.checking import prompt_tokens
from proxy.sim.deferred.rules import BatchRules, LineRule
from proxy.sim.scenario import Scenario
from tests.unit.sim.deferred.batching import (
    QUICK,
    body_of,
    create,
    ended,
    errors,
    jsonl,
    line,
    lines_about,
    outputs,
    results,
    retrieve,
    retrieved_when,
    run,
    seen_as,
    slow,
)
from tests.unit.sim.running import INSTANT, Sim

Start = Callable[..., Sim]


def of_lines(*rules: LineRule) -> Scenario:
    return Scenario(timing=INSTANT, batches=BatchRules(turnaround_seconds=0.02, lines=rules))


def test_answers_are_those_of_live_calls(simulate: Start) -> None:
    sim = simulate(QUICK)
    batch = run(sim, lines_about(3))
    for custom_id, result in outputs(sim, batch).items():
        live = sim.post("/v1/chat/completions", body_of(f"About {custom_id}.")).json()
        answered = result["response"]["body"]
        assert (result["response"]["status_code"], result["error"]) == (200, None)
        assert answered["choices"] == live["choices"]
        assert (answered["usage"], answered["service_tier"]) == (live["usage"], "default")
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert (batch["error_file_id"], batch["errors"], batch["model"]) == (None, None, "gpt-4o")


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/completions", {"model": "gpt-3.5-turbo-instruct", "prompt": "Rivers"}, "text_completion"),
        ("/v1/embeddings", {"model": "text-embedding-3-small", "input": ["a", "b"]}, "list"),
        ("/v1/responses", {"model": "gpt-4o", "input": "Rivers"}, "response"),
        ("/v1/moderations", {"input": "violence"}, None),
    ],
)
def test_takes_every_endpoint_that_it_answers_live(
    simulate: Start, endpoint: str, body: dict[str, Any], kind: str | None
) -> None:
    sim = simulate(QUICK)
    batch = run(sim, [line("a", body, url=endpoint)], endpoint=endpoint)
    assert batch["status"] == "completed"
    assert outputs(sim, batch)["a"]["response"]["body"].get("object") == kind


def test_goes_through_its_statuses_with_their_times(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    batch = create(sim, lines_about(4)).json()
    began = batch["created_at"]
    assert (batch["status"], batch["expires_at"] - began) == ("validating", 24 * 3600)
    assert batch["in_progress_at"] is None
    for seconds, status in ((10, "in_progress"), (80, "finalizing"), (10, "completed")):
        clock.advance(seconds)
        batch = seen_as(sim, batch["id"], status)
        assert batch[f"{status}_at"] == int(clock.wall())
    assert batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    never = ("failed_at", "expired_at", "cancelling_at", "cancelled_at")
    assert [batch[name] for name in never] == [None] * 4


def test_counts_grow_while_lines_run_evenly(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    batch_id = create(sim, lines_about(8)).json()["id"]
    clock.advance(50)
    batch = retrieved_when(sim, batch_id, lambda found: found["request_counts"]["completed"] == 4)
    assert batch["request_counts"] == {"total": 8, "completed": 4, "failed": 0}
    assert batch["output_file_id"] is None
    assert sim.stats()["executions_total"] == 4


def test_bills_at_the_batch_tier_and_counts_each_line(simulate: Start) -> None:
    sim = simulate(QUICK)
    batch = run(sim, lines_about(5))
    stats = sim.stats()
    assert stats["batch_lines"] == {f"c{number}": 1 for number in range(5)}
    assert list(stats["executions_by_tier"]) == ["batch"]
    assert stats["executions_total"] == 5
    billed = stats["tokens"]["batch"]
    assert (billed["input"], billed["output"]) == (
        batch["usage"]["input_tokens"],
        batch["usage"]["output_tokens"],
    )
    assert (stats["batches_created"], stats["batches"]) == (1, {"completed": 1})


def test_a_body_is_counted_by_its_bytes_in_the_file(simulate: Start) -> None:
    sim = simulate(QUICK)
    live = b'{"model": "gpt-4o",  "messages": [{"role": "user", "content": "Rivers"}]}'
    sim.post("/v1/chat/completions", live)
    run(sim, b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": %s}' % live)
    stats = sim.stats()
    assert list(stats["executions"].values()) == [2]
    assert stats["executions_by_tier"]["batch"] == stats["executions_by_tier"]["default"]


def test_results_are_shuffled_by_the_seed_and_nothing_else(simulate: Start) -> None:
    def order(seed: int) -> list[str]:
        sim = simulate(Scenario(seed=seed, timing=INSTANT, batches=BatchRules(turnaround_seconds=0.0)))
        batch = run(sim, lines_about(12))
        return [item["custom_id"] for item in results(sim, batch["output_file_id"])]

    first = order(1)
    assert first == order(1)
    assert first != order(2)
    assert first != sorted(first, key=lambda name: int(name[1:]))


def test_a_line_that_the_endpoint_refuses_fails_alone(simulate: Start) -> None:
    sim = simulate(QUICK)
    batch = run(sim, [line("good"), line("bad", body_of("x", n=0))])
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    failed = errors(sim, batch)["bad"]
    assert (failed["response"]["status_code"], failed["error"]) == (400, None)
    assert failed["response"]["body"]["error"]["param"] == "n"
    assert list(outputs(sim, batch)) == ["good"]


def test_without_a_single_success_there_is_no_output_file(simulate: Start) -> None:
    sim = simulate(of_lines(LineRule(status=500)))
    batch = run(sim, lines_about(3))
    assert (batch["status"], batch["output_file_id"]) == ("completed", None)
    assert batch["request_counts"] == {"total": 3, "completed": 0, "failed": 3}
    assert {item["response"]["status_code"] for item in errors(sim, batch).values()} == {500}
    assert sim.stats()["executions_total"] == 0


def test_fails_each_so_many_th_line_with_a_status(simulate: Start) -> None:
    sim = simulate(of_lines(LineRule(status=429, code="insufficient_quota", every=3)))
    batch = run(sim, lines_about(7))
    failed = errors(sim, batch)
    assert sorted(failed) == ["c2", "c5"]
    assert failed["c2"]["response"]["body"]["error"]["code"] == "insufficient_quota"


def test_fails_the_first_attempts_at_a_body_only(simulate: Start) -> None:
    sim = simulate(of_lines(LineRule(status=500, first=2)))
    attempts = [run(sim, [line(name, body_of("same"))]) for name in ("a", "b", "c")]
    assert [batch["request_counts"]["failed"] for batch in attempts] == [1, 1, 0]
    assert sim.stats()["batch_lines"] == {"c": 1}


def test_a_line_may_fail_without_a_response(simulate: Start) -> None:
    sim = simulate(of_lines(LineRule(code="request_timeout", contains="slow")))
    batch = run(sim, [line("a"), line("b", body_of("slow one"))])
    failed = errors(sim, batch)["b"]
    assert (failed["response"], failed["error"]["code"]) == (None, "request_timeout")


def test_lines_may_get_lost_or_come_twice(simulate: Start) -> None:
    rules = (LineRule(missing=True, contains="lost"), LineRule(duplicate=True, contains="twice"))
    sim = simulate(of_lines(*rules))
    batch = run(sim, [line("a"), line("b", body_of("lost")), line("c", body_of("twice"))])
    found = [item["custom_id"] for item in results(sim, batch["output_file_id"])]
    assert sorted(found) == ["a", "c", "c"]
    assert batch["error_file_id"] is None
    assert sim.stats()["batch_lines"] == {"a": 1, "c": 1}


def test_a_share_is_drawn_by_body_whatever_the_custom_ids(simulate: Start) -> None:
    def failed_texts(prefix: str) -> set[str]:
        sim = simulate(of_lines(LineRule(status=500, share=0.5)))
        texts = {f"{prefix}{number}": f"text {number}" for number in range(40)}
        batch = run(sim, [line(name, body_of(text)) for name, text in texts.items()])
        return {texts[name] for name in errors(sim, batch)}

    assert 8 < len(failed_texts("a")) < 32
    assert failed_texts("a") == failed_texts("b")


def test_headers_and_metadata_decide_about_one_batch(simulate: Start) -> None:
    sim = simulate(QUICK)
    asked = {"x-sim-batch-fail-share": "1", "x-sim-batch-fail-status": "429"}
    by_header = run(sim, lines_about(2), headers=asked)
    assert {item["response"]["status_code"] for item in errors(sim, by_header).values()} == {429}
    by_metadata = run(sim, lines_about(2), metadata={"sim_batch_missing_share": "1", "team": "a"})
    assert (by_metadata["output_file_id"], by_metadata["error_file_id"]) == (None, None)
    assert by_metadata["metadata"] == {"sim_batch_missing_share": "1", "team": "a"}
    twice = run(sim, [line("t")], headers={"x-sim-batch-duplicate-share": "1"})
    assert len(results(sim, twice["output_file_id"])) == 2
    refused = create(sim, lines_about(1), metadata={"sim_batch_lost_share": "1"})
    assert (refused.status, refused.json()["error"]["code"]) == (400, "bad_sim_header")


def test_an_expired_batch_has_what_ran_and_says_what_did_not(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    batch_id = create(sim, lines_about(8), headers={"x-sim-batch-expire-seconds": "50"}).json()["id"]
    clock.advance(1000)
    batch = ended(sim, batch_id)
    assert (batch["status"], batch["expired_at"]) == ("expired", int(clock.wall()))
    assert batch["request_counts"] == {"total": 8, "completed": 4, "failed": 4}
    assert sorted(outputs(sim, batch)) == ["c0", "c1", "c2", "c3"]
    unrun = errors(sim, batch)
    assert sorted(unrun) == ["c4", "c5", "c6", "c7"]
    assert {(item["response"], item["error"]["code"]) for item in unrun.values()} == {(None, "batch_expired")}
    assert sim.stats()["executions_total"] == 4


def test_a_batch_may_expire_before_it_was_validated(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    batch_id = create(sim, lines_about(2), headers={"x-sim-batch-expire-seconds": "1"}).json()["id"]
    clock.advance(2)
    batch = ended(sim, batch_id)
    assert (batch["status"], batch["output_file_id"]) == ("expired", None)
    assert len(errors(sim, batch)) == 2


def test_a_cancelled_batch_has_what_ran(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    batch_id = create(sim, lines_about(8)).json()["id"]
    clock.advance(30)
    retrieved_when(sim, batch_id, lambda found: found["request_counts"]["completed"] == 2)
    cancelling = sim.send("POST", f"/v1/batches/{batch_id}/cancel").json()
    assert (cancelling["status"], cancelling["cancelling_at"]) == ("cancelling", int(clock.wall()))
    again = sim.send("POST", f"/v1/batches/{batch_id}/cancel")
    assert (again.status, again.json()["status"]) == (200, "cancelling")
    clock.advance(5)
    batch = ended(sim, batch_id)
    assert (batch["status"], batch["cancelled_at"]) == ("cancelled", int(clock.wall()))
    assert sorted(outputs(sim, batch)) == ["c0", "c1"]
    assert {item["error"]["code"] for item in errors(sim, batch).values()} == {"batch_cancelled"}
    assert batch["request_counts"] == {"total": 8, "completed": 2, "failed": 6}
    refused = sim.send("POST", f"/v1/batches/{batch_id}/cancel")
    assert (refused.status, "cancelled" in refused.json()["error"]["message"]) == (409, True)
    assert sim.stats()["executions_total"] == 2


def test_a_batch_cancelled_before_validation_never_runs(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    batch_id = create(sim, jsonl(lines_about(2)) + b"{nope\n").json()["id"]
    sim.send("POST", f"/v1/batches/{batch_id}/cancel")
    clock.advance(100)
    batch = ended(sim, batch_id)
    assert (batch["status"], batch["output_file_id"]) == ("cancelled", None)
    assert sorted(errors(sim, batch)) == ["c0", "c1"]
    assert sim.stats()["executions_total"] == 0


def test_the_enqueued_token_quota_refuses_the_whole_batch(simulate: Start) -> None:
    limit = 4 * prompt_tokens(body_of("About c0."))
    scenario, clock = slow(enqueued_tokens=limit)
    sim = simulate(scenario, clock)
    first = create(sim, lines_about(2)).json()["id"]
    clock.advance(20)
    seen_as(sim, first, "in_progress")
    second = create(sim, lines_about(3)).json()["id"]
    other = create(sim, lines_about(3), key="other").json()["id"]
    clock.advance(20)
    refused = ended(sim, second)
    assert (refused["status"], refused["failed_at"]) == ("failed", int(clock.wall()))
    (error,) = refused["errors"]["data"]
    assert (error["code"], error["line"], error["param"]) == ("token_limit_exceeded", None, None)
    assert f"Limit: {limit} enqueued tokens" in error["message"]
    assert (refused["output_file_id"], refused["error_file_id"]) == (None, None)
    assert refused["request_counts"]["total"] == 0
    assert (
        retrieved_when(sim, other, lambda found: found["status"] != "validating", "other")["errors"] is None
    )
    clock.advance(100)
    assert ended(sim, first)["status"] == "completed"
    third = create(sim, lines_about(3)).json()["id"]
    clock.advance(100)
    assert ended(sim, third)["status"] == "completed"


def test_a_refusal_may_be_asked_for(simulate: Start) -> None:
    sim = simulate(QUICK)
    batch = run(sim, lines_about(1), headers={"x-sim-batch-refuse": "billing_hard_limit_reached"})
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "billing_hard_limit_reached")
    assert sim.stats()["executions_total"] == 0


def test_result_files_expire_as_asked(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    asked = {"anchor": "created_at", "seconds": 3600}
    batch_id = create(sim, lines_about(1), output_expires_after=asked).json()["id"]
    clock.advance(100)
    file_id = ended(sim, batch_id)["output_file_id"]
    file = sim.get(f"/v1/files/{file_id}").json()
    assert (file["purpose"], file["expires_at"] - file["created_at"]) == ("batch_output", 3600)
    clock.advance(3601)
    assert sim.get(f"/v1/files/{file_id}/content").status == 404
    assert retrieve(sim, batch_id)["status"] == "completed"


def test_the_input_file_may_be_deleted_once_the_batch_exists(simulate: Start) -> None:
    scenario, clock = slow()
    sim = simulate(scenario, clock)
    batch = create(sim, lines_about(2)).json()
    assert sim.send("DELETE", f"/v1/files/{batch['input_file_id']}").status == 200
    clock.advance(100)
    assert ended(sim, batch["id"])["request_counts"]["completed"] == 2


def test_a_conversation_of_a_batch_can_be_followed_up(simulate: Start) -> None:
    sim = simulate(QUICK)
    body = {"model": "gpt-4o", "input": "Rivers"}
    batch = run(sim, [line("a", body, url="/v1/responses")], endpoint="/v1/responses")
    answered = outputs(sim, batch)["a"]["response"]["body"]["id"]
    follow_up = {"model": "gpt-4o", "input": "More", "previous_response_id": answered}
    assert sim.post("/v1/responses", follow_up).status == 200


def test_live_calls_are_answered_while_a_large_batch_runs(simulate: Start) -> None:
    sim = simulate(QUICK)
    batch_id = create(sim, lines_about(2_000)).json()["id"]
    answered = 0
    while retrieve(sim, batch_id)["status"] != "completed":
        assert sim.chat().status == 200
        answered += 1
    assert answered > 5
    assert len(results(sim, retrieve(sim, batch_id)["output_file_id"])) == 2_000


def test_lone_surrogates_and_unicode_survive(simulate: Start) -> None:
    sim = simulate(QUICK)
    raw = json.dumps(line("\u2028é", body_of("\ud83d")))
    batch = run(sim, raw.encode())
    assert (batch["status"], list(outputs(sim, batch))) == ("completed", ["\u2028é"])
