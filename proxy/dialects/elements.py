"""What one element of a conversation is: a chat message, a Responses item, an Anthropic message.

Owns the words that all three APIs share for it. Readers are in `chat_elements`, `responses_elements` and
`messages_elements`; what elements mean to each other is `conversation`'s.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from proxy.core.json_spans import DocumentError, parse_object
from proxy.core.json_values import decode


class Role(Enum):
    """Whose element it is. OPAQUE ones are not understood, so nobody may take them away."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    OPAQUE = "opaque"


class Element(msgspec.Struct, frozen=True):
    """One element.

    call_id       the id by which a call and its result find each other; `None` where neighbours do
    calls         an assistant's element that must be answered by tool results
    is_reasoning  carries reasoning that belongs to what follows it
    speaks        a person's words are in it (an Anthropic message may bring tool results and words)
    is_summary    a system element with the role `summary`, which no API has and some applications send
    """

    role: Role
    call_id: str | None = None
    calls: bool = False
    is_reasoning: bool = False
    speaks: bool = False
    is_summary: bool = False


SYSTEM = Element(Role.SYSTEM)
SUMMARY = Element(Role.SYSTEM, is_summary=True)
USER = Element(Role.USER, speaks=True)
ASSISTANT = Element(Role.ASSISTANT)
CALLING = Element(Role.ASSISTANT, calls=True)
TOOL = Element(Role.TOOL)
OPAQUE = Element(Role.OPAQUE)

BY_ROLE = {
    "system": SYSTEM,
    "developer": SYSTEM,
    "summary": SUMMARY,
    "user": USER,
    "assistant": ASSISTANT,
    "tool": TOOL,
    "function": TOOL,
}


class Head(msgspec.Struct, gc=False):
    """The fields of an element that say what it is; values that may be long stay raw."""

    role: Any = None
    type: Any = None
    call_id: Any = None
    id: Any = None
    content: msgspec.Raw = msgspec.Raw(b"")
    tool_calls: msgspec.Raw = msgspec.Raw(b"")
    function_call: msgspec.Raw = msgspec.Raw(b"")


_HEAD = msgspec.json.Decoder(Head)
_UNLIMITED_DEPTH = 1 << 30


def read_head(raw: bytes) -> Head | None:
    """Return what an element says of itself; `None` when it is no object. Never raises."""
    try:
        return _HEAD.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        source = parse_object(raw, _UNLIMITED_DEPTH)
    except DocumentError:
        return None
    said = (decode(source.last_value(key) or b"null") for key in ("role", "type", "call_id", "id"))
    long_values = (
        msgspec.Raw(source.last_value(key) or b"") for key in ("content", "tool_calls", "function_call")
    )
    return Head(*said, *long_values)
