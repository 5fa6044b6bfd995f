"""OpenAI's Responses API: typed items in, typed events out."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.core.sse import event_data, event_name
from proxy.dialects.dialect import NOTHING, BodyFacts, EventFacts
from proxy.dialects.openai_events import compact_json
from proxy.dialects.plain import PlainDialect
from proxy.dialects.reasoning_models import will_reason
from proxy.dialects.tolerant_json import is_filled, read_struct
from proxy.dialects.usage_counts import responses_usage

_TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled"})
_FINISHED = frozenset({"completed", "failed", "incomplete", "cancelled"})
_FULL_TEXTS = frozenset({"response.output_text.done", "response.refusal.done"})
_PARTIAL_IMAGE = "response.image_generation_call.partial_image"
_CONTENT = EventFacts(first_content=True)


class _Item(msgspec.Struct, gc=False):
    type: Any = None
    name: Any = None
    content: Any = None
    arguments: Any = None
    result: Any = None


class _Response(msgspec.Struct, gc=False):
    status: Any = None
    usage: Any = None
    error: Any = None
    output: list[_Item] | None = None


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    partial_image_b64: Any = None
    item: _Item | None = None
    response: _Response | None = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)
_RESPONSE = msgspec.json.Decoder(_Response)


class ResponsesDialect(PlainDialect):
    """`/v1/responses`. It has no stop sequences."""

    name = "responses"
    path = "/v1/responses"
    cap_field_names: tuple[str, ...] = ("max_output_tokens",)
    caps = frozenset(cap_field_names)
    # OpenAI answers 400 (integer_below_min_value) to less.
    least_cap_tokens = 16
    markers: tuple[bytes, ...] = (
        b"response.completed",
        b"response.incomplete",
        b"response.failed",
        b"response.cancelled",
        b"[DONE]",
        b"error",
    )

    def cap_field(self, document: Document, model: str, provider: str) -> str | None:
        """Return the only cap field there is."""
        return "max_output_tokens"

    def is_reasoning(self, document: Document, model: str) -> bool:
        """Tell whether output tokens will be spent on reasoning: what the request says, else its model."""
        return will_reason(document, model)

    def read_event(self, event: bytes) -> EventFacts:
        """Read one typed event. The finish reason is the status of the whole answer."""
        data = event_data(event)
        if data.startswith(b"[DONE]"):
            return EventFacts(terminal=True)
        said = read_struct(_EVENT, data) if data.lstrip()[:1] == b"{" else None
        if said is None:
            return EventFacts(error=True) if event_name(event) == b"error" else NOTHING
        kind = said.type if isinstance(said.type, str) else event_name(event).decode("ascii", "replace")
        if kind in _TERMINAL:
            return _read_end(kind, said.response or _Response())
        if kind == "error" or said.error:
            return EventFacts(error=True)
        return _CONTENT if _is_content(kind, said) else NOTHING

    def read_body(self, raw: bytes) -> BodyFacts:
        """Read a complete answer; HTTP 200 may carry a failure."""
        response = read_struct(_RESPONSE, raw)
        if response is None:
            return BodyFacts()
        said = response.status
        status = said if isinstance(said, str) and said in _FINISHED else None
        return BodyFacts(
            usage=responses_usage(response.usage),
            finish_reason=status,
            error=bool(response.error) or status == "failed",
            empty=status is not None and not _has_output(response),
        )

    def error_event(self, message: str, code: str, sequence_number: int | None) -> bytes:
        """Return an `error` event.

        Its documented fields stand at the top level; live servers nest them under `error`, and only that key
        makes the official SDKs raise. Both are written.
        """
        error = {"type": "upstream_error", "code": code, "message": message, "param": None}
        event: dict[str, object] = {"type": "error", "code": code, "message": message, "param": None}
        if sequence_number is not None:
            event["sequence_number"] = sequence_number
        return b"event: error\ndata: " + compact_json({**event, "error": error}) + b"\n\n"

    def waits_for_person(self, document: Document) -> str | None:
        """Recognise a tool loop (the last item is a call's output) and context that lives at the server."""
        items = document.array("input")
        last = decode(items[-1]) if items else None
        kind = last.get("type") if isinstance(last, dict) else None
        if isinstance(kind, str) and (kind.endswith("_output") or kind == "mcp_approval_response"):
            return "tool loop in progress"
        for field in ("previous_response_id", "conversation"):
            if document.get(field) not in (None, b"null"):
                return "conversation in progress"
        return None


def _read_end(kind: str, response: _Response) -> EventFacts:
    status = kind.removeprefix("response.")
    return EventFacts(
        first_content=_has_output(response),
        finish_reason=status,
        terminal=True,
        usage=responses_usage(response.usage),
        error=status == "failed",
    )


def _is_content(kind: str, said: _Event) -> bool:
    if kind.endswith(".delta"):
        return is_filled(said.delta)
    if kind in _FULL_TEXTS:
        return is_filled(said.text) or is_filled(said.refusal)
    if kind == _PARTIAL_IMAGE:
        return is_filled(said.partial_image_b64)
    return said.item is not None and kind.startswith("response.output_item.") and _is_filled_item(said.item)


def _is_filled_item(item: _Item) -> bool:
    """Tell whether an item shows its reader something: a call with its name, text, an image."""
    if item.type == "reasoning":
        return False
    return any(is_filled(part) for part in (item.name, item.content, item.arguments, item.result))


def _has_output(response: _Response) -> bool:
    return any(_is_filled_item(item) for item in response.output or ())


RESPONSES = ResponsesDialect()
