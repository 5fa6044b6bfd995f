"""What a request refers to that exists at one upstream only: files, containers, stored items and prompts.

Owns where the APIs put such ids. What stands in texts, in the arguments of calls and in the schemas of
functions is somebody else's and not looked at. Sources: the request types of OpenAI's SDK 3.57 and of
Anthropic's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.dialects.marking import with_plain_letters

_TOP_LEVEL = frozenset({"previous_response_id", "conversation", "container"})
_SEARCHED = ("messages", "input", "tools")

_ID_KEYS = frozenset(
    {
        "file_id",
        "file_ids",
        "vector_store_id",
        "vector_store_ids",
        "container_id",
        "connector_id",
        "encrypted_content",
    }
)
_OTHERS_IDS = frozenset({"parameters", "input_schema", "schema", "arguments", "metadata"})
"""Keys below which names are the caller's own."""

_MARKS = (
    *(b'"%s"' % key.encode() for key in sorted(_ID_KEYS)),
    b'"container"',
    b'"item_reference"',
    b'"reasoning"',
    b'"audio"',
)
_MOST_VALUES = 500_000


def refers_to_upstream(document: Document, dialect_name: str) -> bool:
    """Tell whether a request cannot be answered by another upstream than the one that its ids come from."""
    if document.has_any(_TOP_LEVEL) and any(_is_given(document.get(name)) for name in _TOP_LEVEL):
        return True
    if dialect_name == "responses" and (_is_given(document.get("prompt")) or _names_stored_item(document)):
        return True
    for name in _SEARCHED:
        raw = document.get(name)
        if raw is not None and any(mark in with_plain_letters(raw) for mark in _MARKS):
            value = decode(raw)
            if isinstance(value, list) and _holds_id(value):
                return True
    return False


def _is_given(raw: bytes | None) -> bool:
    return raw is not None and raw not in (b"null", b'""', b"{}", b"[]")


def _names_stored_item(document: Document) -> bool:
    """Tell whether an input item is nothing but the id of one that the server has."""
    raw = document.get("input")
    if raw is None or b'"id"' not in with_plain_letters(raw):
        return False
    items = (decode(item) for item in document.elements("input") or ())
    return any(
        isinstance(item, dict)
        and item.get("id") is not None
        and not {key for key, value in item.items() if value is not None}.difference({"id", "type", "status"})
        for item in items
    )


def _holds_id(value: list[Any]) -> bool:
    """Look through a value without recursion: callers nest as deeply as they like."""
    waiting: list[Any] = [value]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return False
        found = waiting.pop()
        if isinstance(found, list):
            waiting += (inner for inner in found if isinstance(inner, (dict, list)))
        elif isinstance(found, dict):
            if _is_reference(found):
                return True
            waiting += (
                inner
                for key, inner in found.items()
                if key not in _OTHERS_IDS and isinstance(inner, (dict, list)) and not _is_call(found, key)
            )
    # Too large to be looked through: what may be an id is taken for one.
    return True


def _is_call(holder: Mapping[str, Any], key: str) -> bool:
    """Tell whether a member is what a tool is called with (Anthropic)."""
    return key == "input" and holder.get("type") in ("tool_use", "server_tool_use")


def _is_reference(found: Mapping[str, Any]) -> bool:
    if any(found.get(key) for key in _ID_KEYS):
        return True
    match found:
        case {"type": "item_reference"}:
            return True
        case {"type": "reasoning", "id": str(name)} if name:
            return True
        case {"container": str(name)} if name:
            return True
        case {"container": {"id": str(name)}} if name:
            return True
        case {"role": "assistant", "audio": {"id": str(name)}} if name:
            return True
        case _:
            return False
