"""The contract of a dialect: where turns, caps, stops, usage and first content live in one API shape.

A dialect is pure knowledge about bytes. It never decides anything: steps, urgency and the relay do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from proxy.core.document import Document
from proxy.core.usage import Usage
from proxy.dialects.marking import EndKey


class EventFacts(msgspec.Struct, frozen=True):
    """What one SSE event says.

    first_content   it carries non-empty content: text, reasoning, tool-call name or arguments, audio, refusal
    finish_reason   a choice's reason, or the terminal status of the whole answer
    finished        the indices of the choices that this event ends, where there is a finish reason
    terminal        after this event the answer is complete (`[DONE]`, `response.completed`, `message_stop`)
    usage           consumption reported by this event
    usage_only      it carries usage and nothing else: what OpenAI sends only when asked to
    error           it reports a failure of the answer
    """

    first_content: bool = False
    finish_reason: str | None = None
    terminal: bool = False
    usage: Usage | None = None
    usage_only: bool = False
    error: bool = False
    finished: tuple[int, ...] = (0,)


NOTHING = EventFacts()


class BodyFacts(msgspec.Struct, frozen=True):
    """What a complete JSON answer says."""

    usage: Usage | None = None
    finish_reason: str | None = None
    error: bool = False
    empty: bool = False


class Dialect(Protocol):
    """One API shape. Instances are stateless and listed in `proxy.dialects.DIALECTS`."""

    name: str
    path: str
    cap_field_names: tuple[str, ...]
    caps: frozenset[str]
    """The same names, for one look at a document."""
    least_cap_tokens: int
    """The lowest output cap that this API takes."""
    stop_field: str | None
    stop_limit: int
    refuses_blank_stop: bool
    """Whether a stop sequence of whitespace alone is answered with 400."""
    markers: tuple[bytes, ...]
    """Byte strings of which one occurs in the events that matter after first content (see `marking`)."""
    end_key: EndKey | None
    """The key that says why a choice ended, where no marker tells."""

    def cap_field(self, document: Document, model: str, provider: str) -> str | None:
        """Return the field into which an output cap belongs, the caller's own if it used one."""
        ...

    def refuses_stop(self, model: str) -> bool:
        """Tell whether this endpoint answers 400 to stop sequences for `model`."""
        ...

    def is_reasoning(self, document: Document, model: str) -> bool:
        """Tell whether output tokens will be spent on reasoning first."""
        ...

    def is_stream(self, document: Document) -> bool:
        """Tell whether the caller asked for an event stream."""
        ...

    def choices(self, document: Document) -> int:
        """Return how many choices the answer will have, each with a finish reason of its own."""
        ...

    def ask_usage(self, document: Document) -> Document:
        """Return the document asking for a final usage event; the same object if it must not be asked."""
        ...

    def read_event(self, event: bytes) -> EventFacts:
        """Read one complete SSE event given as its raw bytes; `NOTHING` for what is not understood."""
        ...

    def read_body(self, raw: bytes) -> BodyFacts:
        """Read a complete JSON answer; empty facts for what is not understood."""
        ...

    def error_event(self, message: str, code: str, sequence_number: int | None) -> bytes:
        """Return the SSE event with which this API reports a failure midway, terminator included."""
        ...

    def waits_for_person(self, document: Document) -> str | None:
        """Return why this request belongs to a tool loop or a conversation in progress, if it does."""
        ...


DialectLookup = Callable[[str], Dialect | None]
