"""Which elements belong together, in every dialect, and which may never go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.document import Document
from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.conversation import (
    Conversation,
    Role,
    conversation_fields,
    has_cache_mark,
    read_conversation,
)
from proxy.dialects.dialect import Dialect
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
ANSWER = {"role": "assistant", "content": "a"}


def read(dialect: Dialect, items: list[Any], **more: Any) -> Conversation:
    key = "input" if dialect is RESPONSES else "messages"
    conversation = read_conversation(Document.parse(json.dumps({key: items, **more}).encode()), dialect)
    assert conversation is not None
    covered = [index for group in conversation.groups for index in range(group.start, group.end)]
    assert covered == list(range(len(items))), "groups cover all elements"
    return conversation


def shape(conversation: Conversation) -> str:
    """Write groups as letters with their lengths, a `!` where they stay."""
    letters = {Role.SYSTEM: "s", Role.USER: "u", Role.ASSISTANT: "a", Role.OPAQUE: "o"}
    return " ".join(
        f"{letters[group.kind]}{group.end - group.start}{'!' * group.stays}" for group in conversation.groups
    )


def calls(*names: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": name} for name in names]}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "r"}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SYSTEM, USER, ANSWER, USER], "s1! u1 a1 u1"),
        ([{"role": "developer"}, {"role": "summary"}, USER], "s1! s1! u1"),
        ([USER, calls("a", "b"), result("b"), result("a"), ANSWER], "u1 a3 a1"),
        ([USER, calls("a"), result("a"), calls("a"), result("a")], "u1 a2 a2"),
        ([USER, {"role": "assistant", "function_call": {}}, {"role": "function", "name": "f"}], "u1 a2"),
        ([USER, {"role": "assistant", "tool_calls": [], "content": "x"}, USER], "u1 a1 u1"),
        ([USER, {"role": "assistant", "tool_calls": None, "content": "x"}, result("a")], "u1 a1 o1!"),
        ([result("a"), USER], "o1! u1"),
        ([USER, {"role": "critic", "content": "?"}, 5, None, "x"], "u1 o1! o1! o1! o1!"),
        ([USER, calls("a"), SYSTEM, result("a")], "u1 a3!"),
        ([USER, calls("a", "b"), result("a"), USER, result("b"), USER], "u1 a4! u1"),
        ([], ""),
    ],
)
def test_chat_messages_form_groups(messages: list[Any], expected: str) -> None:
    assert shape(read(CHAT, messages)) == expected


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def output(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "r"}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
TYPED_ANSWER = {"type": "message", "role": "assistant", "content": []}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([SYSTEM, USER, TYPED_ANSWER, USER], "s1! u1 a1 u1"),
        ([USER, call("a"), call("b"), output("b"), output("a")], "u1 a4"),
        ([USER, call("a"), output("a"), call("b"), output("b")], "u1 a2 a2"),
        # A call without reasoning of its own may belong to the reasoning before it.
        ([USER, REASONING, call("a"), output("a"), call("b"), output("b")], "u1 a5"),
        ([USER, REASONING, call("a"), output("a"), REASONING, call("b"), output("b")], "u1 a3 a3"),
        ([USER, REASONING, TYPED_ANSWER, USER, TYPED_ANSWER], "u1 a2 u1 a1"),
        ([USER, REASONING, {"type": "web_search_call"}, REASONING, TYPED_ANSWER], "u1 a4"),
        # An output that comes after something else ties all of it together.
        ([USER, call("a"), USER, output("a"), USER], "u1 a3! u1"),
        ([USER, call("a"), call("b"), SYSTEM, output("a"), output("b")], "u1 a5!"),
        ([output("gone"), USER], "o1! u1"),
        ([USER, {"type": "mcp_call", "id": "m"}, {"type": "brand_new"}], "u1 o1! o1!"),
        ([USER, REASONING, {"type": "mcp_call", "id": "m"}, TYPED_ANSWER], "u1 a3!"),
        ([{"type": "compaction", "encrypted_content": "x"}, USER], "o1! u1"),
        ([{"type": "item_reference", "id": "x"}, {"type": "function_call", "call_id": 5}], "o1! o1!"),
        ([{"role": "tool", "content": "not of this API"}], "o1!"),
    ],
)
def test_responses_items_form_groups(items: list[Any], expected: str) -> None:
    assert shape(read(RESPONSES, items)) == expected


def use(*names: str, thinks: bool = False) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [{"type": "thinking", "thinking": "t", "signature": "s"}] if thinks else []
    blocks += [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in names]
    return {"role": "assistant", "content": blocks}


def results(*names: str, words: str = "") -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": name, "content": "r"} for name in names]
    return {"role": "user", "content": [*blocks, *([{"type": "text", "text": words}] if words else [])]}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER, ANSWER, USER], "u1 a1 u1"),
        ([USER, use("a", "b"), results("a", "b"), use("c"), results("c")], "u1 a2 a2"),
        ([USER, use("a"), results("a"), ANSWER, USER], "u1 a2 a1 u1"),
        ([USER, ANSWER, ANSWER], "u1 a2"),
        # To this API a tool loop with thinking is one message of the assistant, from its first thinking on.
        ([USER, use("a", thinks=True), results("a"), use("b"), results("b")], "u1 a4"),
        (
            [USER, use("a"), results("a"), use("b", thinks=True), results("b"), use("c"), results("c")],
            "u1 a2 a4",
        ),
        ([USER, use("a", thinks=True), results("a"), ANSWER, USER, ANSWER], "u1 a3 u1 a1"),
        ([USER, {"role": "assistant", "content": [{"type": "redacted_thinking"}]}, USER], "u1 a1 u1"),
        ([results("a"), USER], "o1! u1"),
        ([USER, {"role": "user", "content": [1, "x", {"type": 5}]}], "u1 u1"),
    ],
)
def test_anthropic_messages_form_groups(messages: list[Any], expected: str) -> None:
    assert shape(read(MESSAGES, messages)) == expected


def test_a_persons_words_beside_tool_results_are_noticed() -> None:
    conversation = read(MESSAGES, [USER, use("a"), results("a"), use("b"), results("b", words="stop")])
    assert [group.speaks for group in conversation.groups] == [True, False, True]


def test_turns_begin_with_a_persons_message() -> None:
    conversation = read(CHAT, [ANSWER, SYSTEM, USER, USER, ANSWER, SYSTEM, USER, calls("a"), result("a")])
    assert [(turn.groups, turn.asks) for turn in conversation.turns] == [
        ((0,), 0),
        ((2, 3, 4), 2),
        ((6, 7), 1),
    ]


def test_a_system_message_between_two_questions_does_not_part_them() -> None:
    conversation = read(CHAT, [USER, SYSTEM, USER, ANSWER])
    assert [(turn.groups, turn.asks) for turn in conversation.turns] == [((0, 2, 3), 2)]


def test_elements_with_lone_surrogates_are_read() -> None:
    text = b'{"messages":[{"role":"user","content":"\\ud83d"},{"role":"assistant","content":"\\ud83d",'
    text += b'"tool_calls":[{"id":"a"}]},{"role":"tool","tool_call_id":"a","content":"\\ude00"}]}'
    conversation = read_conversation(Document.parse(text), CHAT)
    assert conversation is not None
    assert shape(conversation) == "u1 a2"


def test_system_text_apart_from_the_elements_is_given() -> None:
    assert read(MESSAGES, [USER], system="s").fixed == (b'"s"',)
    assert read(RESPONSES, [USER], instructions="i").fixed == (b'"i"',)
    assert read(RESPONSES, [USER], instructions=None, system="no").fixed == ()
    assert read(CHAT, [USER], system="no").fixed == ()


def test_a_conversation_that_lives_at_the_server_is_partial() -> None:
    assert read(RESPONSES, [USER], previous_response_id="resp_1").is_partial
    assert read(RESPONSES, [USER], conversation={"id": "c"}).is_partial
    assert not read(RESPONSES, [USER], previous_response_id=None).is_partial


def test_the_callers_cache_markers_are_found() -> None:
    marked = {
        "role": "user",
        "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
    }
    pointed = {"role": "user", "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {}}]}
    quoted = {"role": "user", "content": 'say "cache_control": 1'}
    assert read(MESSAGES, [marked, ANSWER, marked, ANSWER]).marked_until() == 3
    assert read(CHAT, [pointed, ANSWER]).marked_until() == 1
    assert read(CHAT, [quoted, ANSWER]).marked_until() == 0


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (CHAT, b"{}"),
        (CHAT, b'{"messages":"x"}'),
        (RESPONSES, b'{"input":"x"}'),
        (COMPLETIONS, b'{"prompt":["x"]}'),
        (EMBEDDINGS, b'{"input":["x"]}'),
    ],
)
def test_what_is_no_list_of_turns_is_no_conversation(dialect: Dialect, text: bytes) -> None:
    assert read_conversation(Document.parse(text), dialect) is None


def test_the_fields_of_a_conversation() -> None:
    assert conversation_fields(CHAT) == ("messages",)
    assert conversation_fields(RESPONSES) == ("input", "instructions")
    assert conversation_fields(MESSAGES) == ("messages", "system")
    assert conversation_fields(COMPLETIONS) == ()


@pytest.mark.parametrize(
    ("raw", "is_marked"),
    [
        (b'{"cache_control":{}}', True),
        (b'{"cache\\u005fcontrol":{}}', True),
        (b'{"prompt\\u005Fcache_breakpoin\\u0074":{}}', True),
        (b'{"text":"\\u0063ache_control?"}', False),
        (b'{"cache\\u0020control":{}}', False),
    ],
)
def test_marks_are_seen_however_their_key_is_spelt(raw: bytes, is_marked: bool) -> None:
    assert has_cache_mark(raw) is is_marked
