"""Splicing: JSON objects and arrays edited in their own bytes.

What is removed goes with one comma, what is new is appended last as `,"key":value`; every other byte stays.
New values are given as raw JSON and are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from proxy.core.json_spans import DocumentError, ObjectText, Spans, TooManyParts, array_spans, parse_object

Path = tuple[str | int, ...]
"""Keys and array indices; a negative index counts from the end. Digits as text are a key of an object and an
index of an array, whichever stands there."""

Change = tuple[int, int, bytes]
"""Start, end and the bytes that stand there instead."""

_UNLIMITED_DEPTH = 1 << 30
_LONGEST_INDEX = 18
"""Digits; no array is that long, and `int` refuses thousands of them."""


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
    key = _key_or_index(raw, part)
    if isinstance(key, str):
        source = _object_or_none(raw)
        return None if source is None else source.last_value(key)
    span = _element_span(raw, key)
    return None if span is None else raw[span[0] : span[1]]


def object_keys(raw: bytes) -> tuple[str, ...]:
    """Return the keys of a raw value, each once; none where it is no object."""
    source = _object_or_none(raw) if raw[:1] == b"{" else None
    return () if source is None else source.keys()


def every_child(raw: bytes, part: str | int) -> tuple[bytes, ...]:
    """Return all raw members of that key, duplicates included, or the element at that index."""
    key = _key_or_index(raw, part)
    if isinstance(key, str):
        source = _object_or_none(raw)
        return () if source is None else source.every_value(key)
    element = child(raw, key)
    return () if element is None else (element,)


def with_child(raw: bytes | None, path: Path, new: bytes) -> bytes | None:
    """Return `raw` with `new` at `path`, or `None` when the path leads through what cannot hold it.

    Missing and null parents of a key become objects. Of duplicated keys every occurrence is followed; those
    that cannot hold the rest of the path stay as they are, unless none can.
    """
    if not path:
        return new
    if raw is None or raw == b"null":
        raw = b"{}"
    key = _key_or_index(raw, path[0])
    source = _object_or_none(raw) if isinstance(key, str) else None
    if isinstance(key, str) and source is not None and source.last_value(key) is None:
        inner = with_child(None, path[1:], new)
        return None if inner is None else splice_object(source, {key: inner})
    return _with_each(raw, source, key, lambda value: with_child(value, path[1:], new))


def without_path(raw: bytes, path: Path) -> bytes | None:
    """Return `raw` without what is at `path`, in all occurrences of duplicated keys; `None` if nothing is."""
    key = _key_or_index(raw, path[0])
    source = _object_or_none(raw) if isinstance(key, str) else None
    if len(path) > 1:
        return _with_each(raw, source, key, lambda value: without_path(value, path[1:]))
    if isinstance(key, str):
        is_there = source is not None and source.last_value(key) is not None
        return splice_object(source, {key: None}) if source is not None and is_there else None
    spans = array_spans(raw)
    if spans is None or not -len(spans) <= key < len(spans):
        return None
    return splice(raw, removals(spans, {key % len(spans)}))


def _with_each(
    raw: bytes, source: ObjectText | None, key: str | int, edit: Callable[[bytes], bytes | None]
) -> bytes | None:
    """Return `raw` with every occurrence of a member, or an element, edited; `None` if none could be."""
    spans: list[tuple[int, int]] = []
    if isinstance(key, str):
        if source is not None:
            spans = [(start, end) for name, _, start, end in source.members() if name == key]
    elif (span := _element_span(raw, key)) is not None:
        spans = [span]
    changes = [(start, end, new) for start, end in spans if (new := edit(raw[start:end])) is not None]
    return splice(raw, changes) if changes else None


def _key_or_index(raw: bytes, part: str | int) -> str | int:
    """Return what a part of a path is for a value: digits are an index where it is an array."""
    if isinstance(part, str) and raw[:1] == b"[" and part.isascii() and part.isdigit():
        return int(part[:_LONGEST_INDEX])
    return part


def _object_or_none(raw: bytes) -> ObjectText | None:
    try:
        return parse_object(raw, _UNLIMITED_DEPTH)
    except TooManyParts:
        raise
    except DocumentError:
        return None


def _element_span(raw: bytes, index: int) -> tuple[int, int] | None:
    spans = array_spans(raw)
    return spans[index] if spans is not None and -len(spans) <= index < len(spans) else None
