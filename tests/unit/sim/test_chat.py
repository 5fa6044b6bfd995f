from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from proxy.sim.scenario import CacheRules, Scenario
from tests.unit.sim.running import INSTANT, WEATHER_SCHEMA, Reply, Sim

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}
STREAM = {"stream": True}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def texts(reply: Reply) -> dict[int, str]:
    """Return the text of each choice of a streamed answer."""
    found: dict[int, str] = {}
    for chunk in reply.events():
        for choice in chunk["choices"]:
            index = choice["index"]
            found[index] = found.get(index, "") + (choice["delta"].get("content") or "")
    return found


def test_answers_with_text_and_usage(sim: Sim) -> None:
    answer = sim.chat().json()
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] == 12
    assert usage["completion_tokens"] > 0


def test_the_same_request_gets_the_same_text_but_another_id(sim: Sim) -> None:
    first, second = sim.chat().json(), sim.chat().json()
    assert first["choices"] == second["choices"]
    assert first["id"] != second["id"]


def test_another_seed_gives_another_text(sim: Sim, simulate: Callable[..., Sim]) -> None:
    other = simulate(Scenario(seed=2, timing=INSTANT))
    assert other.chat().json()["choices"] != sim.chat().json()["choices"]


def test_a_stream_says_the_same_as_a_buffered_answer(sim: Sim) -> None:
    whole = sim.chat({"n": 3}).json()
    streamed = sim.chat({"n": 3, **WITH_USAGE})
    assert texts(streamed) == {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert streamed.events()[-1]["usage"] == whole["usage"]


def test_a_stream_begins_with_the_role_and_ends_with_done(sim: Sim) -> None:
    reply = sim.chat(STREAM)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.events()[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert reply.events()[-1]["choices"][0]["finish_reason"] == "stop"
    assert reply.blocks()[-1] == b"data: [DONE]"
    assert len({chunk["id"] for chunk in reply.events()}) == 1


def test_usage_comes_in_a_chunk_of_its_own_only_when_asked_for(sim: Sim) -> None:
    assert all("usage" not in chunk for chunk in sim.chat(STREAM).events())
    *others, last = sim.chat(WITH_USAGE).events()
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0


def test_choices_interleave_and_each_has_its_own_finish(sim: Sim) -> None:
    chunks = sim.chat({"n": 2, **STREAM}, x_sim_tokens="4").events()
    content = [
        chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"][0]["delta"].get("content")
    ]
    assert content == [0, 1] * 4
    finished = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(finished) == [0, 1]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_cap_holds_for_each_choice(sim: Sim, field: str) -> None:
    answer = sim.chat({"n": 2, field: 4}).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["usage"]["completion_tokens"] == 8


def test_stop_sequences_cut_streams_too(sim: Sim) -> None:
    reply = sim.chat({"stop": ["\n\nUser:"], **STREAM}, x_sim_content="Yes.%0A%0AUser: and then?")
    assert texts(reply) == {0: "Yes."}
    assert reply.events()[-1]["choices"][0]["finish_reason"] == "stop"


def test_literal_content_comes_back_as_it_is(sim: Sim) -> None:
    assert sim.chat(x_sim_content="%F0%9F%8E%89 done").json()["choices"][0]["message"]["content"] == "🎉 done"


def test_a_tool_call_has_arguments_that_fit(sim: Sim) -> None:
    body = {"tools": [WEATHER], "tool_choice": "required"}
    message = sim.chat(body).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    assert message["message"]["content"] is None
    call = message["message"]["tool_calls"][0]
    assert call["function"]["name"] == "get_weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER_SCHEMA)


def test_streamed_tool_calls_come_in_fragments(sim: Sim) -> None:
    body: dict[str, Any] = {"tools": [WEATHER]}
    whole = sim.chat(body, x_sim_tool_call="2").json()["choices"][0]["message"]["tool_calls"]
    built: dict[int, dict[str, str]] = {}
    chunks = sim.chat({**body, **STREAM}, x_sim_tool_call="2").events()
    for chunk in chunks:
        for delta in chunk["choices"][0]["delta"].get("tool_calls", []):
            entry = built.setdefault(delta["index"], {"id": "", "name": "", "arguments": "", "count": ""})
            entry["id"] += delta.get("id", "")
            entry["name"] += delta["function"].get("name", "")
            entry["arguments"] += delta["function"]["arguments"]
            entry["count"] += "."
    assert [entry["arguments"] for entry in built.values()] == [
        call["function"]["arguments"] for call in whole
    ]
    assert [entry["name"] for entry in built.values()] == ["get_weather", "get_weather"]
    assert all(entry["id"].startswith("call_") and len(entry["count"]) > 3 for entry in built.values())
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_a_tool_that_the_user_names_and_answers_after_the_result(sim: Sim) -> None:
    asked = {"role": "user", "content": "Use get_weather for Rome."}
    first = sim.chat({"messages": [asked], "tools": [WEATHER]}).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "12"}
    second = sim.chat({"messages": [asked, first, result], "tools": [WEATHER]})
    assert second.status == 200
    assert second.json()["choices"][0]["finish_reason"] == "stop"


def test_structured_output_fits_the_schema(sim: Sim) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER_SCHEMA, "strict": True}}
    content = sim.chat({"response_format": wanted}).json()["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(content), WEATHER_SCHEMA)


def test_json_mode_gives_an_object(sim: Sim) -> None:
    body = {"response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": "In JSON."}]}
    assert isinstance(json.loads(sim.chat(body).json()["choices"][0]["message"]["content"]), dict)


def test_reasoning_models_bill_hidden_tokens(sim: Sim) -> None:
    usage = sim.chat({"model": "o4-mini"}).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 64
    assert usage["completion_tokens"] > 64
    low = sim.chat({"model": "o4-mini", "reasoning_effort": "low"}).json()["usage"]
    assert low["completion_tokens_details"]["reasoning_tokens"] == 16


def test_a_small_cap_on_a_reasoning_model_leaves_no_text(sim: Sim) -> None:
    choice = sim.chat({"model": "o4-mini", "max_completion_tokens": 20}).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")


def test_reasoning_can_be_shown(sim: Sim) -> None:
    chunks = sim.chat(STREAM, x_sim_reasoning="3").events()
    shown = [chunk["choices"][0]["delta"].get("reasoning_content") for chunk in chunks]
    assert len([piece for piece in shown if piece]) == 3
    assert sim.chat(x_sim_reasoning="3").json()["choices"][0]["message"]["reasoning_content"]


def test_logprobs_cover_every_token(sim: Sim) -> None:
    choice = sim.chat({"logprobs": True}).json()["choices"][0]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["message"]["content"]
    chunk = sim.chat({"logprobs": True, **STREAM}).events()[1]["choices"][0]
    assert [entry["token"] for entry in chunk["logprobs"]["content"]] == [chunk["delta"]["content"]]


def test_a_shared_prefix_is_cached_once_the_first_answer_has_begun(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, cache=CacheRules(min_tokens=64, granularity_tokens=16)))
    system = {"role": "system", "content": "rule " * 100}

    def cached(question: str) -> int:
        body = {"messages": [system, {"role": "user", "content": question}]}
        return int(sim.chat(body).json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("one"), cached("two")] == [0, 96]


def test_a_tier_is_echoed_and_billed(sim: Sim) -> None:
    assert sim.chat({"service_tier": "priority"}).json()["service_tier"] == "priority"
    assert sim.chat({"service_tier": "overnight"}).status == 400
    assert set(sim.stats()["tokens"]) == {"priority"}
