"""Conversations as applications have them, made up from a seed: the same bytes every time, on every machine.

Each conversation yields its requests in order, growing as such conversations grow. Texts have the lengths and
repetitions of real ones (frequent words, pasted passages, tool results), and mean nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

_WORDS = (
    "the of and to in a is for that with on as it by this from are be or an at was which not have order "
    "invoice customer parcel refund address delivery account policy error function return value request "
    "server token model prompt answer source passage section table column index query result status report "
    "version release deploy cluster service region latency budget price contract clause payment overdue "
    "warranty replacement schedule meeting summary analysis figure quarter revenue forecast inventory "
    "naïve café über Größe résumé déjà 東京 注文 配送 返品 😀 → — …"
).split()

Message = dict[str, Any]


def corpus(conversations: int, seed: int = 7) -> Iterator[bytes]:
    """Yield lines for `weir explain --jsonl`: bare chat bodies, and other APIs with their path."""
    chance = random.Random(seed)
    makers = (_support, _support, _rag, _agent, _extraction, _code, _responses, _messages)
    for number in range(conversations):
        yield from makers[number % len(makers)](chance)


def _line(body: Message, path: str | None = None) -> bytes:
    said = body if path is None else {"path": path, "headers": {"x-app": "corpus"}, "body": body}
    return json.dumps(said, ensure_ascii=False).encode() + b"\n"


def _text(chance: random.Random, words: int) -> str:
    # Squaring makes early words frequent and late ones rare, as in any language.
    picked = (_WORDS[int(len(_WORDS) * chance.random() ** 2)] for _ in range(words))
    return " ".join(picked) + "."


def _message(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content} | more


def _support(chance: random.Random) -> Iterator[bytes]:
    messages = [_message("system", "You answer for a parcel service. " + _text(chance, 150))]
    for _ in range(chance.randint(3, 9)):
        messages.append(_message("user", _text(chance, chance.randint(8, 60))))
        yield _line({"model": "gpt-4o-mini", "messages": messages, "stream": True})
        messages.append(_message("assistant", _text(chance, chance.randint(30, 160))))


def _rag(chance: random.Random) -> Iterator[bytes]:
    passages = [_text(chance, chance.randint(60, 140)) for _ in range(6)]
    for _ in range(2):
        picked = chance.choices(passages, k=8)
        sources = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(picked, 1))
        question = f"Sources:\n{sources}\n\nQuestion: {_text(chance, 14)}"
        messages = [_message("system", "Answer from the sources only."), _message("user", question)]
        yield _line({"model": "gpt-4o", "messages": messages, "temperature": 0, "max_tokens": 4000})


def _agent(chance: random.Random) -> Iterator[bytes]:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in ("search", "read_file", "run")
    ]
    messages = [
        _message("system", "You work with tools. " + _text(chance, 300)),
        _message("user", _text(chance, 40)),
    ]
    for step in range(chance.randint(2, 6)):
        yield _line({"model": "gpt-4o", "messages": messages, "tools": tools})
        calls = [
            {
                "id": f"call_{step}_{index}",
                "type": "function",
                "function": {"name": "search", "arguments": "{}"},
            }
            for index in range(chance.randint(1, 3))
        ]
        messages.append(_message("assistant", None, tool_calls=calls))
        messages += [
            _message("tool", _text(chance, chance.randint(40, 400)), tool_call_id=call["id"])
            for call in calls
        ]


def _extraction(chance: random.Random) -> Iterator[bytes]:
    messages = [_message("system", "Extract the parties."), _message("user", _text(chance, 500))]
    yield _line({"model": "gpt-4o-mini", "messages": messages, "response_format": {"type": "json_object"}})


def _code(chance: random.Random) -> Iterator[bytes]:
    source = "\n".join(f"def f{index}(x):\n    return x + {index}" for index in range(60))
    messages = [_message("developer", "You review Python."), _message("user", f"```python\n{source}\n```")]
    for _ in range(3):
        yield _line({"model": "gpt-5", "messages": messages, "reasoning_effort": "low"})
        messages += [_message("assistant", _text(chance, 120)), _message("user", _text(chance, 20))]


def _responses(chance: random.Random) -> Iterator[bytes]:
    items: list[Message] = []
    for _ in range(3):
        items.append(_message("user", _text(chance, 40)))
        body = {"model": "gpt-4.1", "instructions": _text(chance, 50), "input": items, "store": False}
        yield _line(body, "/v1/responses")
        items.append(_message("assistant", [{"type": "output_text", "text": _text(chance, 90)}]))


def _messages(chance: random.Random) -> Iterator[bytes]:
    turns: list[Message] = []
    for _ in range(3):
        turns.append(_message("user", _text(chance, 40)))
        body = {"model": "claude-sonnet-5", "max_tokens": 4096, "system": "Be kind.", "messages": turns}
        yield _line(body, "/v1/messages")
        turns.append(_message("assistant", [{"type": "text", "text": _text(chance, 90)}]))
