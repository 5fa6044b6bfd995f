from __future__ import annotations

from typing import Any

import pytest

from proxy.sim.errors import ApiError
from proxy.sim.messages_rules import check_messages_request
from tests.unit.sim.running import ANTHROPIC, MESSAGES

USER = {"role": "user", "content": "Hi"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]}
NO_TEXT = {"role": "user", "content": [{"type": "text", "text": ""}]}
SMALL = {"type": "enabled", "budget_tokens": 10}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "4"}]}
MARKED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


def check(changes: dict[str, Any]) -> None:
    check_messages_request({**MESSAGES, **changes}, ANTHROPIC)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"messages": [USER, USE, RESULT]},
        {"messages": [USER, USER, {"role": "assistant", "content": "So"}]},
        {"messages": [USER, {"role": "assistant", "content": ""}]},
        {"system": [MARKED] * 3, "messages": [{"role": "user", "content": [MARKED]}]},
        {"stop_sequences": ["a"] * 9, "temperature": 1},
        {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tools": [{"name": "f", "input_schema": {}}]},
        {"a_field_of_next_year": 1},
    ],
)
def test_accepts_what_is_legal(changes: dict[str, Any]) -> None:
    check(changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "model: Field required"),
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"messages": None}, "messages: Field required"),
        ({"messages": []}, "at least one message is required"),
        ({"messages": [{"role": "system", "content": "x"}]}, 'Unexpected role "system"'),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages.0: all messages must have non-empty"),
        ({"messages": [NO_TEXT]}, "messages.0.content.0.text"),
        ({"messages": [USER, USE, USER]}, "messages.1: `tool_use` ids were found without `tool_result`"),
        ({"messages": [USER, USE]}, "messages.1: `tool_use` ids were found without `tool_result`"),
        ({"messages": [USER, RESULT]}, "messages.1.content: unexpected `tool_use_id`"),
        ({"stop_sequences": [" \n"]}, "non-whitespace"),
        ({"temperature": 1.5}, "decimal above maximum"),
        ({"max_tokens": 2000, "thinking": SMALL}, "greater than or equal to 1024"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "must be greater than `thinking"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens: Field required"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"system": [MARKED] * 5}, "A maximum of 4 blocks with cache_control may be provided. Found 5."),
    ],
)  # fmt: skip
def test_refuses_and_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        check(changes)
    assert refused.value.status == 400
    assert message in refused.value.message


def test_needs_the_version_header() -> None:
    with pytest.raises(ApiError, match="anthropic-version: header is required"):
        check_messages_request(MESSAGES, {})


def test_a_count_needs_no_cap() -> None:
    check_messages_request({**MESSAGES, "max_tokens": None}, ANTHROPIC, needs_cap=False)
