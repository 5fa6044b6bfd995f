"""Passages as elements of JSON arrays, wherever in a text these stand.

Owns which arrays and elements are passages: objects with a text, and strings. What goes, goes as an element
with its comma, so that JSON stays JSON; everything else keeps its spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from proxy.core.json_edits import removals, splice
from proxy.core.json_spans import array_spans
from proxy.steps.dedupe_context.likeness import Passage
from proxy.steps.dedupe_context.provenance import ABOUT, SCORES

_START = re.compile(r"\[[ \t\r\n]*[{\"]")
_MOST_FAILURES = 4
_MOST_ARRAYS = 64
_READER = json.JSONDecoder()
_HIGHEST_SCORE = 1e300
# One search of a compiled pattern holds the interpreter, so long texts are searched in pieces.
_PIECE_CHARS = 32_768
_LONGEST_INDENT = 256

_TEXTS = ("text", "content", "page_content", "passage", "chunk", "chunk_text", "snippet", "body", "document")
_METADATA = ("metadata", "meta")


class Element(msgspec.Struct, frozen=True):
    """One passage of an array: its place in it, what is compared, its score."""

    index: int
    passage: Passage
    score: float | None = None


class JsonList(msgspec.Struct, frozen=True):
    """An array of passages: its place in the text, the passages in it."""

    start: int
    end: int
    elements: tuple[Element, ...]


def json_lists(text: str) -> Iterator[JsonList]:
    """Yield the arrays of passages in a text. A text with many brackets that begin no JSON is given up."""
    failures = arrays = 0
    neighbours = _Neighbours(text)
    start = _next_start(text, 0)
    while start >= 0 and failures < _MOST_FAILURES and arrays < _MOST_ARRAYS:
        try:
            value, end = _READER.raw_decode(text, start)
        except (ValueError, RecursionError):
            failures += 1
            start = _next_start(text, start + 1)
            continue
        arrays += 1
        elements = tuple(_elements(value)) if isinstance(value, list) else ()
        if elements and not neighbours.has_parallel(start, len(value)):
            yield JsonList(start, end, elements)
        start = _next_start(text, end)


class _Neighbours:
    """The objects that arrays of a text stand in, read once each."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lengths: dict[int, list[int]] = {}

    def has_parallel(self, start: int, length: int) -> bool:
        """Tell whether an array's elements belong to those of another by their places.

        So it is with column-wise results: `{"ids": ["a", "b"], "documents": ["…", "…"]}`.
        """
        before = self._text[max(0, start - _LONGEST_INDENT) : start].rstrip()
        if not before.endswith((":", "[")):
            return False
        opened = self._text.rfind("{", 0, start)
        if opened < 0:
            return False
        if opened not in self._lengths:
            self._lengths[opened] = _column_lengths(self._text, opened)
        return self._lengths[opened].count(length) > 1


def _column_lengths(text: str, start: int) -> list[int]:
    """Return the lengths of the arrays in the object that begins at `start`, and of the arrays in these."""
    try:
        value, _ = _READER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return []
    columns = [inner for inner in value.values() if isinstance(inner, list)]
    columns += [inner for column in columns for inner in column if isinstance(inner, list)]
    return [len(column) for column in columns]


def _next_start(text: str, position: int) -> int:
    while position < len(text):
        match = _START.search(text, position, position + _PIECE_CHARS)
        if match is not None:
            return match.start()
        position += _PIECE_CHARS - _LONGEST_INDENT
    return -1


def without_elements(text: str, found: JsonList, dropped: Collection[int]) -> str:
    """Return the array's text without some elements."""
    raw = text[found.start : found.end].encode("utf-8", "surrogatepass")
    spans = array_spans(raw)
    if spans is None:
        return text[found.start : found.end]
    return splice(raw, removals(spans, dropped)).decode("utf-8", "surrogatepass")


def _elements(values: list[Any]) -> Iterator[Element]:
    for index, value in enumerate(values):
        if isinstance(value, str):
            yield Element(index, Passage(value))
        elif isinstance(value, dict):
            name = next((name for name in _TEXTS if isinstance(value.get(name), str)), None)
            if name is not None:
                rest = {key: inner for key, inner in value.items() if key != name}
                yield Element(index, Passage(value[name], _significant(rest)), _score(value))


def _significant(fields: Mapping[str, Any]) -> str:
    """Return what else an object says, fields about the passage left out; empty if nothing."""
    said = {}
    for key, value in fields.items():
        if key in _METADATA and isinstance(value, dict):
            inner = _significant(value)
            if inner:
                said[key] = inner
        elif key not in ABOUT:
            said[key] = value
    return repr(sorted(said.items(), key=lambda item: item[0])) if said else ""


def _score(value: Mapping[str, Any]) -> float | None:
    metadata: Mapping[str, Any] = next(
        (value[name] for name in _METADATA if isinstance(value.get(name), dict)), {}
    )
    for holder in (value, metadata):
        for name in SCORES:
            score = holder.get(name)
            if (
                isinstance(score, (int, float))
                and not isinstance(score, bool)
                and abs(score) < _HIGHEST_SCORE
            ):
                return float(score)
    return None
