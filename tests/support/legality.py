"""What the three APIs refuse in a conversation, by their own error messages and nothing of ours.

Only what trimming could break is judged: order of roles, pairs of calls and results, reasoning and thinking.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Item = Mapping[str, Any]
_SYSTEM = ("system", "developer", "summary")


def problems(dialect: str, body: bytes) -> list[str]:
    """Return what an upstream would refuse; an empty list for a legal conversation."""
    request = json.loads(body)
    match dialect:
        case "chat":
            return [*_first_speaker(request["messages"]), *_chat_pairs(request["messages"])]
        case "responses":
            return [*_first_speaker(request["input"]), *_responses_pairs(request["input"])]
        case "messages":
            return [*_first_speaker(request["messages"]), *_messages_pairs(request["messages"])]
        case _:
            raise ValueError(dialect)


def _first_speaker(items: Sequence[Item]) -> list[str]:
    """The conversation is opened by a person; items without a role that stand before are nobody's words."""
    for item in items:
        role = item.get("role")
        if role == "user":
            return []
        if role not in _SYSTEM and item.get("type") not in ("mcp_list_tools", "compaction"):
            return [f"opened by {role or item.get('type')}"]
    return ["nobody speaks"]


def _chat_pairs(messages: Sequence[Item]) -> list[str]:
    found: list[str] = []
    open_calls: list[str] = []
    awaits_function = False
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] in open_calls:
                open_calls.remove(message["tool_call_id"])
            else:
                found.append(f"messages.[{index}]: tool result without a call")
            continue
        if role == "function":
            if not awaits_function:
                found.append(f"messages.[{index}]: function result without a call")
            awaits_function = False
            continue
        if open_calls or awaits_function:
            found.append(f"messages.[{index}]: calls before it were not answered: {open_calls}")
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        awaits_function = bool(message.get("function_call"))
    if open_calls or awaits_function:
        found.append("the last calls were not answered")
    return found


def _responses_pairs(items: Sequence[Item]) -> list[str]:
    found: list[str] = []
    called: set[str] = set()
    answered: set[str] = set()
    for index, item in enumerate(items):
        match item.get("type"):
            case "function_call":
                called.add(item["call_id"])
            case "function_call_output":
                answered.add(item["call_id"])
                if item["call_id"] not in called:
                    found.append(f"input[{index}]: output without a call")
            case "reasoning" if not _is_followed(items, index):
                found.append(f"input[{index}]: reasoning without its following item")
            case _:
                pass
    return found + [f"no output for {name}" for name in sorted(called - answered)]


def _is_followed(items: Sequence[Item], index: int) -> bool:
    follower = items[index + 1] if index + 1 < len(items) else {}
    if follower.get("type") == "reasoning":
        return _is_followed(items, index + 1)
    return follower.get("role") == "assistant" or str(follower.get("type")).endswith("_call")


def _messages_pairs(messages: Sequence[Item]) -> list[str]:
    found: list[str] = []
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if results != waiting:
            found.append(f"messages.{index}: results {sorted(results)} for calls {sorted(waiting)}")
        waiting = {block["id"] for block in blocks if block["type"] == "tool_use"}
    return found + ([f"calls {sorted(waiting)} were not answered"] if waiting else [])


def last_words(dialect: str, items: Sequence[Item]) -> int:
    """Return the index of the last element in which a person speaks."""
    for index in range(len(items) - 1, -1, -1):
        content = items[index].get("content")
        is_only_results = isinstance(content, list) and all(part["type"] == "tool_result" for part in content)
        if items[index].get("role") == "user" and not (dialect == "messages" and is_only_results):
            return index
    raise ValueError("nobody speaks")


def unbroken_thinking(items: Sequence[Item]) -> set[int]:
    """Return the Anthropic messages that must be replayed whole: a turn from its first thinking block on.

    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified", and a tool
    loop is one assistant message to it.
    """
    asked = [
        index for index, item in enumerate(items) if item["role"] == "user" and not _brings_results(item)
    ]
    for index in range(asked[-1], len(items)):
        content = items[index]["content"]
        if isinstance(content, list) and any("thinking" in part["type"] for part in content):
            return set(range(index, len(items)))
    return set()


def _brings_results(message: Item) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(part["type"] == "tool_result" for part in content)


def kept_indices(before: Sequence[bytes], after: Sequence[bytes]) -> list[int] | None:
    """Return which elements of `before` are in `after`, byte for byte and in order; `None` if others are."""
    kept: list[int] = []
    position = 0
    for element in after:
        while position < len(before) and before[position] != element:
            position += 1
        if position == len(before):
            return None
        kept.append(position)
        position += 1
    return kept
