"""The path of a request through the simulated provider: faults, keys, limits, slots, billing, counters."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Callable

import pytest

from proxy.core.clock import ManualClock
from proxy.sim.scenario import (
    CacheRules,
    FaultMatch,
    FaultRule,
    Faults,
    LimitRules,
    Scenario,
    SlotRules,
    Timing,
)
from tests.unit.sim.running import CHAT, INSTANT, Sim

SLOW_PREFILL = Timing(base_ms=0, prefill_ms_per_token=0.5, decode_ms_per_token=0)


def hold(sim: Sim, body: object = CHAT) -> http.client.HTTPConnection:
    """Send a request that gets no answer before its connection is closed."""
    connection = sim.open()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"x-sim-first-byte-ms": "20000"})
    return connection


def test_counts_each_execution_of_a_body(sim: Sim) -> None:
    for _ in range(2):
        sim.chat()
    sim.chat({"n": 2})
    sim.chat({"n": 0})
    sim.chat(x_sim_status="503")
    stats = sim.stats()
    assert stats["executions"][hashlib.sha256(json.dumps(CHAT).encode()).hexdigest()] == 2
    assert stats["executions_total"] == 3
    assert stats["requests"] == {"/v1/chat/completions": 5}
    assert stats["statuses"] == {"200": 3, "400": 1, "503": 1}
    assert stats["faults"] == {"status": 1}


def test_answers_with_the_status_that_a_header_asks_for(sim: Sim) -> None:
    reply = sim.chat(x_sim_status="429", x_sim_retry_after="0.3", x_sim_error_code="resource_unavailable")
    assert (reply.status, reply.headers["retry-after"], reply.headers["retry-after-ms"]) == (429, "1", "300")
    assert reply.json()["error"]["code"] == "resource_unavailable"
    assert sim.messages(x_sim_status="529").json()["error"]["type"] == "overloaded_error"


def test_a_misspelt_fault_header_is_refused(sim: Sim) -> None:
    reply = sim.chat(x_sim_statsu="503")
    assert (reply.status, reply.json()["error"]["code"]) == (400, "bad_sim_header")


def test_a_scenario_s_fault_hits_and_a_header_goes_over_it(simulate: Callable[..., Sim]) -> None:
    rule = FaultRule(Faults(status=503), FaultMatch(model="gpt-4o"), first=2)
    sim = simulate(Scenario(timing=INSTANT, faults=(rule,)))
    assert [sim.chat({"model": "other"}).status, sim.chat().status] == [200, 503]
    assert sim.chat(x_sim_status="500").status == 500
    assert sim.chat().status == 200


def test_only_accepted_keys_get_in(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, api_keys=("sk-sim",)))
    refused = sim.chat(authorization="Bearer sk-other")
    assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "sk-other" not in refused.body.decode()
    assert sim.chat().status == 401
    assert sim.chat(authorization="Bearer sk-sim").status == 200
    assert sim.messages(x_api_key="sk-sim").status == 200
    assert sim.messages().json()["error"]["type"] == "authentication_error"


def test_rate_limits_show_in_headers_and_refill_with_the_clock(simulate: Callable[..., Sim]) -> None:
    clock = ManualClock()
    sim = simulate(Scenario(timing=INSTANT, limits=LimitRules(requests_per_minute=1)), clock)
    first, second = sim.chat(), sim.chat()
    assert (first.status, first.headers["x-ratelimit-remaining-requests"]) == (200, "0")
    assert (second.status, second.headers["retry-after"]) == (429, "60")
    assert second.headers["x-ratelimit-limit-requests"] == "1"
    assert sim.chat(authorization="Bearer other").status == 200
    clock.advance(60)
    assert sim.chat().status == 200
    assert sim.stats()["executions_total"] == 3


def test_the_requested_cap_counts_towards_tokens_per_minute(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, limits=LimitRules(tokens_per_minute=1000)))
    assert sim.chat({"max_tokens": 900}).status == 200
    refused = sim.chat({"max_tokens": 900})
    assert (refused.status, refused.json()["error"]["type"]) == (429, "tokens")
    assert sim.chat({"max_tokens": 5}).status == 200


def test_a_prompt_beyond_the_context_is_refused(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, context_tokens=100))
    assert sim.chat({"max_tokens": 88}).status == 200
    refused = sim.chat({"max_tokens": 89})
    assert (refused.status, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "prompt is too long" in sim.messages({"max_tokens": 100}).json()["error"]["message"]


def test_requests_beyond_the_slots_wait_their_turn(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, slots=SlotRules(concurrent=2)))
    holders = [hold(sim) for _ in range(2)]
    sim.stats_when(lambda found: found["in_work"] == 2)
    statuses: list[int] = []
    waiting = threading.Thread(target=lambda: statuses.append(sim.chat().status))
    waiting.start()
    stats = sim.stats_when(lambda found: found["queued"] == 1)
    assert (stats["in_work"], stats["queued"], stats["executions_total"]) == (2, 1, 2)
    holders[0].close()
    waiting.join()
    assert statuses == [200]
    stats = sim.stats()
    assert (stats["most_in_work"], stats["most_queued"], stats["executions_total"]) == (2, 1, 3)
    holders[1].close()


def test_a_full_queue_is_refused(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, slots=SlotRules(concurrent=1, max_queued=0)))
    holder = hold(sim)
    sim.stats_when(lambda found: found["in_work"] == 1)
    assert sim.chat().status == 503
    holder.close()


def test_a_prefix_is_cached_only_once_the_first_answer_has_begun(simulate: Callable[..., Sim]) -> None:
    rules = CacheRules(min_tokens=64, granularity_tokens=16)
    sim = simulate(Scenario(timing=INSTANT, cache=rules))
    body = {**CHAT, "messages": [{"role": "user", "content": "rule " * 100}]}

    def cached() -> int:
        return int(sim.chat(body).json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    leader = hold(sim, body)
    sim.stats_when(lambda found: found["in_work"] == 1)
    assert [cached(), cached()] == [0, 96]
    leader.close()


def test_cached_tokens_need_no_prefill_and_expire(simulate: Callable[..., Sim]) -> None:
    clock = ManualClock()
    rules = CacheRules(min_tokens=64, granularity_tokens=1, lifetime_seconds=60)
    sim = simulate(Scenario(timing=SLOW_PREFILL, cache=rules), clock)
    body = {"messages": [{"role": "user", "content": "rule " * 200}]}

    def planned_ms() -> int:
        return int(sim.chat(body).headers["openai-processing-ms"])

    assert [planned_ms(), planned_ms()] == [104, 0]
    clock.advance(61)
    assert planned_ms() == 104


def test_callers_do_not_share_a_cache(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, cache=CacheRules(min_tokens=64, granularity_tokens=16)))
    body = {"messages": [{"role": "user", "content": "rule " * 100}]}
    sim.chat(body, authorization="Bearer a")
    usage = sim.chat(body, authorization="Bearer b").json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_bills_by_kind(sim: Sim) -> None:
    usage = sim.chat({"model": "o4-mini", "n": 2}).json()["usage"]
    billed = sim.stats()["tokens"]["default"]
    assert billed["input"] == usage["prompt_tokens"]
    assert billed["reasoning"] == 128
    assert billed["output"] + billed["reasoning"] == usage["completion_tokens"]


def test_reset_forgets_everything(simulate: Callable[..., Sim]) -> None:
    rule = FaultRule(Faults(status=503), first=1)
    sim = simulate(Scenario(timing=INSTANT, faults=(rule,), limits=LimitRules(requests_per_minute=1)))
    assert [sim.chat().status, sim.chat().status, sim.chat().status] == [503, 200, 429]
    assert sim.send("POST", "/sim/reset").status == 204
    assert sim.stats()["requests"] == {}
    assert [sim.chat().status, sim.chat().status, sim.chat().status] == [503, 200, 429]


def test_ids_repeat_after_a_reset(sim: Sim) -> None:
    first = sim.chat().json()["id"]
    sim.send("POST", "/sim/reset")
    assert sim.chat().json()["id"] == first


def test_every_answer_has_a_request_id(sim: Sim) -> None:
    replies = [sim.chat(), sim.chat({"n": 0}), sim.chat({"stream": True}), sim.chat(x_sim_status="500")]
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len(set(ids)) == 4
    assert all(reply.headers["server"] == "weir-sim" for reply in replies)


def test_a_status_may_come_after_the_work(sim: Sim) -> None:
    for body in ({}, {"stream": True}):
        assert sim.chat(body, x_sim_status_after="502").status == 502
    stats = sim.stats()
    assert (stats["executions_total"], stats["faults"]) == (2, {"status_after": 2})
    assert stats["tokens"]["default"]["output"] > 0


def test_a_gateway_s_error_is_a_web_page(sim: Sim) -> None:
    reply = sim.chat(x_sim_status="504", x_sim_error_html="1")
    assert (reply.status, reply.headers["content-type"]) == (504, "text/html; charset=utf-8")
    assert reply.body.startswith(b"<html>")


def test_a_connection_may_close_before_anything_is_done(sim: Sim) -> None:
    with pytest.raises(ConnectionError):
        sim.chat(x_sim_cut_before="1")
    stats = sim.stats()
    assert (stats["executions_total"], stats["faults"]) == (0, {"cut_before": 1})
    assert stats["disconnects"] == {"before_first_byte": 0, "midway": 0}


def test_a_provider_may_never_answer_and_do_nothing(sim: Sim) -> None:
    connection = sim.open()
    connection.timeout = 0.1
    connection.request("POST", "/v1/chat/completions", json.dumps(CHAT), {"x-sim-stall-before": "1"})
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    stats = sim.stats_when(lambda found: found["disconnects"]["before_first_byte"] == 1)
    assert (stats["executions_total"], stats["faults"]) == (0, {"stall_before": 1})


def test_a_body_that_no_provider_takes_is_refused_at_once(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario())
    reply = sim.chat({"messages": [{"role": "user", "content": "m" * 34_000_000}]})
    assert reply.status == 413
    assert reply.json()["error"]["code"] == "request_too_large"


def test_buffered_answers_are_billed_as_they_say(simulate: Callable[..., Sim]) -> None:
    timing = Timing(base_ms=0.3, prefill_ms_per_token=0, decode_ms_per_token=0.17)
    sim = simulate(Scenario(timing=timing))
    said = sum(sim.chat({"max_tokens": 30}).json()["usage"]["completion_tokens"] for _ in range(40))
    assert sim.stats()["tokens"]["default"]["output"] == said
