"""Reads the elements of a chat conversation: messages with a role."""

from __future__ import annotations

from proxy.dialects.elements import ASSISTANT, BY_ROLE, CALLING, OPAQUE, Element, read_head

_NOTHING = (b"", b"null", b"[]")


def read_chat_element(raw: bytes) -> Element:
    """Return what a message is. Results follow their calls, so ids are not looked at."""
    head = read_head(raw)
    element = BY_ROLE.get(head.role, OPAQUE) if head is not None and isinstance(head.role, str) else OPAQUE
    if element is not ASSISTANT or head is None:
        return element
    asks = any(bytes(calls) not in _NOTHING for calls in (head.tool_calls, head.function_call))
    return CALLING if asks else element
