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

_START = re.compile(r"\[[ \t\r\n]*[{\"]")
_MOST_FAILURES = 4
_MOST_ARRAYS = 64
_READER = json.JSONDecoder()
_HIGHEST_SCORE = 1e300
# One search of a compiled pattern holds the interpreter, so long texts are searched in pieces.
_PIECE_CHARS = 32_768
_LONGEST_INDENT = 256

_TEXTS = ("text", "content", "page_content", "passage", "chunk", "chunk_text", "snippet", "body", "document")
_SCORES = (
    "score", "relevance_score", "relevance", "similarity", "similarity_score", "rerank_score", "_score",
    "@search.score",
)  # fmt: skip
_METADATA = ("metadata", "meta")
# Where a passage comes from and where it ranks; two copies of one text differ in these.
_ABOUT = frozenset(
    (
        *_SCORES, "distance", "rank", "position", "id", "_id", "index", "idx", "number", "uuid", "hash",
        "chunk_id", "chunk_index", "doc_id", "document_id", "node_id", "seq_num", "source", "sources", "url",
        "uri", "link", "href", "file", "filename", "file_name", "file_path", "path", "page", "page_number",
        "start", "end", "offset", "start_index", "embedding", "vector", "loc",
    )
)  # fmt: skip


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
        if elements:
            yield JsonList(start, end, elements)
        start = _next_start(text, end)


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
        elif key not in _ABOUT:
            said[key] = value
    return repr(sorted(said.items(), key=lambda item: item[0])) if said else ""


def _score(value: Mapping[str, Any]) -> float | None:
    metadata: Mapping[str, Any] = next(
        (value[name] for name in _METADATA if isinstance(value.get(name), dict)), {}
    )
    for holder in (value, metadata):
        for name in _SCORES:
            score = holder.get(name)
            if (
                isinstance(score, (int, float))
                and not isinstance(score, bool)
                and abs(score) < _HIGHEST_SCORE
            ):
                return float(score)
    return None
