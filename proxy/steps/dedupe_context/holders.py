"""Where a request holds texts that may have passages in them, in the order in which the model reads them.

Owns which texts are looked at and how edits come back into a request's bytes. What a model wrote is never
looked at: nobody may edit that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from proxy.core.document import Document
from proxy.core.json_edits import Path, child, splice, with_child, without_child
from proxy.core.json_spans import array_spans
from proxy.dialects.conversation import Conversation, Role, conversation_fields
from proxy.dialects.dialect import Dialect
from proxy.dialects.text_parts import TextPart, text_parts, value_parts, with_texts

PLAIN_FIELDS = {"completions": "prompt", "responses": "input"}
"""The fields that may hold a prompt as plain text, by dialect."""

_READ_BY_ALL = frozenset({Role.SYSTEM, Role.USER, Role.TOOL})


class Holder(msgspec.Struct, frozen=True):
    """One message, item or value with texts in it.

    field      the top-level field that it is or stands in
    index      its place in that field's array; `None` where it is the whole value
    raw        its bytes
    is_value   it is a text or a list of parts, and no message
    own_words  tool results in it are not looked at
    """

    field: str
    index: int | None
    raw: bytes
    is_value: bool = False
    own_words: bool = False

    def parts(self) -> tuple[TextPart, ...]:
        """Return the texts that may be edited."""
        found = value_parts(self.raw) if self.is_value else text_parts(self.raw)
        return tuple(part for part in found if part.result is None) if self.own_words else found


def holders_of(
    conversation: Conversation, document: Document, dialect: Dialect, *, is_everything: bool
) -> list[Holder]:
    """Return what to look at in a conversation: all that is read, or what the person wrote."""
    if not is_everything:
        return [
            Holder(conversation.key, index, conversation.raws[index], own_words=True)
            for index, element in enumerate(conversation.elements)
            if element.speaks
        ]
    fields = ((name, document.get(name)) for name in conversation_fields(dialect)[1:])
    found = [Holder(name, None, raw, is_value=True) for name, raw in fields if raw is not None]
    return found + [
        Holder(conversation.key, index, conversation.raws[index])
        for index, element in enumerate(conversation.elements)
        if element.role in _READ_BY_ALL
    ]


def plain_holders(document: Document, field: str) -> list[Holder] | None:
    """Return the prompts of a request that has no messages; `None` where there is no text."""
    raw = document.get(field)
    if raw is None:
        return None
    if raw.startswith(b'"'):
        return [Holder(field, None, raw, is_value=True)]
    prompts = document.array(field) or ()
    texts = [(index, prompt) for index, prompt in enumerate(prompts) if prompt.startswith(b'"')]
    return [Holder(field, index, prompt, is_value=True) for index, prompt in texts] or None


def with_parts(raw: bytes, edits: Mapping[TextPart, str], gone: Iterable[TextPart]) -> bytes:
    """Return a holder's bytes with other texts, and without some parts of its lists."""
    raw = with_texts(raw, edits)
    # Backwards, so that places in a list stay what they were.
    for part in sorted(gone, key=lambda part: part.start, reverse=True):
        path, index = list_of(part), part.path[-2]
        parent = _at(raw, path)
        shorter = None if parent is None else without_child(parent, index)
        changed = None if shorter is None else with_child(raw, path, shorter)
        raw = raw if changed is None else changed
    return raw


def can_go(part: TextPart) -> bool:
    """Tell whether a text is a part of a list, so that it can be left out as a whole."""
    return len(part.path) > 1


def list_of(part: TextPart) -> Path:
    """Return the path of the list that a part stands in."""
    return part.path[:-2]


def list_length(raw: bytes, part: TextPart) -> int:
    """Return how many parts the list has that a part stands in."""
    value = _at(raw, list_of(part))
    return len((None if value is None else array_spans(value)) or ())


def replaced(document: Document, edits: Mapping[tuple[str, int | None], bytes]) -> Document:
    """Return the document with other bytes for some holders, by field and index."""
    by_field: dict[str, dict[int | None, bytes]] = {}
    for (field, index), raw in edits.items():
        by_field.setdefault(field, {})[index] = raw
    for field, changed in by_field.items():
        whole = changed.get(None)
        value = document.get(field)
        if whole is not None or value is None:
            document = document if whole is None else document.set(field, whole)
            continue
        spans = array_spans(value) or ()
        changes = [(*span, changed[index]) for index, span in enumerate(spans) if index in changed]
        document = document.set(field, splice(value, changes))
    return document


def _at(raw: bytes, path: Path) -> bytes | None:
    value: bytes | None = raw
    for key in path:
        value = None if value is None else child(value, key)
    return value
