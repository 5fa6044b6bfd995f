from __future__ import annotations

import json
from typing import Any

import jsonschema

from tests.unit.sim.running import WEATHER_SCHEMA, Reply, Sim

PATH = "/v1/responses"
BASE: dict[str, Any] = {"model": "gpt-4o", "input": "Tell me about rivers."}
WEATHER = {"type": "function", "name": "get_weather", "parameters": WEATHER_SCHEMA, "strict": True}


def ask(sim: Sim, changes: dict[str, Any] | None = None, **headers: str) -> Reply:
    return sim.post(PATH, {**BASE, **(changes or {})}, **headers)


def output_text(response: Any) -> str:
    return "".join(
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    )


def test_answers_with_a_message(sim: Sim) -> None:
    response = ask(sim).json()
    assert (response["object"], response["status"], response["error"]) == ("response", "completed", None)
    assert output_text(response)
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_stream_says_the_same_as_a_buffered_answer(sim: Sim) -> None:
    whole = ask(sim).json()
    reply = ask(sim, {"stream": True})
    deltas = [event["delta"] for event in reply.events() if event["type"] == "response.output_text.delta"]
    final = reply.events()[-1]["response"]
    assert "".join(deltas) == output_text(whole) == output_text(final)
    assert final["usage"] == whole["usage"]


def test_events_are_named_and_numbered_in_order(sim: Sim) -> None:
    reply = ask(sim, {"stream": True}, x_sim_tokens="2")
    assert reply.names() == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    events = reply.events()
    assert [event["type"] for event in events] == reply.names()
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert b"[DONE]" not in reply.body


def test_a_cap_leaves_the_response_incomplete(sim: Sim) -> None:
    response = ask(sim, {"max_output_tokens": 16}).json()
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert response["usage"]["output_tokens"] == 16
    assert ask(sim, {"max_output_tokens": 16, "stream": True}).names()[-1] == "response.incomplete"


def test_reasoning_comes_first_and_can_eat_the_cap(sim: Sim) -> None:
    response = ask(sim, {"model": "gpt-5-mini"}).json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 64
    eaten = ask(sim, {"model": "gpt-5-mini", "max_output_tokens": 20}).json()
    assert (eaten["status"], output_text(eaten)) == ("incomplete", "")
    assert ask(sim, {"model": "gpt-5-mini", "max_output_tokens": 20, "stream": True}).names()[2:] == [
        "response.output_item.added",
        "response.output_item.done",
        "response.incomplete",
    ]


def test_tool_calls_are_items_and_stream_in_fragments(sim: Sim) -> None:
    body = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
    (item,) = ask(sim, body).json()["output"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "get_weather", "completed")
    jsonschema.validate(json.loads(item["arguments"]), WEATHER_SCHEMA)
    events = ask(sim, {**body, "stream": True}).events()
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert "".join(deltas) == item["arguments"]
    assert len(deltas) > 3
    assert events[-1]["response"]["output"][0]["arguments"] == item["arguments"]


def test_custom_tools_get_free_text(sim: Sim) -> None:
    body = {"tools": [{"type": "custom", "name": "code"}], "tool_choice": "required"}
    (item,) = ask(sim, body).json()["output"]
    assert (item["type"], bool(item["input"])) == ("custom_tool_call", True)
    names = ask(sim, {**body, "stream": True}).names()
    assert "response.custom_tool_call_input.delta" in names
    assert "response.custom_tool_call_input.done" in names


def test_structured_output_fits_the_schema(sim: Sim) -> None:
    wanted = {"format": {"type": "json_schema", "name": "w", "schema": WEATHER_SCHEMA}}
    jsonschema.validate(json.loads(output_text(ask(sim, {"text": wanted}).json())), WEATHER_SCHEMA)


def test_a_follow_up_pays_for_the_conversation_so_far(sim: Sim) -> None:
    first = ask(sim).json()
    alone = ask(sim, {"input": "And lakes?"}).json()["usage"]["input_tokens"]
    second = ask(sim, {"input": "And lakes?", "previous_response_id": first["id"]}).json()
    answered = first["usage"]["output_tokens"]
    assert second["usage"]["input_tokens"] == alone + first["usage"]["input_tokens"] + answered + 3


def test_a_follow_up_may_answer_a_call_of_the_stored_response(sim: Sim) -> None:
    first = ask(sim, {"tools": [WEATHER], "tool_choice": "required"}).json()
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "12"}
    assert ask(sim, {"input": [output], "previous_response_id": first["id"]}).status == 200


def test_another_caller_s_response_is_not_found(sim: Sim) -> None:
    first = ask(sim, authorization="Bearer a").json()
    reply = ask(sim, {"previous_response_id": first["id"]}, authorization="Bearer b")
    assert (reply.status, reply.json()["error"]["code"]) == (400, "previous_response_not_found")


def test_an_unstored_response_is_not_found(sim: Sim) -> None:
    first = ask(sim, {"store": False}).json()
    assert ask(sim, {"previous_response_id": first["id"]}).status == 400
