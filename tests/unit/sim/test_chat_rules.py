from __future__ import annotations

from typing import Any

import pytest

from proxy.sim.chat_rules import check_chat
from proxy.sim.errors import ApiError
from tests.unit.sim.running import CHAT

MISSING = "missing_required_parameter"
BAD_NAME = {"type": "function", "function": {"name": "a b"}}
NO_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x"}}
TWO_CALLED = {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]}
TWO_RESULTS = [{"role": "tool", "tool_call_id": name, "content": "4"} for name in ("b", "a")]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED = {"role": "user", "content": "Hi"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "4"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def refusal(**changes: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        check_chat({**CHAT, **changes})
    assert refused.value.status == 400
    return refused.value


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"messages": [ASKED, CALLED, RESULT, ASKED]},
        {"messages": [ASKED, TWO_CALLED, *TWO_RESULTS]},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}, ASKED]},
        {"messages": [ASKED, {"role": "assistant", "refusal": "No."}]},
        {"stop": ["a", "b", "c", "d"], "max_tokens": 5, "n": 2, "temperature": 0},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False},
        {"tool_choice": "none"},
        {"model": "o3-mini", "max_completion_tokens": 5, "temperature": 1},
        {"model": "gpt-5.2", "reasoning_effort": "none", "temperature": 0},
        {"response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": "As JSON"}]},
        {"logprobs": True, "top_logprobs": 2},
        {"a_field_of_next_year": {"x": 1}},
    ],
)  # fmt: skip
def test_accepts_what_is_legal(changes: dict[str, Any]) -> None:
    check_chat({**CHAT, **changes})


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"model": None}, "model", MISSING),
        ({"messages": None}, "messages", MISSING),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", MISSING),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.[0].content", None),
        ({"messages": [{"role": "user", "content": 4}]}, "messages.[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type", MISSING),
        ({"messages": [ASKED, RESULT]}, "messages.[1].role", None),
        ({"messages": [ASKED, CALLED, ASKED]}, "messages.[1].role", None),
        ({"messages": [ASKED, CALLED]}, "messages.[1].role", None),
        ({"messages": [ASKED, CALLED, RESULT, RESULT]}, "messages.[3].role", None),
        ({"messages": [ASKED, CALLED, {"role": "tool", "content": ""}]}, "messages[2].tool_call_id", MISSING),
        ({"stop": list("abcde")}, "stop", "array_above_max_length"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens", "invalid_parameter_combination"),
        ({"prediction": {"type": "content"}, "max_completion_tokens": 5}, "max_completion_tokens", None),
        ({"temperature": 2.5}, "temperature", "decimal_above_max_value"),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"tool_choice": "auto"}, "tool_choice", None),
        ({"tools": []}, "tools", "empty_array"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", MISSING),
        ({"tools": [BAD_NAME]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "invalid_value"),
        ({"response_format": {"type": "json_object"}}, "messages", None),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", MISSING),
        ({"response_format": NO_SCHEMA}, "response_format.json_schema.schema", MISSING),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        ({"model": "o3-mini", "max_tokens": 5}, "max_tokens", "unsupported_parameter"),
        ({"model": "gpt-5-mini", "stop": ["x"]}, "stop", "unsupported_parameter"),
        ({"model": "o4-mini", "temperature": 0}, "temperature", "unsupported_value"),
        ({"model": "o4-mini", "logprobs": True}, "logprobs", "unsupported_parameter"),
    ],
)  # fmt: skip
def test_refuses_and_names_the_field(changes: dict[str, Any], param: str, code: str | None) -> None:
    error = refusal(**changes)
    assert (error.param, error.code) == (param, code)


def test_words_the_refusals_as_openai_does() -> None:
    assert refusal(model="o1", max_tokens=1).message == (
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead."
    )
    assert refusal(messages=[ASKED, RESULT]).message == (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
        "'tool_calls'."
    )
    assert "must be followed by tool messages" in refusal(messages=[ASKED, CALLED, ASKED]).message
