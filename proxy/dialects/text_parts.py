"""The texts inside one element of a conversation, by the bytes that spell them, so that they can be edited.

Owns where the three APIs keep text that a person, a model or a tool wrote. Reasoning, signed blocks, media,
call arguments and everything of unknown type are no text here: nobody may edit them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import orjson

from proxy.core.json_edits import Change, Path, splice
from proxy.core.json_spans import DocumentError, array_spans, parse_object
from proxy.core.json_values import decode

_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_UNLIMITED_DEPTH = 1 << 30


class TextPart(msgspec.Struct, frozen=True):
    """One text of an element.

    path       where it stands in the element, such as `("content", 0, "text")`
    start, end its JSON string in the element's bytes, quotes included
    result     which tool result it belongs to, counted within the element; `None` for anyone's own words
    """

    path: Path
    start: int
    end: int
    result: int | None = None

    def text(self, raw: bytes) -> str:
        """Return the text, given the element's bytes."""
        value = decode(raw[self.start : self.end])
        return value if isinstance(value, str) else ""


def text_parts(raw: bytes) -> tuple[TextPart, ...]:
    """Return the texts of an element in order; none for what is no object."""
    members = member_spans(raw)
    role, kind = (_word(raw, members.get(name)) for name in ("role", "type"))
    if "output" in members and kind.endswith("_output"):
        return tuple(_texts(raw, ("output",), members["output"], 0))
    if "content" in members and (role or kind in ("", "message")):
        result = 0 if role in ("tool", "function") else None
        return tuple(_texts(raw, ("content",), members["content"], result))
    return ()


def value_parts(raw: bytes) -> tuple[TextPart, ...]:
    """Return the texts of a value that is text or a list of parts, as `system` is; paths begin inside it."""
    return tuple(_texts(raw, (), (0, len(raw)), None))


def with_texts(raw: bytes, edits: Mapping[TextPart, str], cuts: Iterable[Change] = ()) -> bytes:
    """Return the element with other texts in the given parts (of that element); the rest stays byte for byte.

    A new text is spelled as it is, without needless escapes. `cuts` are further changes, outside those parts.
    """
    changes = [(part.start, part.end, quoted_text(text)) for part, text in edits.items()]
    return splice(raw, sorted([*changes, *cuts], key=lambda change: change[:2]))


def quoted_text(text: str) -> bytes:
    """Return a text as a JSON string, lone surrogates escaped."""
    try:
        return orjson.dumps(text)
    except TypeError:
        # orjson and UTF-8 have no place for half a surrogate pair; callers do send them, as escapes.
        pieces = (
            f"\\u{ord(character):04x}" if "\ud800" <= character <= "\udfff" else _inside(character)
            for character in text
        )
        return b'"' + "".join(pieces).encode() + b'"'


def _inside(character: str) -> str:
    return orjson.dumps(character)[1:-1].decode()


def _texts(raw: bytes, path: Path, span: tuple[int, int], result: int | None) -> Iterator[TextPart]:
    start, end = span
    if raw[start : start + 1] == b'"':
        yield TextPart(path, start, end, result)
        return
    results = 0
    for index, (first, last) in enumerate(array_spans(raw[start:end]) or ()):
        part = raw[start + first : start + last]
        members = member_spans(part, start + first)
        kind = _word(raw, members.get("type"))
        inner: Path = (*path, index)
        if kind in _TEXT_TYPES and "text" in members:
            text = members["text"]
            if raw[text[0] : text[0] + 1] == b'"':
                yield TextPart((*inner, "text"), *text, result)
        elif kind == "tool_result":
            if "content" in members:
                yield from _texts(raw, (*inner, "content"), members["content"], results)
            results += 1


def member_spans(raw: bytes, offset: int = 0) -> dict[str, tuple[int, int]]:
    """Return the spans of an object's values, `offset` added; of duplicated keys the last counts."""
    if raw[:1] != b"{":
        return {}
    try:
        members = parse_object(raw, _UNLIMITED_DEPTH).members()
    except DocumentError:
        return {}
    return {key: (start + offset, end + offset) for key, _, start, end in members}


def _word(raw: bytes, span: tuple[int, int] | None) -> str:
    value = None if span is None or span[1] - span[0] > 64 else decode(raw[span[0] : span[1]])
    return value if isinstance(value, str) else ""
