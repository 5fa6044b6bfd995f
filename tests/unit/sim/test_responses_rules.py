from __future__ import annotations

from typing import Any

import pytest

from proxy.sim.errors import ApiError
from proxy.sim.responses_rules import check_responses

BASE: dict[str, Any] = {"model": "gpt-4o", "input": "Hi"}
USER = {"role": "user", "content": "Hi"}
SAID = {"role": "assistant", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "4"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
FORMAT = {"type": "json_schema", "name": "x", "schema": {}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"input": [USER, CALL, OUTPUT, USER]},
        {"input": [USER, THOUGHT, CALL, OUTPUT]},
        {"input": [USER, THOUGHT, SAID, USER]},
        {"input": [OUTPUT], "previous_response_id": "resp_1"},
        {"input": [USER, {"type": "an_item_of_next_year"}]},
        {"max_output_tokens": 16, "temperature": 0, "stream": True},
        {"model": "gpt-5-mini", "reasoning": {"effort": "low"}},
        {"text": {"format": FORMAT}},
        {"text": {"format": {"type": "json_object"}}, "instructions": "Answer in JSON."},
        {"a_field_of_next_year": 1},
    ],
)
def test_accepts_what_is_legal(changes: dict[str, Any]) -> None:
    check_responses({**BASE, **changes})


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": 3}, "input", "invalid_type"),
        ({"input": [{"role": "bot", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"content": "x"}]}, "input[0].role", "missing_required_parameter"),
        ({"input": [{"role": "user"}]}, "input[0].content", "invalid_type"),
        ({"input": [USER, OUTPUT]}, "input", None),
        ({"input": [USER, CALL]}, "input", None),
        ({"input": [USER, THOUGHT]}, "input", None),
        ({"input": [USER, THOUGHT, USER]}, "input", None),
        ({"stop": ["x"]}, "stop", "unknown_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unknown_parameter"),
        ({"messages": [USER]}, "messages", "unknown_parameter"),
        ({"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value"),
        ({"background": True, "stream": True}, "stream", "unsupported_parameter"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", "unsupported_parameter"),
        ({"model": "o3", "temperature": 0}, "temperature", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"text": {"format": {"type": "json_object"}}}, "input", None),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing_required_parameter"),
    ],
)
def test_refuses_and_names_the_field(changes: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        check_responses({**BASE, **changes})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)


def test_words_the_pairing_errors_as_openai_does() -> None:
    with pytest.raises(ApiError, match="No tool output found for function call call_1"):
        check_responses({**BASE, "input": [USER, CALL]})
    with pytest.raises(
        ApiError, match="'rs_1' of type 'reasoning' was provided without its required following"
    ):
        check_responses({**BASE, "input": [USER, THOUGHT]})
