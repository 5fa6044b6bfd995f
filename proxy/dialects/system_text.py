"""Adding an instruction at the tail of a request's system text, whichever API it is.

What stands there keeps its bytes and its place, so that a cached prefix stays one up to the new text, and
signed or marked parts stay as they are. Nothing is ever put between turns.
"""

from __future__ import annotations

import orjson

from proxy.core.document import Document
from proxy.core.json_edits import splice
from proxy.core.json_spans import DocumentError, array_spans, parse_object
from proxy.core.json_values import decode
from proxy.dialects.elements import read_head
from proxy.dialects.reasoning_models import is_openai_reasoning

# Where the system text stands when it is no turn, by dialect; and the type of a text part in a system turn.
_FIELDS = {"messages": "system", "responses": "instructions"}
_TURN_FIELDS = {"chat": "messages", "responses": "input"}
_PART_TYPES = {"responses": "input_text"}
_SYSTEM_ROLES = ("system", "developer")
_NOTHING = (b"null", b'""', b"[]")
_ODD = "the system text is neither text nor a list of parts"
_UNLIMITED_DEPTH = 1 << 30


def has_system_text(dialect_name: str) -> bool:
    """Tell whether an API has a place for instructions at all."""
    return dialect_name in _FIELDS or dialect_name in _TURN_FIELDS


def with_instruction(
    document: Document, dialect_name: str, text: str, model: str, *, create: bool
) -> tuple[Document, str]:
    """Return the document whose system text ends with `text`, or the same object and the reason why not.

    A document whose system text ends so already is returned as it is, without a reason. Where there is no
    system text one is made only if `create` says so; the role of a new chat message follows `model`.
    """
    field = _FIELDS.get(dialect_name)
    raw = None if field is None else document.get(field)
    if field is not None and raw is not None and raw not in _NOTHING:
        longer = _longer(raw, text, "text")
        return (document, _ODD) if longer is None else (document.set(field, longer), "")
    turns_field = _TURN_FIELDS.get(dialect_name)
    turns = None if turns_field is None else document.get(turns_field)
    if turns_field is not None and turns is not None:
        place = _last_leading(turns)
        if place is not None:
            longer = _longer_turn(turns, *place, text, _PART_TYPES.get(dialect_name, "text"))
            return (document, _ODD) if longer is None else (document.set(turns_field, longer), "")
    if not create:
        return document, "there is no system text"
    return _created(document, dialect_name, text, model)


def _last_leading(turns: bytes) -> tuple[int, int] | None:
    """Return where the last system turn before the conversation stands, if it begins with one."""
    place = None
    for start, end in array_spans(turns) or ():
        head = read_head(turns[start:end])
        if head is None or head.role not in _SYSTEM_ROLES:
            break
        place = (start, end)
    return place


def _longer_turn(turns: bytes, start: int, end: int, text: str, part_type: str) -> bytes | None:
    """Return the turns with `text` at the end of the content of one of them."""
    try:
        members = parse_object(turns[start:end], _UNLIMITED_DEPTH).members()
    except DocumentError:
        return None
    changes = []
    for key, _, value_start, value_end in members:
        if key == "content":
            longer = _longer(turns[start + value_start : start + value_end], text, part_type)
            if longer is None:
                return None
            changes.append((start + value_start, start + value_end, longer))
    return splice(turns, changes) if changes else None


def _longer(raw: bytes, text: str, part_type: str) -> bytes | None:
    """Return system text with `text` at its end; `raw` itself when it ends so; `None` for other types."""
    value = decode(raw)
    if isinstance(value, str) and raw.endswith(b'"'):
        if value.endswith(text):
            return raw
        return raw[:-1] + orjson.dumps("\n\n" + text if value else text)[1:]
    spans = array_spans(raw)
    if spans is None or not isinstance(value, list):
        return None
    last = value[-1] if value else None
    last_text = last.get("text") if isinstance(last, dict) else last
    if isinstance(last_text, str) and last_text.endswith(text):
        return raw
    part = orjson.dumps({"type": part_type, "text": text})
    end = spans[-1][1] if spans else raw.index(b"[") + 1
    return raw[:end] + (b"," if spans else b"") + part + raw[end:]


def _created(document: Document, dialect_name: str, text: str, model: str) -> tuple[Document, str]:
    field = _FIELDS.get(dialect_name)
    if field is not None:
        # A stored prompt brings instructions of its own, which ours would replace.
        if document.get("prompt") not in (None, b"null"):
            return document, "a stored prompt holds the system text"
        return document.set(field, orjson.dumps(text)), ""
    raw = document.get("messages")
    spans = None if raw is None else array_spans(raw)
    if raw is None or not spans:
        return document, "there are no messages"
    role = "developer" if is_openai_reasoning(model) else "system"
    start = spans[0][0]
    message = orjson.dumps({"role": role, "content": text})
    return document.set("messages", raw[:start] + message + b"," + raw[start:]), ""
