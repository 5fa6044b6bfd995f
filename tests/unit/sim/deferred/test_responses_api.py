from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.clock import ManualClock
from proxy.sim.deferred.rules import BackgroundRules
from proxy.sim.scenario import Scenario, Timing
from tests.unit.sim.running import INSTANT, Reply, Sim, as_caller

PATH = "/v1/responses"
BASE: dict[str, Any] = {"model": "gpt-4o", "input": "Tell me about rivers."}
LATER = {**BASE, "background": True}
FINAL = ("completed", "failed", "cancelled", "incomplete")
WRITING = Timing(base_ms=0, prefill_ms_per_token=0, decode_ms_per_token=1000)

Start = Callable[..., Sim]


def ask(sim: Sim, changes: dict[str, Any] | None = None, **headers: str) -> Reply:
    return sim.post(PATH, {**LATER, **(changes or {})}, **headers)


def window(name: str) -> dict[str, Any]:
    return {"background_options": {"completion_window": name}}


def seen_as(sim: Sim, response_id: str, *statuses: str) -> Any:
    """Return the response as soon as it has one of `statuses`; whatever it is after five seconds."""
    until = time.monotonic() + 5
    while (found := sim.get(f"{PATH}/{response_id}").json())["status"] not in statuses:
        assert time.monotonic() < until, found
        time.sleep(0.005)
    return found


def text_of(response: Any) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def test_is_accepted_at_once_and_answered_as_in_the_foreground(sim: Sim) -> None:
    accepted = ask(sim).json()
    assert (accepted["status"], accepted["background"], accepted["output"]) == ("queued", True, [])
    done = seen_as(sim, accepted["id"], "completed")
    live = sim.post(PATH, BASE).json()
    assert (text_of(done), done["usage"]) == (text_of(live), live["usage"])
    assert (done["id"], done["background"], done["completed_at"] is None) == (accepted["id"], True, False)


def test_is_queued_then_in_progress_then_completed(simulate: Start) -> None:
    clock = ManualClock()
    sim = simulate(Scenario(timing=WRITING), clock)
    response_id = ask(sim, {**window("2h")}, x_sim_tokens="4").json()["id"]
    assert sim.stats()["executions_total"] == 0
    clock.advance(7.2)
    assert seen_as(sim, response_id, "in_progress")["usage"] is None
    clock.advance(2.9)
    time.sleep(0.03)
    assert seen_as(sim, response_id, "in_progress")
    clock.advance(0.1)
    done = seen_as(sim, response_id, "completed")
    assert done["completed_at"] - done["created_at"] == 10
    assert done["service_tier"] == "default"


@pytest.mark.parametrize(
    ("name", "tier"), [("soonest", "default"), ("2h", "background_2h"), ("8h", "background_8h")]
)
def test_each_window_is_billed_as_itself(simulate: Start, name: str, tier: str) -> None:
    sim = simulate(Scenario(timing=INSTANT, background=BackgroundRules(time_factor=0)))
    response = seen_as(sim, ask(sim, window(name)).json()["id"], "completed")
    stats = sim.stats()
    assert list(stats["executions_by_tier"]) == [tier]
    assert stats["tokens"][tier]["output"] == response["usage"]["output_tokens"]


def test_windows_are_scaled(simulate: Start) -> None:
    clock = ManualClock()
    rules = BackgroundRules(time_factor=0.01, soonest_seconds=10)
    sim = simulate(Scenario(timing=INSTANT, background=rules), clock)
    ids = {name: ask(sim, window(name)).json()["id"] for name in ("soonest", "2h", "8h")}
    for seconds, name in ((10, "soonest"), (62, "2h"), (216, "8h")):
        clock.advance(seconds - 0.5)
        time.sleep(0.03)
        assert seen_as(sim, ids[name], "queued")
        clock.advance(0.5)
        assert seen_as(sim, ids[name], "completed")


def test_flex_in_the_background_may_find_no_capacity(sim: Sim) -> None:
    assert ask(sim, {"service_tier": "flex"}, x_sim_flex_miss="1").status == 429
    done = seen_as(sim, ask(sim, {"service_tier": "flex"}).json()["id"], "completed")
    assert (done["service_tier"], list(sim.stats()["tokens"])) == ("flex", ["flex"])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({**window("2h"), "stream": True}, "stream"),
        ({**window("8h"), "stream": True}, "stream"),
        ({"stream": True}, "stream"),
        ({**window("2h"), "background": False}, "background_options.completion_window"),
        ({**window("8h"), "service_tier": "flex"}, "service_tier"),
        ({**window("8h"), "service_tier": "priority"}, "service_tier"),
        (window("24h"), "background_options.completion_window"),
        ({"background_options": {"window": "2h"}}, "background_options.window"),
        ({"background_options": "2h"}, "background_options"),
        ({"background_options": {"continuation_id": 5}}, "continuation_id"),
        ({"background": "yes"}, "background"),
        ({"input": None}, "input"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)
def test_what_is_wrong_is_refused_at_once(sim: Sim, changes: dict[str, Any], param: str) -> None:
    reply = ask(sim, changes)
    assert (reply.status, reply.json()["error"]["param"]) == (400, param)


