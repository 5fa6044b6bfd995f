"""Chat completions as Anthropic messages and back, as far as nothing is lost either way. Pure.

    request   text only: system and developer messages at the head, then user and assistant in turn
    answer    text, why it ended, usage
    refused   everything that Anthropic's API has no equal for, each with its reason

Refuses to approximate: Anthropic's own compatible endpoint ignores what it does not know, and who asks for
that gets it, by a direct call. Sources: `openai` 3.57 types/chat/completion_create_params.py, `anthropic`
2.14.0 types/message_create_params.py, stop_reason.py and usage.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from proxy.core.document import Document
from proxy.core.json_values import decode

Json = Mapping[str, Any]

# Fields that Weir decides about itself, or takes out of every job.
_WEIRS = frozenset({"stream", "stream_options", "service_tier", "background", "background_options"})
_TRANSLATED = frozenset(
    {"model", "messages", "max_tokens", "max_completion_tokens", "stop", "temperature", "top_p"}
)
# What says no more than leaving it out.
_IDLE: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logprobs": (False,),
    "store": (False,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "modalities": (["text"],),
}
_HEAD_ROLES = frozenset({"system", "developer"})
_FINISH: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_LONGEST_NAME = 40


class Untranslatable(ValueError):
    """Why a request has no equal; ASCII, with nothing of the request but names of fields."""


def chat_obstacle(document: Document) -> str | None:
    """Return why a chat request cannot be a message of Anthropic's, `None` if it can."""
    if document.duplicates:
        return "a field comes twice"
    try:
        as_message(document.to_bytes())
    except Untranslatable as reason:
        return str(reason)
    return None


def as_message(body: bytes) -> bytes:
    """Return a chat request as one of `/v1/messages`. Raises `Untranslatable`."""
    chat = decode(body)
    if not isinstance(chat, dict):
        raise Untranslatable("the body is no object")
    for name, value in chat.items():
        if value is None or name in _WEIRS or name in _TRANSLATED:
            continue
        if not any(value == idle and type(value) is type(idle) for idle in _IDLE.get(name, ())):
            is_plain = name.isascii() and name.isidentifier() and len(name) <= _LONGEST_NAME
            raise Untranslatable(f"{name if is_plain else 'a field'} has no equal in messages")
    system, turns = _conversation(chat.get("messages"))
    message: dict[str, Any] = {"model": chat.get("model"), "max_tokens": _cap(chat)}
    if system:
        message["system"] = system
    message["messages"] = turns
    stops = _stops(chat.get("stop"))
    if stops:
        message["stop_sequences"] = stops
    for name in ("temperature", "top_p"):
        value = chat.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise Untranslatable(f"{name} is not between 0 and 1")
            message[name] = value
    return json.dumps(message).encode()


def _cap(chat: Json) -> int:
    given = [chat.get(name) for name in ("max_tokens", "max_completion_tokens")]
    caps = [cap for cap in given if cap is not None]
    if not caps or any(isinstance(cap, bool) or not isinstance(cap, int) or cap < 1 for cap in caps):
        raise Untranslatable("messages need a max_tokens")
    if len(set(caps)) > 1:
        raise Untranslatable("there are two caps")
    return int(caps[0])


def _stops(stop: Any) -> list[str]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) and each.strip() for each in stops):
        raise Untranslatable("a stop that messages refuse")
    return stops


def _conversation(messages: Any) -> tuple[list[Json], list[Json]]:
    system: list[Json] = []
    turns: list[Json] = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            raise Untranslatable("a message is no object")
        extra = {name for name, value in message.items() if value not in (None, [])} - {"role", "content"}
        if extra:
            raise Untranslatable("a message has more than role and text")
        role, blocks = message.get("role"), _blocks(message.get("content"))
        if role in _HEAD_ROLES and not turns:
            system += blocks
            continue
        expected = "assistant" if turns and turns[-1]["role"] == "user" else "user"
        if role != expected:
            raise Untranslatable("user and assistant do not take turns")
        turns.append({"role": role, "content": blocks})
    if not turns or turns[-1]["role"] != "user":
        raise Untranslatable("the last message is not a user's")
    return system, turns


def _blocks(content: Any) -> list[Json]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not parts:
        raise Untranslatable("a message is not text")
    for part in parts:
        if not isinstance(part, dict) or set(part) != {"type", "text"} or part["type"] != "text":
            raise Untranslatable("a message is not text")
        if not isinstance(part["text"], str) or not part["text"].strip():
            raise Untranslatable("a message is empty")
    return parts


def as_completion(message: bytes, created: float) -> bytes:
    """Return an answer of `/v1/messages` as a chat completion; one of another shape as it is.

    `created` in seconds since the epoch: a message does not say when it was made. Thinking is not told.
    """
    answer = decode(message)
    if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
        return message
    texts = [each.get("text") for each in answer["content"] if isinstance(each, dict)]
    text = "".join(each for each in texts if isinstance(each, str))
    completion = {
        "id": answer.get("id"),
        "object": "chat.completion",
        "created": int(created),
        "model": answer.get("model"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": _FINISH.get(str(answer.get("stop_reason")), "stop"),
            }
        ],
        "usage": _usage(answer.get("usage")),
    }
    return json.dumps(completion).encode()


def _usage(usage: Any) -> Json | None:
    if not isinstance(usage, dict):
        return None
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    fresh, written, read, out = (value if isinstance(value := usage.get(name), int) else 0 for name in names)
    prompt = fresh + written + read
    return {
        "prompt_tokens": prompt,
        "completion_tokens": out,
        "total_tokens": prompt + out,
        "prompt_tokens_details": {"cached_tokens": read},
    }


def as_chat_error(error: Any) -> Json:
    """Return an error of Anthropic's as a chat caller knows errors."""
    inner = error.get("error") if isinstance(error, dict) else None
    told = inner if isinstance(inner, dict) else {}
    kind = str(told.get("type") or "api_error")
    return {"error": {"message": str(told.get("message") or kind), "type": kind, "param": None, "code": kind}}
