"""What all dialects share: an API shape without turns, caps, stops or streams. The others add to it."""

from __future__ import annotations

from proxy.core.document import Document
from proxy.dialects.dialect import NOTHING, BodyFacts, EventFacts
from proxy.dialects.marking import EndKey
from proxy.dialects.openai_events import openai_error_event, read_list_body


class PlainDialect:
    """One JSON request, one JSON answer, nothing to rewrite."""

    name: str
    path: str
    cap_field_names: tuple[str, ...] = ()
    caps: frozenset[str] = frozenset()
    least_cap_tokens: int = 1
    stop_field: str | None = None
    stop_limit: int = 0
    refuses_blank_stop: bool = False
    markers: tuple[bytes, ...] = ()
    end_key: EndKey | None = None

    def __repr__(self) -> str:
        return f"<dialect {self.name}>"

    def cap_field(self, document: Document, model: str, provider: str) -> str | None:
        """Return the field into which an output cap belongs, the caller's own if it used one."""
        return self.own_cap_field(document)

    def own_cap_field(self, document: Document) -> str | None:
        """Return the cap field that the caller used; null is as good as absent."""
        if not document.has_any(self.caps):
            return None
        for name in self.cap_field_names:
            value = document.get(name)
            if value is not None and value != b"null":
                return name
        return None

    def refuses_stop(self, model: str) -> bool:
        """Tell whether this endpoint answers 400 to stop sequences for `model`."""
        return False

    def is_reasoning(self, document: Document, model: str) -> bool:
        """Tell whether output tokens will be spent on reasoning first."""
        return False

    def is_stream(self, document: Document) -> bool:
        """Tell whether the caller asked for an event stream; only the literal `true` does."""
        return document.get("stream") == b"true"

    def choices(self, document: Document) -> int:
        """Return how many choices the answer will have: one."""
        return 1

    def ask_usage(self, document: Document) -> Document:
        """Return the document asking for a final usage event; here there is none to ask for."""
        return document

    def read_event(self, event: bytes) -> EventFacts:
        """Read one SSE event; this API has none."""
        return NOTHING

    def read_body(self, raw: bytes) -> BodyFacts:
        """Read a complete JSON answer; empty facts for what is not understood."""
        return read_list_body(raw)

    def error_event(self, message: str, code: str, sequence_number: int | None) -> bytes:
        """Return the SSE event with which OpenAI's APIs report a failure midway, terminator included."""
        return openai_error_event(message, code)

    def waits_for_person(self, document: Document) -> str | None:
        """Return why this request belongs to a tool loop or a conversation in progress, if it does."""
        return None


def asked_choices(document: Document) -> int:
    """Return `n` where it is a number of choices, 1 where it is not."""
    wanted = document.value("n")
    return wanted if isinstance(wanted, int) and wanted > 1 else 1


def ask_usage_option(document: Document) -> Document:
    """Return a streaming document that asks for usage; the same object if it must not be asked.

    Any `include_usage` that the caller wrote is its own decision, null included, and `stream_options` of
    another type is for the upstream to judge.
    """
    options = document.get("stream_options")
    if document.get("stream") != b"true":
        return document
    if options is None or options == b"null":
        return document.set("stream_options", b'{"include_usage":true}')
    if document.get_path(("stream_options", "include_usage")) is not None:
        return document
    return document.set_path(("stream_options", "include_usage"), b"true")
