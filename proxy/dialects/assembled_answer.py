"""The complete JSON answer put together from the events of a stream, for a caller that did not ask for one.

Owns which module does it for which API. What a stream leaves out cannot be put back: OpenAI's chat and
completions tell their usage only when asked, which is for whoever shares a stream to see to.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from proxy.core.json_edits import child
from proxy.core.sse import event_data
from proxy.dialects.assembled_chunks import ChunkAssembler
from proxy.dialects.assembled_message import MessageAssembler


class Assembled(msgspec.Struct, frozen=True):
    """A JSON answer: its status and body."""

    status: int
    body: bytes


class Assembler(Protocol):
    """Takes the events of one stream in order. `size_bytes` bounds the memory that it holds."""

    size_bytes: int

    def take(self, event: bytes) -> None:
        """Read one complete event; never raises, what is not understood is left out."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the stream has said its last word, even if that was not all that the answer has."""
        ...

    def body(self) -> bytes | None:
        """Return the answer's body; `None` where the stream did not say all of it."""
        ...


class ResponseAssembler:
    """The Responses API repeats the whole answer in its last event."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._body: bytes | None = None

    def take(self, event: bytes) -> None:
        """Keep the response that a terminal event carries, byte for byte."""
        if b"response." not in event:
            return
        data = event_data(event)
        if child(data, "type") in _RESPONSE_ENDS:
            self._body = child(data, "response")
            self.size_bytes = len(self._body or b"")

    @property
    def has_ended(self) -> bool:
        """Whether the last event has come."""
        return self._body is not None

    def body(self) -> bytes | None:
        """Return the response."""
        return self._body


_RESPONSE_ENDS = (
    b'"response.completed"',
    b'"response.incomplete"',
    b'"response.failed"',
    b'"response.cancelled"',
)


def assembler(dialect_name: str, choices: int = 1, needs_usage: bool = False) -> Assembler | None:
    """Return a new assembler; `None` for an API whose streams cannot be put together.

    An answer is complete with so many `choices`, and, where usage was asked for, not without it. APIs that
    have no choices say themselves when they are complete.
    """
    match dialect_name:
        case "chat":
            return ChunkAssembler("chat.completion", choices, needs_usage)
        case "completions":
            return ChunkAssembler("text_completion", choices, needs_usage)
        case "responses":
            return ResponseAssembler()
        case "messages":
            return MessageAssembler()
        case _:
            return None


def error_answer(event: bytes) -> Assembled | None:
    """Return the answer that an error event stands for; `None` where it holds no error object.

    The status that the failure would have had is not known any more: 502 says whose fault it is. Of a chunk
    that is a piece of the answer, too, only the error is told.
    """
    data = event_data(event).strip()
    if not data.startswith(b"{"):
        return None
    if child(data, "choices") is None:
        return Assembled(502, data)
    error = child(data, "error")
    return None if error is None or error == b"null" else Assembled(502, b'{"error":%b}' % error)
