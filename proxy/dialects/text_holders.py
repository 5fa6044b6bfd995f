"""A message, item or value of a request with the texts in it: where they are edited, left out and put back.

Owns how edits of texts become bytes of a request again. Everything that is not edited keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from proxy.core.document import Document
from proxy.core.json_edits import Change, Path, removals, splice
from proxy.core.json_spans import Spans, array_spans
from proxy.dialects.text_parts import TextPart, member_spans, text_parts, value_parts, with_texts


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

    def with_parts(self, edits: Mapping[TextPart, str], gone: Collection[TextPart] = ()) -> bytes:
        """Return its bytes with other texts, and without some parts of its lists (`can_go`)."""
        left_out: dict[Path, set[int | str]] = {}
        for part in gone:
            left_out.setdefault(list_of(part), set()).add(part.path[-2])
        cuts: list[Change] = []
        for path, spans in self.lists(left_out).items():
            indices = [index for index in left_out[path] if isinstance(index, int)]
            cuts += removals(spans, set(indices))
        kept = {part: text for part, text in edits.items() if part not in gone}
        return with_texts(self.raw, kept, _outermost(cuts))

    def list_length(self, part: TextPart) -> int:
        """Return how many parts the list has that a part stands in."""
        path = list_of(part)
        return len(self.lists((path,)).get(path, ()))

    def lists(self, paths: Collection[Path]) -> dict[Path, Spans]:
        """Return where the elements of the lists at `paths` stand; walks through its bytes once."""
        found: dict[Path, Spans] = {}
        _find_lists(self.raw, 0, (), paths, found)
        return found


def _find_lists(raw: bytes, offset: int, at: Path, paths: Collection[Path], found: dict[Path, Spans]) -> None:
    """Note the lists among `paths`, all of which lie at or below `at`, where `raw` stands at `offset`."""
    below: dict[int | str, list[Path]] = {}
    for path in paths:
        if len(path) > len(at):
            below.setdefault(path[len(at)], []).append(path)
    spans = array_spans(raw) if raw[:1] == b"[" else None
    if spans is not None and at in paths:
        found[at] = tuple((start + offset, end + offset) for start, end in spans)
    members = {} if spans is not None or not below else member_spans(raw)
    for key, further in below.items():
        span = spans[key] if spans is not None and isinstance(key, int) else members.get(str(key))
        if span is not None:
            start, end = span
            _find_lists(raw[start:end], offset + start, (*at, key), further, found)


def _outermost(cuts: list[Change]) -> list[Change]:
    """Return cuts in order, without those inside another one."""
    kept: list[Change] = []
    for cut in sorted(cuts, key=lambda cut: (cut[0], -cut[1])):
        if not kept or cut[0] >= kept[-1][1]:
            kept.append(cut)
    return kept


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
