"""OpenAI's Chat Completions, as OpenAI and everyone compatible speaks it."""

from __future__ import annotations

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.dialects.dialect import BodyFacts, EventFacts
from proxy.dialects.marking import EndKey
from proxy.dialects.openai_events import END_KEY, MARKERS, read_answer_body, read_chunk_event
from proxy.dialects.plain import PlainDialect, ask_usage_option, asked_choices
from proxy.dialects.reasoning_models import is_openai_reasoning, will_reason

TOOL_LOOP = "tool loop in progress"

# OpenAI has deprecated `max_tokens`, everyone else still takes it and some refuse the newer name.
_TAKE_COMPLETION_CAP = frozenset({"openai", "azure"})
# Others ignore `prediction`.
_TAKE_PREDICTION = _TAKE_COMPLETION_CAP | {"generic"}


class ChatDialect(PlainDialect):
    """`/v1/chat/completions`."""

    name = "chat"
    path = "/v1/chat/completions"
    cap_field_names: tuple[str, ...] = ("max_completion_tokens", "max_tokens")
    caps = frozenset(cap_field_names)
    stop_field: str | None = "stop"
    stop_limit = 4
    markers: tuple[bytes, ...] = MARKERS
    end_key: EndKey | None = END_KEY

    def cap_field(self, document: Document, model: str, provider: str) -> str | None:
        """Return the caller's own field, else the one that provider and model take.

        `None` beside `prediction`, which OpenAI refuses together with a cap.
        """
        own = self.own_cap_field(document)
        if own is not None:
            return own
        if provider in _TAKE_PREDICTION and _is_filled_object(document.get("prediction")):
            return None
        if provider in _TAKE_COMPLETION_CAP or is_openai_reasoning(model):
            return "max_completion_tokens"
        return "max_tokens"

    def refuses_stop(self, model: str) -> bool:
        """Tell whether `model` is one of OpenAI's reasoning models, which refuse `stop`."""
        return is_openai_reasoning(model)

    def is_reasoning(self, document: Document, model: str) -> bool:
        """Tell whether output tokens will be spent on reasoning: what the request says, else its model."""
        return will_reason(document, model)

    def choices(self, document: Document) -> int:
        """Return `n`."""
        return asked_choices(document)

    def ask_usage(self, document: Document) -> Document:
        """Return the document asking for a final usage event; the same object if it must not be asked."""
        return ask_usage_option(document)

    def read_event(self, event: bytes) -> EventFacts:
        """Read one chunk."""
        return read_chunk_event(event)

    def read_body(self, raw: bytes) -> BodyFacts:
        """Read a complete answer."""
        return read_answer_body(raw)

    def waits_for_person(self, document: Document) -> str | None:
        """Recognise a tool loop: the last message is a tool's result."""
        messages = document.array("messages")
        last = decode(messages[-1]) if messages else None
        if isinstance(last, dict) and last.get("role") in ("tool", "function"):
            return TOOL_LOOP
        return None


def _is_filled_object(raw: bytes | None) -> bool:
    return raw is not None and raw.startswith(b"{") and bool(raw.strip(b"{} \t\r\n"))


CHAT = ChatDialect()
