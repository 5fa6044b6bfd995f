"""OpenAI's legacy Completions: a prompt in, text out. It has no turns, hence no tool loops."""

from __future__ import annotations

from proxy.core.document import Document
from proxy.dialects.dialect import BodyFacts, EventFacts
from proxy.dialects.marking import EndKey
from proxy.dialects.openai_events import END_KEY, MARKERS, read_answer_body, read_chunk_event
from proxy.dialects.plain import PlainDialect, ask_usage_option, asked_choices


class CompletionsDialect(PlainDialect):
    """`/v1/completions`."""

    name = "completions"
    path = "/v1/completions"
    cap_field_names: tuple[str, ...] = ("max_tokens",)
    caps = frozenset(cap_field_names)
    stop_field: str | None = "stop"
    stop_limit = 4
    markers: tuple[bytes, ...] = MARKERS
    end_key: EndKey | None = END_KEY

    def cap_field(self, document: Document, model: str, provider: str) -> str | None:
        """Return the only cap field there is."""
        return "max_tokens"

    def choices(self, document: Document) -> int:
        """Return `n` for each prompt. A list of numbers is one prompt, written in tokens."""
        prompts = document.array("prompt") or (b"",)
        return asked_choices(document) * (len(prompts) if prompts[0][:1] in (b'"', b"[") else 1)

    def ask_usage(self, document: Document) -> Document:
        """Return the document asking for a final usage event; the same object if it must not be asked."""
        return ask_usage_option(document)

    def read_event(self, event: bytes) -> EventFacts:
        """Read one chunk."""
        return read_chunk_event(event)

    def read_body(self, raw: bytes) -> BodyFacts:
        """Read a complete answer."""
        return read_answer_body(raw)


COMPLETIONS = CompletionsDialect()
