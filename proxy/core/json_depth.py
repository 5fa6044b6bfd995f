"""How deep valid JSON nests, without walking through it.

Most texts have fewer opening brackets than the limit and are done after a few searches. Nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import msgspec

DEPTH_CHANGE = tuple({0x5B: 1, 0x7B: 1, 0x5D: -1, 0x7D: -1}.get(byte, 0) for byte in range(128))
"""Per ASCII byte outside strings: what it adds to the depth."""

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SHORT_BYTES = 4096


def nests_deeper(text: bytes, values: Mapping[str, msgspec.Raw], max_depth: int) -> bool:
    """Tell whether the object `text`, whose last values are `values`, nests deeper than `max_depth`."""
    if len(text) <= 2 * max_depth or not _opens_more_than(text, max_depth):
        return False
    return max_depth < 1 or any(_is_deeper(bytes(value), max_depth - 1) for value in values.values())


def _opens_more_than(text: bytes, limit: int) -> bool:
    if len(text) < _SHORT_BYTES:
        return text.count(b"{") + text.count(b"[") > limit
    # Brackets are rare in long text, and `find` passes over what lies between them much faster than `count`.
    opened = 0
    for bracket in (b"{", b"["):
        position = text.find(bracket)
        while position >= 0:
            opened += 1
            if opened > limit:
                return True
            position = text.find(bracket, position + 1)
    return False


def _is_deeper(value: bytes, limit: int) -> bool:
    """Tell whether a value nests deeper than `limit`; a long array is judged by its elements."""
    if not _opens_more_than(value, limit):
        return False
    try:
        elements = _ARRAY.decode(value)
    except msgspec.DecodeError:
        return _depth(value) > limit
    return any(
        element.count(b"{") + element.count(b"[") >= limit and _depth(element) >= limit
        for element in map(bytes, elements)
    )


def _depth(text: bytes) -> int:
    """Measure nesting at the speed of C: drop escapes, then every second part between quotes is structure."""
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(unescaped.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(DEPTH_CHANGE.__getitem__, brackets)), default=0)
