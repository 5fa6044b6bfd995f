"""A complete JSON answer told as the events of a stream, for a caller that asked for one.

Owns chat and completions, and which module tells the other APIs. What is made is what the API itself streams,
in few large pieces: nothing of the answer is left out, and nothing is invented. It refuses what it does not
understand, and errors: those are answered as they came.

Used where one answer serves callers of both kinds, and where an answer was produced without a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from proxy.core.json_values import decode
from proxy.dialects.messages_answer_events import message_events
from proxy.dialects.openai_events import compact_json
from proxy.dialects.responses_answer_events import response_events

_DONE = b"data: [DONE]\n\n"
_UNTOLD = frozenset({"choices", "usage", "object"})
_OPENING = ("role", "content", "refusal")
_PIECES = ("reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "content", "refusal")
_CALLS = "tool_calls"

Json = Mapping[str, Any]


def answer_events(dialect_name: str, body: bytes, includes_usage: bool) -> bytes | None:
    """Return the whole event stream, `None` for a body that is no such answer.

    `includes_usage` says that the stream was asked for usage (`stream_options.include_usage`); APIs that tell
    it unasked always do. Text is written in ASCII with escapes; numbers keep their value.
    """
    tell = _TELLERS.get(dialect_name)
    answer = decode(body) if tell is not None else None
    if tell is None or not isinstance(answer, dict):
        return None
    try:
        return tell(answer, includes_usage)
    except (AttributeError, KeyError, TypeError, ValueError):
        # Some part is of another type than anyone documents: it cannot be told in the API's own terms.
        return None


def tells_events(dialect_name: str) -> bool:
    """Tell whether answers of this API can be told as events."""
    return dialect_name in _TELLERS


def _chat(answer: Json, includes_usage: bool) -> bytes | None:
    return _chunks(answer, "chat.completion.chunk", includes_usage, _chat_steps)


def _completions(answer: Json, includes_usage: bool) -> bytes | None:
    return _chunks(answer, "text_completion", includes_usage, _completion_steps)


def _chunks(
    answer: Json, kind: str, includes_usage: bool, steps: Callable[[Json], Iterator[dict[str, Any]]]
) -> bytes | None:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or answer.get("error"):
        return None
    envelope = {"object": kind, **{key: value for key, value in answer.items() if key not in _UNTOLD}}
    null_usage = {"usage": None} if includes_usage else {}
    events = [
        _event({**envelope, "choices": [step], **null_usage}) for choice in choices for step in steps(choice)
    ]
    if includes_usage:
        events.append(_event({**envelope, "choices": [], "usage": answer.get("usage")}))
    return b"".join((*events, _DONE))


def _event(value: Json) -> bytes:
    return b"data: " + compact_json(value) + b"\n\n"


def _chat_steps(choice: Json) -> Iterator[dict[str, Any]]:
    """Yield one choice: its role, each field that holds text, its calls, its end."""
    message: Json = choice["message"]
    if not message.keys():
        raise KeyError("message")
    index = choice.get("index", 0)

    def step(delta: Json, **others: Any) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **others}

    content = message.get("content")
    opening = {"role": message.get("role", "assistant"), "content": "" if isinstance(content, str) else None}
    if "refusal" in message:
        opening["refusal"] = None
    rest = {key: message[key] for key in message if key not in (*_OPENING, *_PIECES, _CALLS)}
    yield step({**opening, **rest})
    logprobs = {"logprobs": choice["logprobs"]} if choice.get("logprobs") is not None else {}
    for name in _PIECES:
        if message.get(name):
            is_scored = name in ("content", "refusal")
            yield step({name: message[name]}, **(logprobs if is_scored else {}))
            logprobs = {} if is_scored else logprobs
    for number, call in enumerate(message.get(_CALLS) or ()):
        yield step({_CALLS: [{"index": number, **call}]})
    ending = {key: choice[key] for key in choice if key not in ("message", "logprobs", "index")}
    yield step({}, **{**logprobs, **ending})


def _completion_steps(choice: Json) -> Iterator[dict[str, Any]]:
    text, reason = choice["text"], choice.get("finish_reason")
    if not isinstance(text, str):
        raise TypeError("text")
    yield {**choice, "finish_reason": None}
    yield {"text": "", "index": choice.get("index", 0), "logprobs": None, "finish_reason": reason}


_TELLERS: Mapping[str, Callable[[Json, bool], bytes | None]] = {
    "chat": _chat,
    "completions": _completions,
    "responses": lambda answer, _: response_events(answer),
    "messages": lambda answer, _: message_events(answer),
}
