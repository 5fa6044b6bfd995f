"""Made-up conversations in every dialect: legal, unlike each other, and with every kind of element.

Every element carries a mark of its own in its text or id, so that what a step kept can be told apart.
`conversations(dialect)` is a hypothesis strategy; `conversation(dialect, Random(seed))` makes one without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from hypothesis import strategies as st

Item = dict[str, Any]
FIELDS = {"chat": "messages", "responses": "input", "messages": "messages"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Talk:
    """Makes the elements of one conversation."""

    def __init__(self, chance: Random, length: int) -> None:
        self._chance = chance
        self._length = length
        self._made = 0

    def mark(self) -> str:
        self._made += 1
        return f"m{self._made}"

    def text(self) -> str:
        words = self._chance.choice((0, 1, 3, 8, 20, 60)) * self._length
        spice = self._chance.choice(("", "", "", " é你😀", ' "quoted\\"', " <|endoftext|>", "\n\t"))
        return f"{self.mark()} " + "word " * words + spice

    def upto(self, most: int, least: int = 0) -> int:
        return self._chance.randint(least, most)

    def happens(self, one_in: int) -> bool:
        return self._chance.randrange(one_in) == 0

    def spelled(self, items: Sequence[Item]) -> bytes:
        """Write elements as some client would."""
        separators, ascii_only = self._chance.choice(
            (((",", ":"), False), ((", ", ": "), True), ((" ,\n  ", " : "), False))
        )
        text = separators[0].join(
            json.dumps(item, ensure_ascii=ascii_only, separators=separators) for item in items
        )
        return f"[{text}]".encode()


def _chat_user(talk: Talk) -> Item:
    if talk.happens(6):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}}
        return {"role": "user", "content": [{"type": "text", "text": talk.text()}, image]}
    return {"role": "user", "content": talk.text()}


def _chat_calls(talk: Talk) -> list[Item]:
    if talk.happens(8):
        call: Item = {"name": "f", "arguments": json.dumps({"q": talk.text()})}
        return [
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "f", "content": talk.text()},
        ]
    # Some clients number their calls anew in every message.
    ids = [f"call_{n}" if talk.happens(3) else f"call_{talk.mark()}" for n in range(talk.upto(3, 1))]
    calls = [
        {
            "id": name,
            "type": "function",
            "function": {"name": "f", "arguments": json.dumps({"q": talk.mark()})},
        }
        for name in ids
    ]
    results = [{"role": "tool", "tool_call_id": name, "content": talk.text()} for name in reversed(ids)]
    said = talk.text() if talk.happens(4) else None
    return [{"role": "assistant", "content": said, "tool_calls": calls}, *results]


def _chat(talk: Talk) -> list[Item]:
    made: list[Item] = [
        {"role": role, "content": talk.text()}
        for role in ("system", "developer", "summary")
        if talk.happens(2)
    ]
    if talk.happens(5):
        made.append({"role": "assistant", "content": f"How can I help? {talk.mark()}"})
    turns = talk.upto(8, 1)
    for turn in range(turns):
        made += [_chat_user(talk) for _ in range(2 if talk.happens(6) else 1)]
        if turn == turns - 1 and talk.happens(2):
            return made
        for _ in range(talk.upto(3) if turn < turns - 1 else talk.upto(6, 1)):
            made += _chat_calls(talk)
        if turn == turns - 1:
            return made
        made.append({"role": "assistant", "content": talk.text(), "refusal": None})
        if talk.happens(8):
            made.append({"role": "system", "content": talk.text()})
    return made


def _responses_answer(talk: Talk, *, thinks: bool, is_final: bool) -> list[Item]:
    """Return what one response said: reasoning, hosted calls, then calls or a message."""
    said: list[Item] = []
    if thinks:
        said.append(
            {"type": "reasoning", "id": f"rs_{talk.mark()}", "summary": [], "encrypted_content": "x=="}
        )
    if talk.happens(6):
        said.append({"type": "web_search_call", "id": f"ws_{talk.mark()}", "status": "completed"})
        if thinks:
            said.append({"type": "reasoning", "id": f"rs_{talk.mark()}", "summary": []})
    if thinks and talk.happens(8):
        # Nobody but the API knows what this needs; the reasoning before it needs it.
        said.append({"type": "mcp_call", "id": f"mcp_{talk.mark()}", "name": "f", "arguments": "{}"})
    if is_final:
        parts = [{"type": "output_text", "text": talk.text(), "annotations": []}]
        return [*said, {"type": "message", "role": "assistant", "content": parts, "phase": "final"}]
    names = [f"call_{talk.mark()}" for _ in range(talk.upto(3, 1))]
    said += [{"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} for name in names]
    said += [{"type": "function_call_output", "call_id": name, "output": talk.text()} for name in names[::-1]]
    return said


def _responses(talk: Talk) -> list[Item]:
    made: list[Item] = [
        {"role": role, "content": talk.text()} for role in ("system", "developer") if talk.happens(2)
    ]
    if talk.happens(8):
        made.append({"type": "mcp_list_tools", "id": f"mcpl_{talk.mark()}", "server_label": "s", "tools": []})
    thinks = talk.happens(2)
    turns = talk.upto(8, 1)
    for turn in range(turns):
        content: Any = talk.text()
        if talk.happens(5):
            content = [
                {"type": "input_text", "text": content},
                {"type": "input_image", "image_url": "http://x"},
            ]
        made.append({"type": "message", "role": "user", "content": content} if talk.happens(2) else
                    {"role": "user", "content": content})  # fmt: skip
        is_last = turn == turns - 1
        if is_last and talk.happens(2):
            return made
        for number in range(talk.upto(6, 1) if is_last else talk.upto(3)):
            made += _responses_answer(
                talk, thinks=thinks and (number == 0 or talk.happens(2)), is_final=False
            )
        if is_last:
            return made
        made += _responses_answer(talk, thinks=thinks and talk.happens(2), is_final=True)
        if talk.happens(10):
            made.append({"type": "compaction", "id": f"cmp_{talk.mark()}", "encrypted_content": "y=="})
    return made


def _messages_calls(talk: Talk, *, thinks: bool) -> list[Item]:
    names = [f"toolu_{talk.mark()}" for _ in range(talk.upto(3, 1))]
    said: list[Item] = []
    if thinks:
        said.append({"type": "thinking", "thinking": talk.text(), "signature": "c2lnbmVk"})
    if talk.happens(3):
        said.append({"type": "text", "text": talk.text()})
    said += [{"type": "tool_use", "id": name, "name": "f", "input": {"q": 1}} for name in names]
    results: list[Item] = [
        {"type": "tool_result", "tool_use_id": name, "content": talk.text() if talk.happens(2) else
         [{"type": "text", "text": talk.text()}]}
        for name in names
    ]  # fmt: skip
    if talk.happens(5):
        results.append({"type": "text", "text": talk.text()})
    return [{"role": "assistant", "content": said}, {"role": "user", "content": results}]


def _messages(talk: Talk) -> list[Item]:
    made: list[Item] = []
    thinks = talk.happens(3)
    turns = talk.upto(8, 1)
    for turn in range(turns):
        content: Any = talk.text()
        made.append(
            {"role": "user", "content": [{"type": "text", "text": content}] if talk.happens(3) else content}
        )
        is_last = turn == turns - 1
        if is_last and talk.happens(2):
            return made
        for number in range(talk.upto(6, 1) if is_last else talk.upto(3)):
            made += _messages_calls(talk, thinks=thinks and (number == 0 or talk.happens(2)))
        if is_last:
            return made
        said: list[Item] = [{"type": "text", "text": talk.text()}]
        if thinks:
            said.insert(0, {"type": "redacted_thinking", "data": f"eA=={talk.mark()}"})
        made.append({"role": "assistant", "content": said})
    return made


_MAKERS: Mapping[str, Callable[[Talk], list[Item]]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
}


def conversation(dialect: str, chance: Random, length: int = 1) -> bytes:
    """Return the body of a request; texts are `length` times longer than short ones."""
    talk = Talk(chance, length)
    items = _MAKERS[dialect](talk)
    fields = [f'"model":"gpt-4o","{FIELDS[dialect]}":'.encode() + talk.spelled(items)]
    if dialect == "messages":
        fields.append(b'"max_tokens":64')
        if talk.happens(2):
            fields.append(b'"system":' + json.dumps(talk.text()).encode())
    if dialect == "responses" and talk.happens(2):
        fields.append(b'"instructions":' + json.dumps(talk.text()).encode())
    return b"{" + b", ".join(fields) + b"}"


def conversations(dialect: str) -> st.SearchStrategy[bytes]:
    """Return a strategy of request bodies, which shrinks."""
    return st.randoms(use_true_random=False).map(lambda chance: conversation(dialect, chance))
