"""One complete event stream of each API shape, cut into the parts that matter to whoever relays it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.support.chat import DONE, finish
from tests.support.served import UPSTREAM


@dataclass(frozen=True, slots=True)
class Shape:
    """A stream of one API.

    `opening` has no content, `words` are the content events, `closing` begins with the finish reason (or the
    terminal event) and `usage` is what the stream reports as (input, output) tokens. `finished` is the finish
    reason as the access log has it.
    """

    name: str
    path: str
    request: bytes
    opening: bytes
    words: tuple[bytes, ...]
    closing: tuple[bytes, ...]
    finished: str
    usage: tuple[int, int]

    @property
    def whole(self) -> bytes:
        """The stream from its first byte to its last."""
        return self.opening + b"".join(self.words) + b"".join(self.closing)

    @property
    def half(self) -> bytes:
        """The stream up to its middle: content, but no end."""
        return self.opening + b"".join(self.words[:2])

    def error_of(self, body: bytes) -> dict[str, Any]:
        """Return the data of the last event of `body`, which must be an error in this shape.

        Checks what the official SDK of the API looks at: the key or the name by which it raises.
        """
        event = body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
        *names, data = event.split(b"\n")
        assert data.startswith(b"data: "), body[-300:]
        said: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
        assert said["error"]["message"]
        if self.name in ("responses", "messages"):
            assert names == [b"event: error"]
            assert said["type"] == "error"
        else:
            assert names == []
            assert set(said) == {"error"}
            assert set(said["error"]) == {"message", "type", "param", "code"}
        return said


def every_shape(*route_lines: str, upstream: str = "") -> str:
    """Return a policy with one route for each shape, all with these lines.

    `upstream` are YAML flow entries of an upstream `up` that all of them use.
    """
    lines = ["version: 1"]
    if upstream:
        lines.append(f"upstreams: {{up: {{base_url: '{UPSTREAM}', {upstream}}}}}")
    lines.append("routes:")
    for shape in SHAPES:
        lines += [f"  - name: {shape.name}", f"    match: {{path: {shape.path}}}"]
        lines += [f"    {line}" for line in route_lines]
    return "\n".join(lines) + "\n"


def data_event(said: object) -> bytes:
    """Return an event with compact JSON data."""
    return b"data: " + json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def named_event(kind: str, **said: object) -> bytes:
    """Return an event as typed APIs write it: its name twice."""
    return b"event: " + kind.encode() + b"\n" + data_event({"type": kind, **said})


def usage_event(prompt: int = 5, completion: int = 4) -> bytes:
    """Return the chunk that OpenAI sends only when it is asked for usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return data_event({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage})


def spoken(text: str) -> bytes:
    """Return a chunk with visible content, its characters as UTF-8."""
    return data_event({"choices": [{"index": 0, "delta": {"content": text}}]})


def _text(text: str, reason: str | None = None) -> bytes:
    return data_event({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})


def _said(number: int, text: str) -> bytes:
    return named_event("response.output_text.delta", delta=text, sequence_number=number)


def _block(text: str) -> bytes:
    return named_event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


CHAT = Shape(
    "chat",
    "/v1/chat/completions",
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,'
    b'"stream_options":{"include_usage":true}}',
    data_event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
    tuple(spoken(word) for word in ("one ", "無엇 ", "\U0001f9ea ", "four")),
    (finish(), usage_event(), DONE),
    "stop",
    (5, 4),
)
COMPLETIONS = Shape(
    "completions",
    "/v1/completions",
    b'{"model":"m","prompt":"hi","stream":true,"stream_options":{"include_usage":true}}',
    _text(""),
    tuple(_text(word) for word in ("one ", "two ", "three ", "four")),
    (_text("", "stop"), usage_event(), DONE),
    "stop",
    (5, 4),
)
RESPONSES = Shape(
    "responses",
    "/v1/responses",
    b'{"model":"m","input":"hi","stream":true}',
    named_event("response.created", response={"status": "in_progress"}, sequence_number=0),
    tuple(_said(number, word) for number, word in enumerate(("one ", "two ", "three ", "four"), start=1)),
    (
        named_event(
            "response.completed",
            response={"status": "completed", "usage": {"input_tokens": 5, "output_tokens": 4}},
            sequence_number=5,
        ),
    ),
    "completed",
    (5, 4),
)
MESSAGES = Shape(
    "messages",
    "/v1/messages",
    b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":true}',
    named_event("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1}})
    + named_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    + named_event("ping"),
    tuple(_block(word) for word in ("one ", "two ", "three ", "four")),
    (
        named_event("content_block_stop", index=0)
        + named_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 4}),
        named_event("message_stop"),
    ),
    "end_turn",
    (5, 4),
)
SHAPES = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
