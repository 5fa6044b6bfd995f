"""Adding an instruction at the tail of a request's system text, whichever API it is.

What stands there keeps its bytes and its place, so that a cached prefix stays one up to the new text, and
signed or marked parts stay as they are. Nothing is ever put between turns.
"""

from __future__ import annotations

import orjson

from proxy.core.document import Document, Path
from proxy.core.json_spans import array_spans
from proxy.core.json_values import decode
from proxy.dialects.elements import read_head
from proxy.dialects.reasoning_models import is_openai_reasoning

# Where the system text stands when it is no turn, by dialect; and the type of a text part in a system turn.
_FIELDS = {"messages": "system", "responses": "instructions"}
_TURN_FIELDS = {"chat": "messages", "responses": "input"}
_PART_TYPES = {"responses": "input_text"}
_SYSTEM_ROLES = ("system", "developer")


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
    path = _place(document, dialect_name)
    if path is not None:
        raw = document.get_path(path)
        longer = None if raw is None else _longer(raw, text, _PART_TYPES.get(dialect_name, "text"))
        if longer is None:
            return document, "the system text is neither text nor a list of parts"
        return document.set_path(path, longer), ""
    if not create:
        return document, "there is no system text"
    return _created(document, dialect_name, text, model)


def _place(document: Document, dialect_name: str) -> Path | None:
    """Return the path of the last piece of system text before the conversation begins."""
    field = _FIELDS.get(dialect_name)
    if field is not None and document.get(field) not in (None, b"null", b'""', b"[]"):
        return (field,)
    turns_field = _TURN_FIELDS.get(dialect_name)
    if turns_field is None:
        return None
    last = -1
    for index, turn in enumerate(document.array(turns_field) or ()):
        head = read_head(turn)
        if head is None or head.role not in _SYSTEM_ROLES:
            break
        last = index
    return None if last < 0 else (turns_field, last, "content")


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
