"""Reads the elements of an Anthropic conversation: messages whose content blocks say what they are."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.core.json_values import decode
from proxy.dialects.elements import ASSISTANT, BY_ROLE, OPAQUE, TOOL, USER, Element, Role, read_head

_THINKING = frozenset({"thinking", "redacted_thinking"})


class _Block(msgspec.Struct, gc=False):
    type: Any = None


_BLOCKS = msgspec.json.Decoder(list[_Block])


def read_messages_element(raw: bytes) -> Element:
    """Return what a message is. A user's message that brings tool results is the tools', not a person's."""
    head = read_head(raw)
    element = BY_ROLE.get(head.role, OPAQUE) if head is not None and isinstance(head.role, str) else OPAQUE
    if head is None or element not in (USER, ASSISTANT):
        return element
    kinds = _kinds(bytes(head.content))
    if element is USER:
        if "tool_result" not in kinds:
            return USER
        return Element(Role.TOOL, speaks=True) if kinds != {"tool_result"} else TOOL
    is_reasoning = not _THINKING.isdisjoint(kinds)
    if is_reasoning or "tool_use" in kinds:
        return Element(Role.ASSISTANT, calls="tool_use" in kinds, is_reasoning=is_reasoning)
    return ASSISTANT


def _kinds(content: bytes) -> set[str]:
    if not content.startswith(b"["):
        return set()
    try:
        kinds: list[object] = [block.type for block in _BLOCKS.decode(content)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        blocks = decode(content)
        kinds = [block.get("type") for block in blocks or () if isinstance(block, dict)]
    return {kind for kind in kinds if isinstance(kind, str)}
