from __future__ import annotations

from collections.abc import Callable

from proxy.sim.scenario import Scenario
from tests.unit.sim.running import ANTHROPIC, INSTANT, MESSAGES, Sim


def test_counts_what_a_message_would_be_billed_for(sim: Sim) -> None:
    body = {key: value for key, value in MESSAGES.items() if key != "max_tokens"}
    reply = sim.send("POST", "/v1/messages/count_tokens", body, ANTHROPIC)
    assert reply.json() == {"input_tokens": sim.messages().json()["usage"]["input_tokens"]}


def test_counts_what_a_response_would_be_billed_for(sim: Sim) -> None:
    body = {"model": "gpt-4o", "input": "Hello there"}
    counted = sim.post("/v1/responses/input_tokens", body).json()
    billed = sim.post("/v1/responses", body).json()["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": billed}


def test_counting_runs_no_model_and_bills_nothing(sim: Sim) -> None:
    sim.post("/v1/responses/input_tokens", {"model": "gpt-4o", "input": "Hello"})
    sim.send("GET", "/v1/models")
    stats = sim.stats()
    assert stats["executions_total"] == 0
    assert all(sum(kinds.values()) == 0 for kinds in stats["tokens"].values())


def test_lists_the_scenario_s_models(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, models=("a", "org/b"), only_listed_models=True))
    assert [model["id"] for model in sim.send("GET", "/v1/models").json()["data"]] == ["a", "org/b"]
    assert sim.send("GET", "/v1/models/org/b").json()["id"] == "org/b"
    for reply in (sim.send("GET", "/v1/models/c"), sim.chat({"model": "c"})):
        assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert sim.chat({"model": "a"}).status == 200
