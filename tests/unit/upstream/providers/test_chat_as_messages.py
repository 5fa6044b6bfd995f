"""Chat requests become messages where nothing is lost, and are refused with a reason elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.document import Document
from proxy.dialects.chat import CHAT
from proxy.upstream.providers.chat_as_messages import (
    Untranslatable,
    as_chat_error,
    as_completion,
    as_message,
    chat_obstacle,
)

HI = [{"role": "user", "content": "hi"}]
PLAIN: dict[str, Any] = {"model": "claude-haiku-4-5", "max_tokens": 5, "messages": HI}


def obstacle(**changed: Any) -> str | None:
    return chat_obstacle(Document.parse(json.dumps(PLAIN | changed).encode()))


def translated(**changed: Any) -> Any:
    return json.loads(as_message(json.dumps(PLAIN | changed).encode()))


def test_a_conversation_keeps_its_order_and_its_texts() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": None, "refusal": None},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": " d"}]},
    ]
    found = translated(messages=messages, stop="END", temperature=0.5, top_p=1, n=1, user=None)
    assert found == {
        "model": "claude-haiku-4-5",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": " d"}]},
        ],
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_p": 1,
    }


@pytest.mark.parametrize(
    "idle",
    [
        {},
        {"max_completion_tokens": 5},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "store": False},
        {"response_format": {"type": "text"}, "tools": [], "modalities": ["text"], "seed": None},
        {"stream": True, "stream_options": {"include_usage": True}, "service_tier": "flex"},
    ],
)
def test_what_says_nothing_is_left_out(idle: dict[str, Any]) -> None:
    assert obstacle(**idle) is None
    assert translated(**idle) == translated()


def test_a_later_name_of_the_cap_counts() -> None:
    assert translated(max_tokens=None, max_completion_tokens=7)["max_tokens"] == 7


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"tools": [{"type": "function"}]}, "tools has no equal in messages"),
        ({"seed": 1}, "seed has no equal in messages"),
        ({"user": "somebody"}, "user has no equal in messages"),
        ({"n": 2}, "n has no equal in messages"),
        ({"n": True}, "n has no equal in messages"),
        ({"presence_penalty": 0.1}, "presence_penalty has no equal in messages"),
        ({"response_format": {"type": "json_object"}}, "response_format has no equal in messages"),
        ({"reasoning_effort": "low"}, "reasoning_effort has no equal in messages"),
        ({'"quoted"': 1}, "a field has no equal in messages"),
        ({"é" * 9: 1}, "a field has no equal in messages"),
        ({"max_tokens": None}, "messages need a max_tokens"),
        ({"max_tokens": 0}, "messages need a max_tokens"),
        ({"max_tokens": "5"}, "messages need a max_tokens"),
        ({"max_tokens": [5]}, "messages need a max_tokens"),
        ({"max_tokens": True}, "messages need a max_tokens"),
        ({"max_completion_tokens": 6}, "there are two caps"),
        ({"stop": " "}, "a stop that messages refuse"),
        ({"stop": [1]}, "a stop that messages refuse"),
        ({"stop": {}}, "a stop that messages refuse"),
        ({"temperature": 1.5}, "temperature is not between 0 and 1"),
        ({"top_p": "1"}, "top_p is not between 0 and 1"),
        ({"messages": None}, "the last message is not a user's"),
        ({"messages": ["hi"]}, "a message is no object"),
        ({"messages": [{"role": "system", "content": "x"}]}, "the last message is not a user's"),
        ({"messages": [*HI, {"role": "assistant", "content": "x"}]}, "the last message is not a user's"),
        ({"messages": [*HI, *HI]}, "user and assistant do not take turns"),
        ({"messages": [*HI, {"role": "system", "content": "x"}]}, "user and assistant do not take turns"),
        ({"messages": [{**HI[0], "name": "Ann"}]}, "a message has more than role and text"),
        ({"messages": [{"role": "user", "content": ""}]}, "a message is empty"),
        ({"messages": [{"role": "user", "content": None}]}, "a message is not text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "a message is not text",
        ),
        (
            {"messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, *HI]},
            "a message has more than role and text",
        ),
    ],
)
def test_what_has_no_equal_is_refused(changed: dict[str, Any], reason: str) -> None:
    assert obstacle(**changed) == reason


def test_a_field_that_comes_twice_is_refused() -> None:
    raw = b'{"model":"m","max_tokens":1,"max_tokens":2,"messages":[{"role":"user","content":"a"}]}'
    assert chat_obstacle(Document.parse(raw)) == "a field comes twice"
    with pytest.raises(Untranslatable):
        as_message(b"[]")


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
    ],
)
def test_an_answer_is_a_completion_that_our_dialect_reads(stop_reason: str, finish_reason: str) -> None:
    message = {
        "id": "msg_1",
        "type": "message",
        "model": "claude-haiku-4-5-20251001",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "a"},
            {"type": "text", "text": "b"},
        ],
        "stop_reason": stop_reason,
        "usage": {
            "input_tokens": 3,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": None,
            "output_tokens": 2,
        },
    }
    raw = as_completion(json.dumps(message).encode(), 1234.5)
    found = json.loads(raw)
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "ab", "refusal": None}
    assert (found["object"], found["created"], found["id"]) == ("chat.completion", 1234, "msg_1")
    facts = CHAT.read_body(raw)
    assert facts.finish_reason == finish_reason
    assert facts.usage is not None
    assert (facts.usage.input_tokens, facts.usage.output_tokens, facts.usage.cached_tokens) == (7, 2, 4)


@pytest.mark.parametrize("raw", [b"nonsense", b"[]", b'{"content":"text"}'])
def test_an_answer_of_another_shape_stays(raw: bytes) -> None:
    assert as_completion(raw, 0.0) == raw


def test_errors_are_told_in_the_callers_words() -> None:
    error = {"type": "error", "error": {"type": "not_found_error", "message": "no such model"}}
    assert as_chat_error(error)["error"]["message"] == "no such model"
    assert as_chat_error(None)["error"]["code"] == "api_error"
