"""The request body as spans of the bytes that the caller wrote.

A document is read without being rewritten: edits are remembered per member and spliced into the original
bytes when somebody asks for them, so that number spellings, key order, spacing, escapes and unknown fields
survive. It knows JSON objects and nothing about any API.

    reading    what the upstream will see: edits included, the last of duplicated keys wins
    editing    returns a new document; every occurrence of a duplicated key is edited, so that it cannot
               matter which of them the upstream reads

docs/bodies.md lists what happens to bodies that are not plain JSON objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from proxy.core.json_edits import (
    Path,
    child,
    every_child,
    object_keys,
    removals,
    splice,
    splice_object,
    with_child,
    without_path,
)
from proxy.core.json_keys import are_plain, lookalike
from proxy.core.json_spans import DocumentError, ObjectText, TooManyParts, array_spans, parse_object
from proxy.core.json_values import decode

__all__ = ["Document", "DocumentError", "Path", "TooManyParts"]

_BOM = b"\xef\xbb\xbf"
_NO_EDITS: Mapping[str, bytes | None] = {}


class Document:
    """An immutable JSON object with its original bytes.

    `raw` is the body as the caller wrote it, whatever has been edited since.
    """

    __slots__ = ("_edits", "_only_last", "_source", "_spliced", "raw")

    def __init__(
        self, raw: bytes, source: ObjectText, edits: Mapping[str, bytes | None], only_last: bool
    ) -> None:
        self.raw = raw
        self._source = source
        self._edits = edits
        self._only_last = only_last
        self._spliced: bytes | None = None

    @classmethod
    def parse(cls, raw: bytes, max_depth: int = 512) -> Document:
        """Read a body; raises `DocumentError` and nothing else.

        A UTF-8 byte order mark before the object is kept and not part of it. `max_depth` counts nested
        containers, the body itself included; the parser's own limit is about 900.
        """
        text = raw[len(_BOM) :] if raw.startswith(_BOM) else raw
        return cls(raw, parse_object(text, max_depth), _NO_EDITS, False)

    def __repr__(self) -> str:
        return f"Document({len(self.raw)} bytes, edited={self.edited})"

    @property
    def edited(self) -> bool:
        """Whether the bytes to send differ from `raw`."""
        return self._only_last or bool(self._edits)

    @property
    def duplicates(self) -> frozenset[str]:
        """Top-level keys that occur more than once in what would be sent."""
        if self._only_last or not self._source.has_duplicates():
            return frozenset()
        counts = Counter(member[0] for member in self._source.members())
        return frozenset(
            key for key, count in counts.items() if count > 1 and self._edits.get(key, b"") is not None
        )

    def keys(self) -> tuple[str, ...]:
        """Return the keys of what would be sent, each once, in order of first occurrence."""
        keys = self._source.keys()
        if not self._edits:
            return keys
        kept = tuple(key for key in keys if self._edits.get(key, b"") is not None)
        return kept + tuple(key for key in self._edits if key not in keys)

    def has_any(self, names: frozenset[str]) -> bool:
        """Tell whether any of `names` was written or edited: one look where most requests have none."""
        return self._source.has_any(names) or (bool(self._edits) and not names.isdisjoint(self._edits))

    def has_odd_keys(self) -> bool:
        """Tell whether any top-level key was not written in lower-case ASCII; it may be a lookalike."""
        return not self._source.has_plain_keys()

    def lookalike(self, path: Path) -> str | None:
        """Return a key that a server which folds keys could take for one on `path`, at any of its levels.

        Keys are looked for in all occurrences of duplicated ones. Array elements have no keys.
        """
        first = path[0]
        if isinstance(first, str) and (self.has_odd_keys() or not first.islower()):
            found = lookalike(self._source.keys(), first)
            if found is not None:
                return found
        for level, part in enumerate(path[1:], 1):
            keys = tuple(key for value in self.every_path(path[:level]) for key in object_keys(value))
            if isinstance(part, str) and not are_plain((part, *keys)):
                found = lookalike(keys, part)
                if found is not None:
                    return found
        return None

    def appended(self) -> Mapping[str, bytes]:
        """Return the members that edits added, in order, as far as they were not there before."""
        return {key: raw for key, raw in self._edits.items() if raw is not None and key not in self._source}

    def with_appended(self, members: Mapping[str, bytes]) -> Document:
        """Return an unedited document with `members` appended, of which it has none."""
        return Document(self.raw, self._source, members, False) if members else self

    def get(self, key: str) -> bytes | None:
        """Return the raw bytes of a value, or `None` when the key is absent."""
        if key in self._edits:
            return self._edits[key]
        return self._source.last_value(key)

    def every(self, key: str) -> tuple[bytes, ...]:
        """Return the raw values of all occurrences of `key` in what would be sent, in order."""
        found = self._source.every_value(key)
        if key in self._edits:
            edit = self._edits[key]
            found = () if edit is None else (edit,) * max(1, len(found))
        return found[-1:] if self._only_last else found

    def value(self, key: str, default: object = None) -> Any:
        """Return a decoded value, or `default` when it is absent or cannot be decoded; never raises.

        Lone surrogates stay in the text, bytes that are no UTF-8 become U+FFFD. For decisions only: what is
        sent is never encoded from this.
        """
        raw = self.get(key)
        return default if raw is None else decode(raw, default)

    def set(self, key: str, raw: bytes) -> Document:
        """Return the document with every occurrence of `key` holding `raw`, which must be one JSON value.

        An absent key is appended as the last member. The same object is returned when nothing changes.
        """
        if key in self._edits and self._edits[key] == raw:
            return self
        original = self._source.every_value(key)
        edits = dict(self._edits)
        if original and all(value == raw for value in original):
            if key not in edits:
                return self
            del edits[key]
        else:
            edits[key] = raw
        return Document(self.raw, self._source, edits, self._only_last)

    def delete(self, key: str) -> Document:
        """Return the document without any occurrence of `key`; the same object when it has none."""
        if self.get(key) is None:
            return self
        edits = dict(self._edits)
        if self._source.last_value(key) is None:
            del edits[key]
        else:
            edits[key] = None
        return Document(self.raw, self._source, edits, self._only_last)

    def get_path(self, path: Path) -> bytes | None:
        """Return the raw value at a path of keys and array indices; `None` when there is none."""
        if not path or not isinstance(path[0], str):
            return None
        value = self.get(path[0])
        for part in path[1:]:
            if value is None:
                return None
            value = child(value, part)
        return value

    def every_path(self, path: Path) -> tuple[bytes, ...]:
        """Return the raw values at a path through all occurrences of duplicated keys, at every level."""
        if not path or not isinstance(path[0], str):
            return ()
        values = self.every(path[0])
        for part in path[1:]:
            values = tuple(found for value in values for found in every_child(value, part))
        return values

    def set_path(self, path: Path, raw: bytes) -> Document:
        """Return the document with the value at `path` replaced by `raw`, which must be one JSON value.

        Missing and null parents of a key become objects. The same object is returned when nothing changes or
        when the path leads through something that cannot hold it (a scalar, an array without that index).
        """
        if not path or not isinstance(path[0], str):
            return self
        new = with_child(self.get(path[0]), path[1:], raw)
        return self if new is None else self.set(path[0], new)

    def delete_path(self, path: Path) -> Document:
        """Return the document without the member or element at `path`; the same object when there is none."""
        if len(path) < 2:
            return self.delete(path[0]) if path and isinstance(path[0], str) else self
        value = self.get(path[0]) if isinstance(path[0], str) else None
        shorter = None if value is None else without_path(value, path[1:])
        return self if shorter is None or not isinstance(path[0], str) else self.set(path[0], shorter)

    def array(self, key: str) -> tuple[bytes, ...] | None:
        """Return the raw elements of an array value; `None` when it is none, or too long to be looked at."""
        try:
            return self.elements(key)
        except TooManyParts:
            return None

    def elements(self, key: str) -> tuple[bytes, ...] | None:
        """Return the raw elements of an array value; `None` when the value is no array.

        Raises TooManyParts, for those who must not take a long array for none.
        """
        raw = self.get(key)
        spans = None if raw is None else array_spans(raw)
        return None if raw is None or spans is None else tuple(raw[start:end] for start, end in spans)

    def keep_elements(self, key: str, indices: Collection[int]) -> Document:
        """Return the document with only the elements at `indices` (from zero) of an array value.

        The others go with their commas, kept ones stay byte for byte; the same object when all are kept or
        the value is no array.
        """
        raw = self.get(key)
        spans = None if raw is None else array_spans(raw)
        if raw is None or spans is None:
            return self
        dropped = set(range(len(spans))).difference(indices)
        return self.set(key, splice(raw, removals(spans, dropped))) if dropped else self

    def without_duplicates(self) -> Document:
        """Return the document with only the last occurrence of each top-level key.

        An upstream that takes the first occurrence then reads what Weir read.
        """
        if not self.duplicates:
            return self
        return Document(self.raw, self._source, self._edits, True)

    def to_bytes(self) -> bytes:
        """Return the bytes to send: `raw` itself, the same object, when nothing was edited."""
        if not self.edited:
            return self.raw
        if self._spliced is None:
            source = self._source
            mark = self.raw[: len(self.raw) - len(source.text)]
            self._spliced = mark + splice_object(source, self._edits, only_last=self._only_last)
        return self._spliced
