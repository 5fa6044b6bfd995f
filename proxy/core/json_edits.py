"""Splicing: JSON objects and arrays edited in their own bytes.

What is removed goes with one comma, what is new is appended last as `,"key":value`; every other byte stays.
New values are given as raw JSON and are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache

from proxy.core.json_spans import DocumentError, ObjectText, Spans, array_spans, parse_object

Path = tuple[str | int, ...]
"""Keys and array indices; a negative index counts from the end."""

Change = tuple[int, int, bytes]
"""Start, end and the bytes that stand there instead."""

_UNLIMITED_DEPTH = 1 << 30


def splice_object(source: ObjectText, edits: Mapping[str, bytes | None], *, only_last: bool = False) -> bytes:
    """Return the object's text with new values (`None` removes) for every occurrence of the given keys.

    `only_last` also removes all but the last occurrence of each key.
    """
    new = [quoted(key) + b":" + raw for key, raw in edits.items() if raw is not None and key not in source]
    is_removing = (only_last and source.has_duplicates()) or None in edits.values()
    if len(new) == len(edits) and not is_removing:
        return splice(source.text, [_insertion(source.end(), new, is_first=not source.keys())])
    members = source.members()
    dropped = _dropped(source, edits, only_last=only_last) if is_removing else set()
    changes = [
        (start, end, edit)
        for index, (key, _, start, end) in enumerate(members)
        if (edit := edits.get(key)) is not None and index not in dropped
    ]
    if dropped:
        changes += removals(tuple((member[1], member[3]) for member in members), dropped)
    if new:
        kept = [member[3] for index, member in enumerate(members) if index not in dropped]
        end = kept[-1] if kept else source.text.index(b"{") + 1
        changes.append(_insertion(end, new, is_first=not kept))
    if dropped:
        # At one offset an insertion comes before a removal that starts there.
        changes.sort(key=lambda change: change[:2])
    return splice(source.text, changes)


def _dropped(source: ObjectText, edits: Mapping[str, bytes | None], *, only_last: bool) -> set[int]:
    members = source.members()
    last = {member[0]: index for index, member in enumerate(members)}
    return {
        index
        for index, member in enumerate(members)
        if edits.get(member[0], b"") is None or (only_last and last[member[0]] != index)
    }


def _insertion(position: int, appended: list[bytes], *, is_first: bool) -> Change:
    joined = b",".join(appended)
    return position, position, joined if is_first else b"," + joined


@lru_cache(maxsize=256)
def quoted(key: str) -> bytes:
    """Return a key as a JSON string; escapes keep even a lone surrogate encodable."""
    return json.dumps(key).encode("ascii")


def splice(text: bytes, changes: list[Change]) -> bytes:
    """Return `text` with ordered, disjoint changes made."""
    pieces: list[bytes] = []
    position = 0
    for start, end, new in changes:
        pieces += (text[position:start], new)
        position = end
    pieces.append(text[position:])
    return b"".join(pieces)


def removals(spans: Spans, dropped: Collection[int]) -> list[Change]:
    """Return the cuts that remove the `dropped` of comma-separated `spans`, each with one comma."""
    cuts: list[Change] = []
    any_kept = False
    for index, (start, end) in enumerate(spans):
        if index not in dropped:
            any_kept = True
        elif any_kept:
            cuts.append((spans[index - 1][1], end, b""))
        else:
            cuts.append((start, spans[index + 1][0] if index + 1 < len(spans) else end, b""))
    return cuts


def child(raw: bytes, part: str | int) -> bytes | None:
    """Return the raw member or element of a raw value, or `None` when there is none."""
    if isinstance(part, str):
        source = _object_or_none(raw)
        return None if source is None else source.last_value(part)
    span = _element_span(raw, part)
    return None if span is None else raw[span[0] : span[1]]


def every_child(raw: bytes, part: str | int) -> tuple[bytes, ...]:
    """Return all raw members of that key, duplicates included, or the element at that index."""
    if isinstance(part, str):
        source = _object_or_none(raw)
        return () if source is None else source.every_value(part)
    element = child(raw, part)
    return () if element is None else (element,)


def with_child(raw: bytes | None, path: Path, new: bytes) -> bytes | None:
    """Return `raw` with `new` at `path`, or `None` when the path leads through what cannot hold it.

    Missing and null parents of a key become objects.
    """
    if not path:
        return new
    part = path[0]
    if isinstance(part, int):
        span = None if raw is None else _element_span(raw, part)
        if raw is None or span is None:
            return None
        inner = with_child(raw[span[0] : span[1]], path[1:], new)
        return None if inner is None else splice(raw, [(*span, inner)])
    source = _object_or_none(b"{}" if raw is None or raw == b"null" else raw)
    if source is None:
        return None
    inner = with_child(source.last_value(part), path[1:], new)
    return None if inner is None else splice_object(source, {part: inner})


def without_child(raw: bytes, part: str | int) -> bytes | None:
    """Return `raw` without a member or element, or `None` when it has none there."""
    if isinstance(part, str):
        source = _object_or_none(raw)
        if source is None or source.last_value(part) is None:
            return None
        return splice_object(source, {part: None})
    spans = array_spans(raw)
    if spans is None or not -len(spans) <= part < len(spans):
        return None
    return splice(raw, removals(spans, {part % len(spans)}))


def _object_or_none(raw: bytes) -> ObjectText | None:
    try:
        return parse_object(raw, _UNLIMITED_DEPTH)
    except DocumentError:
        return None


def _element_span(raw: bytes, index: int) -> tuple[int, int] | None:
    spans = array_spans(raw)
    return spans[index] if spans is not None and -len(spans) <= index < len(spans) else None
