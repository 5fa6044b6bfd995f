"""Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.core.sse import event_data, event_name
from proxy.dialects.dialect import NOTHING, BodyFacts, EventFacts
from proxy.dialects.openai_events import compact_json
from proxy.dialects.plain import PlainDialect
from proxy.dialects.reasoning_models import asks_for_reasoning
from proxy.dialects.tolerant_json import is_filled, read_struct
from proxy.dialects.usage_counts import messages_usage

_CONTENT = EventFacts(first_content=True)
_DONE = EventFacts(terminal=True)
_ERROR = EventFacts(error=True)


class _Piece(msgspec.Struct, gc=False):
    """A content block or a delta of one, or the delta of the whole message."""

    type: Any = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    name: Any = None
    stop_reason: Any = None


class _Message(msgspec.Struct, gc=False):
    type: Any = None
    usage: Any = None
    stop_reason: Any = None
    error: Any = None
    content: list[_Piece] | None = None


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    delta: _Piece | None = None
    content_block: _Piece | None = None
    message: _Message | None = None
    usage: Any = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)
_MESSAGE = msgspec.json.Decoder(_Message)


class MessagesDialect(PlainDialect):
    """`/v1/messages`. A cap is required there, so that there is nothing to be a default for."""

    name = "messages"
    path = "/v1/messages"
    cap_field_names: tuple[str, ...] = ("max_tokens",)
    caps = frozenset(cap_field_names)
    stop_field: str | None = "stop_sequences"
    # Documented by Amazon Bedrock for the same API; Anthropic names no number.
    stop_limit = 8191
    refuses_blank_stop = True
    markers: tuple[bytes, ...] = (b"message_delta", b"message_stop", b"error")

    def cap_field(self, document: Document, model: str, provider: str) -> str | None:
        """Return the only cap field there is."""
        return "max_tokens"

    def is_reasoning(self, document: Document, model: str) -> bool:
        """Tell whether the request switches thinking on: models do not think unasked."""
        return asks_for_reasoning(document) is True

    def read_event(self, event: bytes) -> EventFacts:
        """Read one typed event; a prompt's usage comes with the first, the answer's with the last but one."""
        data = event_data(event)
        said = read_struct(_EVENT, data) if data.lstrip()[:1] == b"{" else None
        if said is None:
            return _ERROR if event_name(event) == b"error" else NOTHING
        kind = said.type if isinstance(said.type, str) else event_name(event).decode("ascii", "replace")
        match kind:
            case "content_block_delta":
                return _CONTENT if _is_content(said.delta) else NOTHING
            case "content_block_start":
                return _CONTENT if _is_content(said.content_block) else NOTHING
            case "message_start":
                usage = None if said.message is None else messages_usage(said.message.usage)
                return EventFacts(usage=usage) if usage is not None else NOTHING
            case "message_delta":
                reason = None if said.delta is None else _reason(said.delta.stop_reason)
                return EventFacts(finish_reason=reason, usage=messages_usage(said.usage))
            case "message_stop":
                return _DONE
            case "error":
                return _ERROR
            case _:
                return _ERROR if said.error else NOTHING

    def read_body(self, raw: bytes) -> BodyFacts:
        """Read a complete answer."""
        message = read_struct(_MESSAGE, raw)
        if message is None:
            return BodyFacts()
        blocks = message.content
        visible = [block for block in blocks or () if block.type not in ("thinking", "redacted_thinking")]
        return BodyFacts(
            usage=messages_usage(message.usage),
            finish_reason=_reason(message.stop_reason),
            error=message.type == "error" or bool(message.error),
            empty=blocks is not None and not any(_is_content(block) for block in visible),
        )

    def error_event(self, message: str, code: str, sequence_number: int | None) -> bytes:
        """Return an `error` event; this API has no codes, so the code goes into the message."""
        error = {"type": "api_error", "message": f"{message} ({code})"}
        return b"event: error\ndata: " + compact_json({"type": "error", "error": error}) + b"\n\n"

    def waits_for_person(self, document: Document) -> str | None:
        """Recognise a tool loop: the last message brings tool results."""
        messages = document.array("messages")
        last = decode(messages[-1]) if messages else None
        blocks = last.get("content") if isinstance(last, dict) else None
        if isinstance(blocks, list) and any(
            isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks
        ):
            return "tool loop in progress"
        return None


def _is_content(piece: _Piece | None) -> bool:
    """Tell whether a block or delta shows something; signatures and citations alone do not."""
    if piece is None:
        return False
    return any(is_filled(part) for part in (piece.text, piece.thinking, piece.partial_json, piece.name))


def _reason(stop_reason: object) -> str | None:
    return stop_reason if isinstance(stop_reason, str) and stop_reason else None


MESSAGES = MessagesDialect()