def test_a_continuation_id_and_the_default_tier_are_accepted(sim: Sim) -> None:
    options = {"completion_window": "8h", "continuation_id": "opaque"}
    assert ask(sim, {"background_options": options, "service_tier": "default", "stream": False}).status == 200


def test_a_cap_leaves_it_incomplete(sim: Sim) -> None:
    done = seen_as(sim, ask(sim, {"max_output_tokens": 16}).json()["id"], *FINAL)
    assert (done["status"], done["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_it_may_fail(sim: Sim) -> None:
    done = seen_as(sim, ask(sim, x_sim_background_fail="1").json()["id"], *FINAL)
    assert (done["status"], done["error"]["code"], done["output"]) == ("failed", "server_error", [])
    assert sim.stats()["tokens"] == {}


def test_cancelling_is_idempotent_and_bills_what_was_written(simulate: Start) -> None:
    clock = ManualClock()
    sim = simulate(Scenario(timing=WRITING), clock)
    response_id = ask(sim, x_sim_tokens="9").json()["id"]
    seen_as(sim, response_id, "in_progress")
    clock.advance(3.5)
    cancelled = [sim.send("POST", f"{PATH}/{response_id}/cancel") for _ in range(2)]
    assert [(reply.status, reply.json()["status"]) for reply in cancelled] == [(200, "cancelled")] * 2
    billed = sim.stats_when(lambda found: bool(found["tokens"]))["tokens"]["default"]
    assert billed["output"] == 4
    clock.advance(100)
    time.sleep(0.03)
    assert sim.get(f"{PATH}/{response_id}").json()["status"] == "cancelled"
    assert sim.stats()["tokens"]["default"] == billed


def test_a_queued_one_is_cancelled_for_nothing(sim: Sim) -> None:
    response_id = ask(sim, x_sim_background_seconds="60").json()["id"]
    assert sim.send("POST", f"{PATH}/{response_id}/cancel").json()["status"] == "cancelled"
    stats = sim.stats()
    assert (stats["executions_total"], stats["tokens"]) == (0, {})


def test_cancelling_what_is_done_changes_nothing(sim: Sim) -> None:
    done = seen_as(sim, ask(sim).json()["id"], "completed")
    assert sim.send("POST", f"{PATH}/{done['id']}/cancel").json() == done


def test_what_was_answered_at_once_can_be_retrieved_but_not_cancelled(sim: Sim) -> None:
    live = sim.post(PATH, BASE).json()
    assert sim.get(f"{PATH}/{live['id']}").json() == live
    refused = sim.send("POST", f"{PATH}/{live['id']}/cancel")
    assert (refused.status, "synchronous" in refused.json()["error"]["message"]) == (400, True)
    unstored = sim.post(PATH, {**BASE, "store": False}).json()
    assert sim.get(f"{PATH}/{unstored['id']}").status == 404


def test_a_deleted_response_is_gone_and_its_work_ends(sim: Sim) -> None:
    response_id = ask(sim, x_sim_background_seconds="0.05").json()["id"]
    deleted = sim.send("DELETE", f"{PATH}/{response_id}").json()
    assert deleted == {"id": response_id, "object": "response", "deleted": True}
    time.sleep(0.1)
    for reply in (
        sim.get(f"{PATH}/{response_id}"),
        sim.send("DELETE", f"{PATH}/{response_id}"),
        sim.send("POST", f"{PATH}/{response_id}/cancel"),
    ):
        assert (reply.status, reply.json()["error"]["type"]) == (404, "invalid_request_error")
    assert sim.stats()["executions_total"] == 0


def test_an_unstored_one_can_be_polled_for_a_while(simulate: Start) -> None:
    clock = ManualClock()
    sim = simulate(Scenario(timing=INSTANT), clock)
    response_id = ask(sim, {"store": False}).json()["id"]
    seen_as(sim, response_id, "completed")
    clock.advance(601)
    assert sim.get(f"{PATH}/{response_id}").status == 404


def test_a_caller_sees_its_own_responses_only(sim: Sim) -> None:
    response_id = sim.send("POST", PATH, LATER, as_caller("a")).json()["id"]
    assert [sim.get(f"{PATH}/{response_id}", key).status for key in ("a", "b")] == [200, 404]
    assert sim.send("DELETE", f"{PATH}/{response_id}", None, as_caller("b")).status == 404


def test_a_follow_up_of_a_finished_one_is_possible(sim: Sim) -> None:
    done = seen_as(sim, ask(sim).json()["id"], "completed")
    assert sim.post(PATH, {**BASE, "previous_response_id": done["id"]}).status == 200


def test_stored_responses_are_not_streamed(sim: Sim) -> None:
    live = sim.post(PATH, BASE).json()
    assert sim.get(f"{PATH}/{live['id']}?stream=true").status == 400


def test_an_accepted_one_counts_towards_the_rate_limits_once(sim: Sim) -> None:
    response_id = ask(sim).json()["id"]
    seen_as(sim, response_id, "completed")
    assert sim.stats()["requests"][PATH] == 1
