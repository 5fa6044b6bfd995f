"""Shortens texts to a number of tokens: on code points, and so that JSON stays JSON of the same shape.

Owns where a text is cut. Takes whatever counts tokens as a function and calls it a bounded number of times,
on texts near the wanted length only. Nothing here is ever longer in tokens than before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from proxy.core.json_edits import splice
from proxy.core.json_measure import MAX_MARKS
from proxy.core.json_spans import (
    DocumentError,
    ObjectText,
    Spans,
    TooManyParts,
    array_spans,
    parse_object,
)
from proxy.core.json_values import decode
from proxy.dialects.text_parts import quoted_text

CountText = Callable[[str], int]
Side = Literal["end", "middle", "start"]
JsonRule = Literal["elements", "drop", "text", "keep"]

_MOST_TRIES = 8
_MOST_SPELLINGS = 3
_DEEPEST = 6
_UNLIMITED_DEPTH = 1 << 30
_EMPTY = {"[": "[]", "{": "{}", '"': '""'}
# Tokens do not add up exactly where a value is put into another.
_JOINT_TOKENS = 2
# Below this a member of an object is not worth keeping part of.
_LEAST_TOKENS = 8


class Shortening(msgspec.Struct, frozen=True):
    """How texts are shortened.

    side      which part goes
    json      what happens to a text that is a JSON array or object
    marker    text that stands where plain text was cut
    """

    side: Side
    json: JsonRule
    marker: str
    count: CountText

    def shortened(self, text: str, limit_tokens: int) -> str:
        """Return the text in at most so many tokens, or as near as it can be; itself if it fits."""
        before = self.count(text)
        if before <= limit_tokens:
            return text
        shorter = self._shorter(text, before, limit_tokens)
        return shorter if self.count(shorter) < before else text

    def _shorter(self, text: str, tokens: int, limit_tokens: int) -> str:
        empty = _EMPTY.get(text.lstrip()[:1]) if self.json != "text" else None
        raw = text.encode("utf-8", "surrogatepass") if empty is not None else b""
        if empty is None or not _is_json(raw):
            return self._cut_text(text, tokens, limit_tokens)
        if self.json == "keep":
            return text
        shorter = self._shorter_json(raw, limit_tokens, _DEEPEST) if self.json == "elements" else None
        return empty if shorter is None else shorter.decode("utf-8", "surrogatepass")

    def _cut_text(self, text: str, tokens: int, limit_tokens: int) -> str:
        bare = text.strip()

        def with_characters(size: int) -> str:
            piece = cut(text, size, self.side, self.marker)
            # Anthropic refuses blocks of text that are blank.
            return piece if piece.strip() or not bare else cut(bare, size, self.side, self.marker)

        return self._fitted(with_characters, len(text), tokens, limit_tokens)

    def _fitted(self, make: Callable[[int], str], most: int, tokens: int, limit_tokens: int) -> str:
        """Return `make(size)` for a large size that fits; for the smallest size (1) if none does."""
        size = max(1, most * limit_tokens // max(1, tokens))
        best: str | None = None
        largest, too_large = 0, most
        for _ in range(_MOST_TRIES):
            candidate = make(size)
            counted = self.count(candidate)
            if counted <= limit_tokens:
                best, largest = candidate, size
                if counted * 10 >= limit_tokens * 9:
                    break
            else:
                too_large = size
            guess = size * limit_tokens // max(1, counted)
            if not largest < guess < too_large:
                guess = (largest + too_large) // 2
            if guess <= largest:
                break
            size = guess
        return make(1) if best is None else best

    def _shorter_json(self, raw: bytes, limit_tokens: int, depth: int) -> bytes | None:
        """Return a JSON value with fewer elements or shorter text inside; `None` if nothing can be cut."""
        if depth == 0 or limit_tokens < _LEAST_TOKENS:
            return None
        start = raw.lstrip()[:1]
        if start == b'"':
            return self._shorter_string(raw, limit_tokens)
        if start == b"[":
            return self._shorter_array(raw, limit_tokens, depth)
        return self._shorter_object(raw, limit_tokens, depth) if start == b"{" else None

    def _shorter_string(self, raw: bytes, limit_tokens: int) -> bytes | None:
        """Return a JSON string with a shorter text (or JSON) in it; escapes make it longer than its text."""
        text = decode(raw)
        if not isinstance(text, str):
            return None
        text_tokens = limit_tokens
        for _ in range(_MOST_SPELLINGS):
            shorter = quoted_text(self.shortened(text, text_tokens))
            counted = self._count_raw(shorter)
            if counted <= limit_tokens:
                return shorter
            text_tokens = text_tokens * limit_tokens // (counted + 1)
        return None

    def _shorter_array(self, raw: bytes, limit_tokens: int, depth: int) -> bytes | None:
        spans = array_spans(raw, MAX_MARKS)
        if not spans:
            return None

        def with_elements(count: int) -> str:
            return _first_or_last(raw, spans, count, self.side).decode("utf-8", "surrogatepass")

        chosen = self._fitted(with_elements, len(spans), self._count_raw(raw), limit_tokens)
        if self.count(chosen) <= limit_tokens:
            return chosen.encode("utf-8", "surrogatepass")
        # Not even one element fits: shorten that one.
        start, end = spans[-1 if self.side == "start" else 0]
        shorter = self._shorter_json(raw[start:end], limit_tokens - _JOINT_TOKENS, depth - 1)
        return None if shorter is None else b"[" + shorter + b"]"

    def _shorter_object(self, raw: bytes, limit_tokens: int, depth: int) -> bytes | None:
        source = parse_object(raw, _UNLIMITED_DEPTH, MAX_MARKS)
        members = source.members()
        if not members:
            return None
        _, _, start, end = max(members, key=lambda member: member[3] - member[2])
        rest_tokens = self._count_raw(raw[:start] + b"0" + raw[end:])
        shorter = self._shorter_json(raw[start:end], limit_tokens - rest_tokens - _JOINT_TOKENS, depth - 1)
        if shorter is None or len(shorter) >= end - start:
            return None
        made = splice(raw, [(start, end, shorter)])
        return made if self._count_raw(made) <= limit_tokens else None

    def _count_raw(self, raw: bytes) -> int:
        return self.count(raw.decode("utf-8", "surrogatepass"))


def cut(text: str, size: int, side: Side, marker: str) -> str:
    """Return so many code points of a text, and the marker where the others were."""
    if size >= len(text):
        return text
    match side:
        case "end":
            return text[:size] + marker
        case "start":
            return marker + text[len(text) - size :]
        case "middle":
            tail = size // 2
            return text[: size - tail] + marker + text[len(text) - tail :]


def _first_or_last(raw: bytes, spans: Spans, count: int, side: Side) -> bytes:
    """Return an array with so many of its elements, spaced as it was."""
    total = len(spans)
    if count >= total:
        return raw
    if side == "start":
        return raw[: spans[0][0]] + raw[spans[total - count][0] :]
    tail = count // 2 if side == "middle" else 0
    return raw[: spans[count - tail - 1][1]] + raw[spans[total - tail - 1][1] :]


def _is_json(raw: bytes) -> bool:
    match raw.lstrip()[:1]:
        case b"[":
            return array_spans(raw, MAX_MARKS) is not None
        case b"{":
            return _object(raw) is not None
        case _:
            return isinstance(decode(raw), str)


def _object(raw: bytes) -> ObjectText | None:
    try:
        return parse_object(raw, _UNLIMITED_DEPTH, MAX_MARKS)
    except TooManyParts:
        raise
    except DocumentError:
        return None
