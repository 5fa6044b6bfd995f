"""What providers take to cache prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects.prompt_caching import (
    Mark,
    mark_for,
    takes_breakpoints,
    takes_cache_key,
    with_last_block_marked,
    with_last_tool_marked,
    with_text_marked,
)
from proxy.dialects.text_parts import text_parts, value_parts


def known(provider: str, dialect: str, model: str) -> Mark:
    mark = mark_for(provider, dialect, model)
    assert mark is not None
    return mark


CONTROL = known("anthropic", "messages", "claude-sonnet-5")
POINT = known("openai", "chat", "gpt-5.6")
MARKED = {"cache_control": {"type": "ephemeral"}}
POINTED = {"prompt_cache_breakpoint": {"mode": "explicit"}}


@pytest.mark.parametrize(
    "model",
    [
        "gpt-5.6",
        "gpt-5.6-sol",
        "openai/gpt-5.6-terra",
        "gpt-6-astra",
        "gpt-6.1-sol",
        "ft:gpt-5.6:org::x",
        "GPT-5.7",
    ],
)
def test_models_since_gpt_5_6_take_breakpoints(model: str) -> None:
    assert takes_breakpoints(model)


@pytest.mark.parametrize(
    "model",
    [
        "gpt-5",
        "gpt-5.5",
        "gpt-5-mini",
        "gpt-4o",
        "gpt-4.1",
        "gpt-35-turbo",
        "o3",
        "gpt-oss-120b",
        "gpt-56",
        "",
    ],
)
def test_others_refuse_them(model: str) -> None:
    assert not takes_breakpoints(model)


@pytest.mark.parametrize(
    ("provider", "dialect", "model", "name", "has_key"),
    [
        ("openai", "chat", "gpt-5.6", "prompt_cache_breakpoint", True),
        ("openai", "responses", "gpt-5.6", "prompt_cache_breakpoint", True),
        ("openai", "chat", "gpt-4o", None, True),
        ("openai", "completions", "gpt-5.6", None, False),
        ("openai", "messages", "gpt-5.6", None, False),
        ("azure", "chat", "gpt-5.6", None, True),
        ("anthropic", "messages", "claude-opus-5", "cache_control", False),
        ("anthropic", "chat", "claude-opus-5", None, False),
        ("vllm", "chat", "gpt-5.6", None, False),
        ("generic", "messages", "claude-opus-5", None, False),
        ("mistral", "chat", "mistral-large-4", None, False),
    ],
)
def test_each_provider_is_told_in_its_own_way(
    provider: str, dialect: str, model: str, name: str | None, has_key: bool
) -> None:
    mark = mark_for(provider, dialect, model)
    assert (None if mark is None else mark.name) == name
    assert takes_cache_key(provider, dialect) is has_key


def test_text_becomes_a_marked_part_and_keeps_its_spelling() -> None:
    raw = b'{"role": "system", "content": "caf\\u00e9 \\/ x", "name": "n"}'
    (part,) = text_parts(raw)
    marked = with_text_marked(raw, part, 8, POINT)
    assert json.loads(marked) == {
        "role": "system",
        "content": [{"type": "text", "text": "café / x"} | POINTED],
        "name": "n",
    }
    assert b'"caf\\u00e9 \\/ x"' in marked


def test_what_follows_the_mark_becomes_a_part_of_its_own() -> None:
    raw = b'"stable\\nnow"'
    (part,) = value_parts(raw)
    assert json.loads(with_text_marked(raw, part, 6, CONTROL)) == [
        {"type": "text", "text": "stable"} | MARKED,
        {"type": "text", "text": "\nnow"},
    ]


def test_space_alone_becomes_no_part() -> None:
    raw = b'"stable\\n\\n"'
    (part,) = value_parts(raw)
    assert json.loads(with_text_marked(raw, part, 6, CONTROL)) == [
        {"type": "text", "text": "stable\n\n"} | MARKED
    ]


def test_a_part_of_a_list_keeps_its_members() -> None:
    said = {
        "role": "developer",
        "content": [{"type": "input_text", "text": "a\nb", "x": 1}, {"type": "image"}],
    }
    raw = json.dumps(said).encode()
    (part,) = text_parts(raw)
    point = known("openai", "responses", "gpt-5.6")
    assert json.loads(with_text_marked(raw, part, 1, point))["content"] == [
        {"type": "input_text", "text": "a", "x": 1} | POINTED,
        {"type": "input_text", "text": "\nb"},
        {"type": "image"},
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", [{"type": "text", "text": "hi"} | MARKED]),
        ([{"type": "text", "text": "hi"}], [{"type": "text", "text": "hi"} | MARKED]),
        (
            [{"type": "text", "text": "hi"}, {"type": "tool_result", "tool_use_id": "a"}],
            [{"type": "text", "text": "hi"}, {"type": "tool_result", "tool_use_id": "a"} | MARKED],
        ),
        ([{"type": "image", "source": {}}], [{"type": "image", "source": {}} | MARKED]),
        ("", None),
        (" \n", None),
        ([], None),
        (None, None),
        (["hi"], None),
        ([{"type": "text", "text": " "}], None),
        ([{"type": "thinking", "thinking": "x"}], None),
        ([{"type": "something new"}], None),
    ],
)
def test_only_blocks_that_may_carry_a_mark_get_one(content: Any, expected: Any) -> None:
    marked = with_last_block_marked(json.dumps({"role": "user", "content": content}).encode(), CONTROL)
    assert (None if marked is None else json.loads(marked)["content"]) == expected


def test_the_last_tool_stands_for_all() -> None:
    marked = with_last_tool_marked(b'[ {"name":"a"} , {"name":"b"} ]', CONTROL)
    assert marked == b'[ {"name":"a"} , {"name":"b","cache_control":{"type":"ephemeral"}} ]'
    assert with_last_tool_marked(b"[]", CONTROL) is None
    assert with_last_tool_marked(b"[1]", CONTROL) is None
    assert with_last_tool_marked(b"{}", CONTROL) is None
