"""The lanes and kinds of requests that the contract of lanes is tested with, and an upstream that serves all.

A vector says which input it belongs to, and a text which prompt, so that every answer can be checked.
"""

from __future__ import annotations

import json
from typing import Any

from proxy.core.decision import Strategy
from proxy.policy.model import CoalescePolicy
from tests.support.carried import Kind
from tests.support.raw_upstream import Call

CHAT_PATH, EMBEDDINGS_PATH = "/v1/chat/completions", "/v1/embeddings"
POOLED = CoalescePolicy(max_wait_seconds=1.0)
LONG = "The weir keeps the level of the upper reach. " * 200


def _chat(**more: Any) -> bytes:
    made = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]} | more
    return json.dumps(made, separators=(",", ":")).encode()


_LONG_CHAT = [{"role": "system", "content": LONG}, {"role": "user", "content": "hi"}]
_PROMPT = b'{"model":"gpt-3.5-turbo-instruct","prompt":"a"%b}'

KINDS = {
    kind.name: kind
    for kind in (
        Kind("stream", CHAT_PATH, _chat(), POOLED, None),
        Kind("stream events", CHAT_PATH, _chat(stream=True), POOLED, None),
        Kind("merge", EMBEDDINGS_PATH, b'{"model":"m","input":"a"}', POOLED, Strategy.MERGE),
        Kind("merge completions", "/v1/completions", _PROMPT % b"", POOLED, Strategy.MERGE),
        Kind("merge events", "/v1/completions", _PROMPT % b',"stream":true', POOLED, Strategy.MERGE),
        Kind("share", CHAT_PATH, _chat(temperature=0), POOLED, Strategy.SHARE),
        Kind("share events", CHAT_PATH, _chat(temperature=0, stream=True), POOLED, Strategy.SHARE),
        Kind("sample", CHAT_PATH, _chat(), POOLED, Strategy.SAMPLE),
        Kind("warm", CHAT_PATH, _chat(messages=_LONG_CHAT, user="u", n=2), POOLED, Strategy.WARM),
        Kind(
            "pace",
            CHAT_PATH,
            _chat(n=2),
            CoalescePolicy(max_wait_seconds=1.0, max_in_flight=1),
            Strategy.PACE,
        ),
    )
}


def serve(call: Call) -> None:
    """Answer any kind of request: JSON or events, as many elements as were asked for."""
    asked = json.loads(call.body)
    if asked.get("stream"):
        call.stream_head()
        for event in events(asked):
            call.chunk(event)
        call.end_chunks()
    else:
        call.json(json.dumps(answer(asked)).encode())


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the whole answer to a request."""
    if "input" in asked:
        inputs = _inputs(asked["input"])
        data = [
            {"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(inputs)
        ]
        tokens = sum(len(str(text)) for text in inputs)
        return {"object": "list", "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    choices = [{"index": index, "text": text, "finish_reason": "stop"} for index, text in _texts(asked)]
    if "messages" in asked:
        for choice in choices:
            choice["message"] = {"role": "assistant", "content": choice.pop("text")}
    used = {"prompt_tokens": 3 * len(choices), "completion_tokens": 2 * len(choices)}
    return {"id": "cmpl-7", "choices": choices, "usage": used | {"total_tokens": 5 * len(choices)}}


def events(asked: dict[str, Any]) -> list[bytes]:
    """Return the events of a streamed answer."""
    made: list[Any] = []
    for index, text in _texts(asked):
        said = {"delta": {"content": text}} if "messages" in asked else {"text": text}
        made.append({"id": "cmpl-7", "choices": [{"index": index, **said, "finish_reason": None}]})
        ended: dict[str, Any] = {"delta": {}} if "messages" in asked else {"text": ""}
        made.append({"id": "cmpl-7", "choices": [{"index": index, **ended, "finish_reason": "stop"}]})
    return [b"data: " + json.dumps(each).encode() + b"\n\n" for each in made] + [b"data: [DONE]\n\n"]


def vector(text: object) -> list[int]:
    """Return the vector of one input."""
    return [len(str(text)), sum(str(text).encode())]


def _inputs(value: Any) -> list[Any]:
    is_one = isinstance(value, str) or (value and isinstance(value[0], int))
    return [value] if is_one else list(value)


def _texts(asked: dict[str, Any]) -> list[tuple[int, str]]:
    prompts = _inputs(asked["prompt"]) if "prompt" in asked else ["chat"]
    count = asked.get("n") or 1
    return [(p * count + c, f"to {prompt}") for p, prompt in enumerate(prompts) for c in range(count)]
