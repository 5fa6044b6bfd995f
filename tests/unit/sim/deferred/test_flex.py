from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.sim.deferred.flex import FlexCapacity
from proxy.sim.deferred.rules import FlexRules
from proxy.sim.errors import ApiError
from proxy.sim.scenario import Faults, Scenario, Timing
from tests.unit.sim.running import INSTANT, Reply, Sim

FLEX = {"service_tier": "flex"}


def misses(rules: FlexRules, seed: int = 1, count: int = 100) -> list[int]:
    capacity = FlexCapacity(rules, seed)
    found = []
    for number in range(1, count + 1):
        try:
            capacity.check(Faults())
        except ApiError:
            found.append(number)
    assert (capacity.asked, capacity.missed) == (count, len(found))
    return found


def test_there_is_capacity_unless_a_rule_says_otherwise() -> None:
    assert misses(FlexRules()) == []


def test_misses_each_so_many_th_or_a_share() -> None:
    assert misses(FlexRules(miss_every=40)) == [40, 80]
    assert 20 < len(misses(FlexRules(miss_share=0.4))) < 60
    assert misses(FlexRules(miss_share=0.4)) == misses(FlexRules(miss_share=0.4))
    assert misses(FlexRules(miss_share=0.4)) != misses(FlexRules(miss_share=0.4), seed=2)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_answers_echo_and_bill_the_tier(sim: Sim, path: str) -> None:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "x"}]}
    asked = body if "chat" in path else {"model": "gpt-4o", "input": "x"}
    answer = sim.post(path, {**asked, **FLEX}).json()
    stats = sim.stats()
    assert (answer["service_tier"], list(stats["tokens"])) == ("flex", ["flex"])
    assert list(stats["executions_by_tier"]) == ["flex"]
    assert stats["flex"] == {"asked": 1, "missed": 0}


def test_a_miss_is_not_executed_and_not_billed(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, flex=FlexRules(miss_every=2)))
    replies: list[Reply] = [sim.chat(FLEX) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 429, 200, 429]
    error = replies[1].json()["error"]
    assert error["code"] == "resource_unavailable"
    assert sim.chat().status == 200
    stats = sim.stats()
    assert (stats["executions_total"], stats["flex"]) == (3, {"asked": 4, "missed": 2})
    assert set(stats["tokens"]) == {"flex", "default"}


def test_a_miss_in_groq_s_way(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, flex=FlexRules(miss_every=1, miss_status=498)))
    reply = sim.chat(FLEX)
    assert (reply.status, reply.json()["error"]["code"]) == (498, "capacity_exceeded")


def test_a_header_decides_about_one_request(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, flex=FlexRules(miss_every=1)))
    assert sim.chat(FLEX, x_sim_flex_miss="0").status == 200
    assert sim.chat({"service_tier": "auto"}, x_sim_flex_miss="1").status == 200
    assert sim.chat(FLEX, x_sim_flex_miss="1").status == 429


def test_flex_is_slower(simulate: Callable[..., Sim]) -> None:
    timing = Timing(base_ms=10, prefill_ms_per_token=0, decode_ms_per_token=0)
    sim = simulate(Scenario(timing=timing, flex=FlexRules(slowdown=3)))
    planned = [sim.chat(body).headers["openai-processing-ms"] for body in (FLEX, {})]
    assert planned == ["30", "10"]


def test_a_provider_without_flex_refuses_it(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, flex=FlexRules(offered=False)))
    reply = sim.chat(FLEX)
    assert (reply.status, reply.json()["error"]["param"]) == (400, "service_tier")


def test_flex_is_for_chat_and_responses_only(sim: Sim) -> None:
    reply = sim.post("/v1/completions", {"model": "gpt-3.5-turbo-instruct", "prompt": "x", **FLEX})
    assert reply.status == 400
