"""A message, item or value of a request with the texts in it: where they are edited, left out and put back.

Owns how edits of texts become bytes of a request again. Everything that is not edited keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from proxy.core.document import Document
from proxy.core.json_edits import Change, Path, child, removals, splice, with_child, without_child
from proxy.core.json_spans import array_spans
from proxy.dialects.text_parts import TextPart, text_parts, value_parts, with_texts


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

    def with_parts(self, edits: Mapping[TextPart, str], gone: Iterable[TextPart] = ()) -> bytes:
        """Return its bytes with other texts, and without some parts of its lists (`can_go`)."""
        raw = with_texts(self.raw, edits)
        # Backwards, so that places in a list stay what they were.
        for part in sorted(gone, key=lambda part: part.start, reverse=True):
            path, index = list_of(part), part.path[-2]
            parent = _at(raw, path)
            shorter = None if parent is None else without_child(parent, index)
            changed = None if shorter is None else with_child(raw, path, shorter)
            raw = raw if changed is None else changed
        return raw

    def list_length(self, part: TextPart) -> int:
        """Return how many parts the list has that a part stands in."""
        value = _at(self.raw, list_of(part))
        return len((None if value is None else array_spans(value)) or ())


def can_go(part: TextPart) -> bool:
    """Tell whether a text is a part of a list, so that it can be left out as a whole."""
    return len(part.path) > 1


def list_of(part: TextPart) -> Path:
    """Return the path of the list that a part stands in."""
    return part.path[:-2]


def with_holders(document: Document, edits: Mapping[tuple[str, int | None], bytes | None]) -> Document:
    """Return the document with other bytes for some holders, by field and index; `None` takes one out.

    Only what has an index can be taken out; one of a field's elements must stay.
    """
    by_field: dict[str, dict[int | None, bytes | None]] = {}
    for (field, index), raw in edits.items():
        by_field.setdefault(field, {})[index] = raw
    for field, changed in by_field.items():
        whole, value = changed.get(None), document.get(field)
        if whole is not None:
            document = document.set(field, whole)
        elif value is not None:
            document = document.set(field, _with_elements(value, changed))
    return document


def _with_elements(value: bytes, changed: Mapping[int | None, bytes | None]) -> bytes:
    spans = array_spans(value) or ()
    gone = {index for index, raw in changed.items() if raw is None and index is not None}
    changes: list[Change] = removals(spans, gone)
    changes += [(*span, raw) for index, span in enumerate(spans) if (raw := changed.get(index)) is not None]
    changes.sort(key=lambda change: change[:2])
    return splice(value, changes)


def _at(raw: bytes, path: Path) -> bytes | None:
    value: bytes | None = raw
    for key in path:
        value = None if value is None else child(value, key)
    return value
