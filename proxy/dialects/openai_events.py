"""Answers in OpenAI's shape: chunks with `choices`, complete bodies, errors. Shared by chat and completions.

Providers deviate, and every deviation met in the field has its place here: `choices` missing, null or empty,
usage on the last choice or under `x_groq`, errors as chunks, `[DONE]` with something behind it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from proxy.core.sse import event_data, event_name
from proxy.core.usage import Usage
from proxy.dialects.dialect import NOTHING, BodyFacts, EventFacts
from proxy.dialects.marking import EndKey
from proxy.dialects.tolerant_json import is_filled, read_struct
from proxy.dialects.usage_counts import openai_usage

MARKERS = (b'_tokens"', b"[DONE]", b"error")
"""Every usage object has a key that ends in `_tokens"`, which also no JSON string can contain but at its end;
`error` stands for the key, the event name and the finish reason."""

END_KEY = EndKey(b"finish_reason", b'finish_reason":null', b'finish_reason": null')
"""Says `null` in most chunks."""

_CONTENT = EventFacts(first_content=True)
_DONE = EventFacts(terminal=True)
_ERROR = EventFacts(error=True)


class _Said(msgspec.Struct, gc=False):
    """What may carry content, in a streamed delta as in a complete message."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_text: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    audio: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = None
    delta: _Said | None = None
    message: _Said | None = None
    text: Any = None
    finish_reason: Any = None


class _Groq(msgspec.Struct, gc=False):
    usage: Any = None


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    x_groq: _Groq | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


def read_chunk_event(event: bytes) -> EventFacts:
    """Read one SSE event of a chat or completions stream; never raises."""
    data = event_data(event)
    if b"error" in event and event_name(event) == b"error":
        return _ERROR
    if data.startswith(b"[DONE]"):
        return _DONE
    answer = read_struct(_ANSWER, data) if data.lstrip()[:1] == b"{" else None
    if answer is None:
        return NOTHING
    choices = answer.choices
    has_content = False
    finish_reason: str | None = None
    finished: list[int] = []
    if choices:
        for position, choice in enumerate(choices):
            if not has_content and (choice.text or choice.delta is not None):
                has_content = is_filled(choice.text) or _says_something(choice.delta)
            if choice.finish_reason is not None:
                reason = _reason(choice.finish_reason)
                finish_reason = finish_reason or reason
                if reason is not None:
                    finished.append(choice.index if isinstance(choice.index, int) else position)
    usage = None if answer.usage is None and answer.x_groq is None else _usage(answer)
    error = answer.error is not None and _is_error(answer)
    if finish_reason is None and usage is None and not error and answer.object != "error":
        return _CONTENT if has_content else NOTHING
    return EventFacts(
        first_content=has_content,
        finish_reason=finish_reason,
        usage=usage,
        usage_only=usage is not None and not choices and not error,
        error=error or answer.object == "error" or finish_reason == "error",
        finished=tuple(finished) or (0,),
    )


def read_answer_body(raw: bytes) -> BodyFacts:
    """Read a complete chat or completions answer; never raises.

    `empty` says that no choice has anything for its reader: reasoning alone is nothing.
    """
    answer = read_struct(_ANSWER, raw)
    if answer is None:
        return BodyFacts()
    finish_reason: str | None = None
    is_empty = answer.choices is not None
    for choice in answer.choices or ():
        finish_reason = finish_reason or _reason(choice.finish_reason)
        is_empty = is_empty and not _is_visible(choice)
    return BodyFacts(
        usage=_usage(answer),
        finish_reason=finish_reason,
        error=_is_error(answer) or finish_reason == "error",
        empty=is_empty,
    )


def read_list_body(raw: bytes) -> BodyFacts:
    """Read a complete embeddings or moderations answer; never raises."""
    answer = read_struct(_ANSWER, raw)
    return BodyFacts() if answer is None else BodyFacts(usage=_usage(answer), error=_is_error(answer))


def openai_error_event(message: str, code: str) -> bytes:
    """Return an error as the official SDKs raise it: an object with an `error` key, and no `[DONE]` after."""
    error = {"message": message, "type": "upstream_error", "param": None, "code": code}
    return b"data: " + compact_json({"error": error}) + b"\n\n"


def compact_json(value: object) -> bytes:
    """Return JSON in ASCII, so that even a lone surrogate in a message can be sent."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _says_something(said: _Said | None) -> bool:
    if said is None:
        return False
    return (
        is_filled(said.content)
        or is_filled(said.reasoning_content)
        or is_filled(said.reasoning)
        or is_filled(said.reasoning_text)
        or is_filled(said.reasoning_details)
        or is_filled(said.refusal)
        or _calls_something(said)
        or _is_audible(said.audio)
    )


def _calls_something(said: _Said) -> bool:
    if not said.tool_calls and not said.function_call:
        return False
    calls = said.tool_calls if isinstance(said.tool_calls, list) else []
    called = [call.get(kind) for call in calls if isinstance(call, dict) for kind in ("function", "custom")]
    called.append(said.function_call)
    return any(
        isinstance(part, dict) and any(is_filled(part.get(key)) for key in ("name", "arguments", "input"))
        for part in called
    )


def _is_audible(audio: object) -> bool:
    return isinstance(audio, dict) and (is_filled(audio.get("data")) or is_filled(audio.get("transcript")))


def _is_visible(choice: _Choice) -> bool:
    said = choice.message
    if said is None:
        return is_filled(choice.text)
    return (
        is_filled(said.content)
        or is_filled(said.refusal)
        or _calls_something(said)
        or _is_audible(said.audio)
        or is_filled(choice.text)
    )


def _reason(finish_reason: object) -> str | None:
    return finish_reason if isinstance(finish_reason, str) and finish_reason else None


def _usage(answer: _Answer) -> Usage | None:
    usage = openai_usage(answer.usage)
    if usage is None and answer.x_groq is not None:
        return openai_usage(answer.x_groq.usage)
    return usage


def _is_error(answer: _Answer) -> bool:
    # Older vLLM servers answer {"object": "error", "message": ...} without an error key.
    return bool(answer.error) or answer.object == "error"
