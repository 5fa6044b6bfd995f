"""Where the members of a JSON object and the elements of a JSON array stand in the original bytes.

`msgspec` validates the text and delivers each value as a slice; offsets are found again, when somebody needs
them, by a walk over the keys. Text that `msgspec` refuses although other readers take it (lone surrogates,
NaN, keys that are no UTF-8) is judged through a shadow: a copy of equal length in which those parts are
replaced by harmless ones, so that every offset holds in both. This module edits nothing and decodes no value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

from proxy.core.json_errors import DocumentError, TooManyParts
from proxy.core.json_keys import are_plain
from proxy.core.json_measure import DEPTH_CHANGE, MAX_ELEMENTS, MAX_MEMBERS, check_array, check_object

__all__ = ["DocumentError", "Members", "ObjectText", "Spans", "TooManyParts", "array_spans", "parse_object"]

Members = tuple[tuple[str, int, int, int], ...]
"""Per `"key": value` of an object: the key, the offset of its opening quote, start and end of the value."""

Spans = tuple[tuple[int, int], ...]

_T = TypeVar("_T")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)

WHITESPACE = b" \t\r\n"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACE = re.compile(rb"[ \t\r\n]*+")
_KEY = re.compile(rb"[ \t\r\n]*+(" + _STRING + rb")[ \t\r\n]*+:[ \t\r\n]*+", re.DOTALL)
_SEPARATOR = re.compile(rb"[ \t\r\n]*+([,}\]])")
_STRING_OR_BRACKET = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_SCALAR = re.compile(rb"[^,\]} \t\r\n]++")

_NAN = re.compile(rb"(?<![\w.+-])NaN(?![\w.+-])")
_INFINITY = re.compile(rb"(?<![\w.+])Infinity(?![\w.+-])")
_MAX_ODD_NUMBERS = 10_000
"""Replacing one takes 0.3 us, all of them in one call that holds the interpreter."""
_ASCII_ONLY = bytes(range(128)) + b"x" * 128

_QUOTE, _OPEN_ARRAY, _OPEN_OBJECT = b'"[{'


class ObjectText:
    """The text of one JSON object and, once somebody asks, where each member stands in it.

    `values` are the last values of all keys, slices of `text`; or `members` are given at once.
    """

    __slots__ = ("_duplicated", "_last", "_members", "_plain", "_values", "text")

    def __init__(self, text: bytes, values: dict[str, msgspec.Raw] | None, members: Members | None) -> None:
        self.text = text
        self._values = values
        self._members = members
        self._last: dict[str, tuple[int, int]] | None = None
        self._duplicated: bool | None = None
        self._plain: bool | None = None

    def __contains__(self, key: str) -> bool:
        return key in (self._last_spans() if self._values is None else self._values)

    def has_any(self, names: frozenset[str]) -> bool:
        """Tell whether any of `names` is a key."""
        values = self._values
        return not names.isdisjoint(self._last_spans() if values is None else values)

    def members(self) -> Members:
        """Return every member in the order of the text, duplicated keys included."""
        if self._members is None:
            values = self._values or {}
            self._members = _walk_plain(self.text, values) or _walk(self.text, values, self.text)
        return self._members

    def has_duplicates(self) -> bool:
        """Tell whether a key occurs more than once."""
        if self._duplicated is None:
            values = self._values
            is_plain = self._members is None and bool(values) and _is_compact(self.text, values or {})
            self._duplicated = not is_plain and len(self.members()) != len(self.keys())
        return self._duplicated

    def keys(self) -> tuple[str, ...]:
        """Return the keys in the order of their first occurrences."""
        return tuple(self._last_spans() if self._values is None else self._values)

    def has_plain_keys(self) -> bool:
        """Tell whether no key could be taken for another one (`json_keys.are_plain`)."""
        if self._plain is None:
            self._plain = are_plain(self.keys())
        return self._plain

    def last_value(self, key: str) -> bytes | None:
        """Return the raw value of the last occurrence of `key`."""
        if self._values is not None:
            value = self._values.get(key)
            return None if value is None else bytes(value)
        span = self._last_spans().get(key)
        return None if span is None else self.text[span[0] : span[1]]

    def every_value(self, key: str) -> tuple[bytes, ...]:
        """Return the raw values of all occurrences of `key`, in order."""
        last = self.last_value(key)
        if last is None:
            return ()
        if not self.has_duplicates():
            return (last,)
        return tuple(self.text[start:end] for name, _, start, end in self.members() if name == key)

    def end(self) -> int:
        """Return the offset just after the last value (after `{` in an empty object)."""
        end = self.text.rindex(b"}")
        while self.text[end - 1] in WHITESPACE:
            end -= 1
        return end

    def _last_spans(self) -> dict[str, tuple[int, int]]:
        if self._last is None:
            self._last = {key: (start, end) for key, _, start, end in self.members()}
        return self._last


def parse_object(text: bytes, max_depth: int, max_members: int = MAX_MEMBERS) -> ObjectText:
    """Read the text of a JSON object; raises `DocumentError` and nothing else.

    `max_depth` counts nested containers, the object itself included. What the parser itself cannot nest
    (about 900 levels, less what is on Python's stack) is `too_deep` whatever `max_depth` says. More than
    `max_members` members raise `TooManyParts`.
    """
    check_object(text, max_depth, max_members)
    try:
        values = _OBJECT.decode(text)
    except RecursionError:
        raise DocumentError("too_deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _parse_through_shadow(text)
    return ObjectText(text, values, None)


def array_spans(text: bytes, max_elements: int = MAX_ELEMENTS) -> Spans | None:
    """Return start and end of each element, or `None` when the text is no JSON array.

    Raises TooManyParts beyond `max_elements`.
    """
    if not text.lstrip(WHITESPACE).startswith(b"["):
        return None
    check_array(text, max_elements)
    for shadow in chain((text,), _shadows(text)):
        elements = _decode_or_none(_ARRAY, shadow)
        if elements is not None:
            return _walk_array(shadow, elements)
    return None


def _decode_or_none(decoder: msgspec.json.Decoder[_T], text: bytes) -> _T | None:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _shadows(text: bytes) -> Iterator[bytes]:
    """Yield copies of equal length and structure that the strict parser takes where a tolerant one would.

    Likely causes of refusal first: lone surrogates, then NaN and infinities, then keys that are no UTF-8.
    The replacements also hit string contents, which is harmless: a shadow is only ever measured.
    """
    shadow = text
    if b"\\ud" in text or b"\\uD" in text:
        shadow = text.replace(b"\\ud", b"\\u0").replace(b"\\uD", b"\\u0")
        yield shadow
    odd_numbers = shadow.count(b"NaN") + shadow.count(b"Infinity")
    if odd_numbers > _MAX_ODD_NUMBERS:
        raise TooManyParts
    if odd_numbers:
        shadow = _INFINITY.sub(b"10000000", _NAN.sub(b"100", shadow))
        yield shadow
    if not shadow.isascii():
        yield shadow.translate(_ASCII_ONLY)


def _parse_through_shadow(text: bytes) -> ObjectText:
    start = text.lstrip(WHITESPACE)
    if not start:
        raise DocumentError("empty")
    is_object = start.startswith(b"{")
    decoder: msgspec.json.Decoder[Any] = _OBJECT if is_object else _ANYTHING
    for shadow in _shadows(text) if is_object else chain((text,), _shadows(text)):
        try:
            values = decoder.decode(shadow)
        except RecursionError:
            raise DocumentError("too_deep") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if not isinstance(values, dict):
            raise DocumentError("not_an_object")
        return ObjectText(text, None, _walk(shadow, values, text))
    raise DocumentError("not_json")


def _is_compact(text: bytes, values: dict[str, msgspec.Raw]) -> bool:
    """Tell whether an object has no whitespace between tokens, no escaped key and no duplicated one.

    All three would only make the text longer than its keys and last values with their four marks each.
    """
    keys = "".join(values)
    key_bytes = len(keys) if keys.isascii() else len(keys.encode())
    return len(text) == key_bytes + sum(map(len, values.values())) + 4 * len(values) + 1


def _walk_plain(text: bytes, values: dict[str, msgspec.Raw]) -> Members | None:
    """Find the members of an object spaced as JavaScript or Python write it; `None` for any other.

    With Python's spaces every token is compared. That is sound because JSON values delimit themselves: where
    a known value stands, followed by what must follow one, it is the value there; each key is used once.
    """
    compact = _is_compact(text, values)
    colon, comma = (b'":', b",") if compact else (b'": ', b", ")
    members: list[tuple[str, int, int, int]] = []
    position = 1
    for key, value in values.items():
        token = b'"' + key.encode() + colon
        start = position + len(token)
        end = start + len(value)
        if not compact:
            is_here = text.startswith(token, position) and text.startswith(value, start)
            if not is_here or not (text.startswith(comma, end) or text[end:] == b"}"):
                return None
        members.append((key, position, start, end))
        position = end + len(comma)
    return tuple(members) if members and members[-1][3] == len(text) - 1 else None


def _walk(shadow: bytes, values: dict[str, msgspec.Raw], text: bytes) -> Members:
    """Find every member in valid `shadow`; keys are read from `text`, which has the same offsets.

    A value that `values` does not know (an earlier duplicate) is skipped token by token.
    """
    members: list[tuple[str, int, int, int]] = []
    position = shadow.index(b"{") + 1
    while (key := _KEY.match(shadow, position)) is not None:
        start = key.end()
        end = start
        known = values.get(_key_name(key[1]))
        separator = None
        if known is not None and shadow.startswith(known, start):
            end = start + len(known)
            separator = _SEPARATOR.match(shadow, end)
        if separator is None:
            end = _skip_value(shadow, start)
            separator = _SEPARATOR.match(shadow, end)
        members.append((_key_name(text[key.start(1) : key.end(1)]), key.start(1), start, end))
        if separator is None or separator[1] == b"}":
            break
        position = separator.end()
    return tuple(members)


def _walk_array(shadow: bytes, elements: list[msgspec.Raw]) -> Spans:
    spans: list[tuple[int, int]] = []
    position = shadow.index(b"[") + 1
    for element in elements:
        start = _end_of(_SPACE, shadow, position)
        end = start + len(element)
        spans.append((start, end))
        position = _end_of(_SEPARATOR, shadow, end)
    return tuple(spans)


def _key_name(quoted: bytes) -> str:
    if b"\\" not in quoted and quoted.isascii():
        return quoted[1:-1].decode("ascii")
    name: str = json.loads(quoted.decode("utf-8", "surrogateescape"), strict=False)
    return name


def _skip_value(text: bytes, position: int) -> int:
    """Return where the value that begins at `position` of valid `text` ends, without recursion."""
    first = text[position]
    if first != _OPEN_OBJECT and first != _OPEN_ARRAY:
        return _end_of(_STRING_OR_BRACKET if first == _QUOTE else _SCALAR, text, position)
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text, position):
        byte = text[token.start()]
        if byte != _QUOTE:
            depth += DEPTH_CHANGE[byte]
            if depth == 0:
                return token.end()
    return len(text)


def _end_of(pattern: re.Pattern[bytes], text: bytes, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()
