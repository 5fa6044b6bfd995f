"""Prompts that begin alike have digests that begin alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.batch_server.beginnings import LEVEL_BYTES, MOST_LEVELS, beginning
from proxy.core.document import Document
from proxy.dialects import dialect_for_path


def begins(path: str, **body: Any) -> bytes:
    return beginning(Document.parse(json.dumps(body).encode()), dialect_for_path(path))


def shared_levels(one: bytes, other: bytes) -> int:
    pairs = zip(one, other, strict=False)
    alike = next(
        (index for index, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other))
    )
    return alike // LEVEL_BYTES


def chat(*contents: str, **more: Any) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return begins("/v1/chat/completions", messages=messages, **more)


def test_messages_in_common_are_levels_in_common() -> None:
    assert shared_levels(chat("a", "b", "c"), chat("a", "b", "d")) == 2
    assert shared_levels(chat("a", "b"), chat("x", "b")) == 0


def test_tools_come_before_messages() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert shared_levels(chat("a", tools=tools), chat("b", tools=tools)) == 1
    assert shared_levels(chat("a", tools=tools), chat("a")) == 0


def test_a_long_instruction_in_one_message_is_seen() -> None:
    told = "Sort this into one of the classes. " * 20
    assert shared_levels(chat(told + "one"), chat(told + "two")) == 1
    assert shared_levels(chat(told * 10 + "one"), chat(told * 10 + "two")) == 3


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/completions", "prompt"), ("/v1/responses", "input"), ("/v1/messages", "messages")],
)
def test_other_prompts_are_read_where_they_stand(path: str, name: str) -> None:
    told = "x" * 300
    one, other = begins(path, **{name: told + "1"}), begins(path, **{name: told + "2"})
    assert shared_levels(one, other) == 1


def test_system_text_comes_first() -> None:
    one = begins("/v1/responses", instructions="i", input="a")
    other = begins("/v1/responses", input="b", instructions="i")
    assert shared_levels(one, other) == 1


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/moderations", "/v1/rerank", "/v1/score"])
def test_what_is_not_cached_has_no_beginning(path: str) -> None:
    assert begins(path, input="x" * 5000) == b""


def test_long_conversations_have_few_levels() -> None:
    assert len(chat(*"x" * 500)) == MOST_LEVELS * LEVEL_BYTES


def test_nonsense_has_no_beginning() -> None:
    assert begins("/v1/chat/completions", messages=7) == begins("/v1/chat/completions", messages=7, n=2)
    assert begins("/v1/chat/completions") == b""
