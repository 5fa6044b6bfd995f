from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema

from proxy.sim.scenario import CacheRules, Scenario
from tests.unit.sim.running import INSTANT, WEATHER_SCHEMA, Sim

WEATHER = {"name": "get_weather", "input_schema": WEATHER_SCHEMA}
THINKING = {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}


def deltas(events: list[Any], kind: str, field: str) -> str:
    found = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta[field] for delta in found if delta["type"] == kind)


def test_answers_with_a_text_block(sim: Sim) -> None:
    reply = sim.messages()
    message = reply.json()
    assert reply.headers["request-id"].startswith("req_")
    assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "end_turn")
    assert message["content"][0]["text"]
    assert message["usage"]["input_tokens"] == 9


def test_a_stream_says_the_same_as_a_buffered_answer(sim: Sim) -> None:
    whole = sim.messages().json()
    events = sim.messages({"stream": True}).events()
    assert deltas(events, "text_delta", "text") == whole["content"][0]["text"]
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["delta"]["stop_reason"] == "end_turn"


def test_events_are_named_and_in_order(sim: Sim) -> None:
    reply = sim.messages({"stream": True}, x_sim_tokens="2")
    assert reply.names() == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [event["type"] for event in reply.events()] == reply.names()


def test_the_cap_and_stop_sequences_have_reasons_of_their_own(sim: Sim) -> None:
    assert sim.messages({"max_tokens": 3}).json()["stop_reason"] == "max_tokens"
    message = sim.messages({"stop_sequences": ["END"]}, x_sim_content="one END two").json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert message["content"][0]["text"] == "one "


def test_thinking_comes_first_and_is_signed(sim: Sim) -> None:
    message = sim.messages(THINKING).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["signature"]
    events = sim.messages({**THINKING, "stream": True}).events()
    assert deltas(events, "thinking_delta", "thinking") == message["content"][0]["thinking"]
    assert deltas(events, "signature_delta", "signature") == message["content"][0]["signature"]
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1]


def test_tool_use_fits_its_schema_and_streams_as_json(sim: Sim) -> None:
    body = {"tools": [WEATHER], "tool_choice": {"type": "any"}}
    message = sim.messages(body).json()
    assert message["stop_reason"] == "tool_use"
    jsonschema.validate(message["content"][0]["input"], WEATHER_SCHEMA)
    events = sim.messages({**body, "stream": True}).events()
    assert events[1]["content_block"]["input"] == {}
    assert deltas(events, "input_json_delta", "partial_json").startswith('{"city"')


def test_a_tool_result_is_answered_with_text(sim: Sim) -> None:
    asked = {"role": "user", "content": "Use get_weather."}
    use = sim.messages({"messages": [asked], "tools": [WEATHER]}).json()["content"]
    result = {"type": "tool_result", "tool_use_id": use[0]["id"], "content": "12"}
    body = {
        "messages": [asked, {"role": "assistant", "content": use}, {"role": "user", "content": [result]}],
        "tools": [WEATHER],
    }
    assert sim.messages(body).json()["stop_reason"] == "end_turn"


def test_cache_control_writes_then_reads(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, cache=CacheRules(min_tokens=50)))
    marked = {"type": "text", "text": "rule " * 60, "cache_control": {"type": "ephemeral"}}

    def usage(question: str, **changes: Any) -> list[int]:
        body = {"system": [marked], "messages": [{"role": "user", "content": question}], **changes}
        found = sim.messages(body).json()["usage"]
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return [found[name] for name in names]

    assert usage("one") == [4, 61, 0]
    assert usage("two") == [4, 0, 61]
    assert usage("three", cache_control={"type": "ephemeral"}) == [0, 4, 61]
    assert sim.stats()["tokens"]["default"]["cache_write"] == 65


def test_without_cache_control_nothing_is_cached(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, cache=CacheRules(min_tokens=50)))
    for _ in range(2):
        usage = sim.messages({"system": "rule " * 60}).json()["usage"]
        assert (usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]) == (0, 0)


def test_errors_have_anthropic_s_shape(sim: Sim) -> None:
    reply = sim.messages({"max_tokens": None})
    assert (reply.status, reply.json()["type"]) == (400, "error")
    assert reply.json()["error"] == {"type": "invalid_request_error", "message": "max_tokens: Field required"}
    assert reply.json()["request_id"] == reply.headers["request-id"]
