"""How deep JSON nests and how many parts it has, found out before anything is made of the parts.

A parser makes an object of every member: a body of millions of them takes seconds, in calls that hold the
interpreter, and a hundred times its own size. So what may have many is measured first, piece by piece, in
bounded memory, and refused. Nearly every text is known to be harmless after a search for commas or brackets.
"""

from __future__ import annotations

from itertools import accumulate

from proxy.core.json_errors import DocumentError, TooManyParts

MAX_MEMBERS = 2_000
"""Members of one object that is taken apart. Finding a member costs up to 4 us: 8 ms in all."""

MAX_ELEMENTS = 50_000
"""Elements of one array that is taken apart; each costs about 1 us and 250 bytes."""

MAX_MARKS = 500_000
"""Commas and brackets outside strings in a whole body. One costs a parser about 10 ns; more than this is no
request that a model could take (300,000 tokens of embeddings, written as numbers, are 300,000)."""

DEPTH_CHANGE = tuple({0x5B: 1, 0x7B: 1, 0x5D: -1, 0x7D: -1}.get(byte, 0) for byte in range(128))
"""Per ASCII byte outside strings: what it adds to the depth."""

_NOT_MARKS = bytes(set(range(256)) - set(b"[]{},"))
_COMMA_IN_OBJECT = (0x2C, 1)
_SHORT_BYTES = 4096
_FEW_MEMBERS_BYTES = 8192
"""An object this short has no more than some 1,600 members."""
_WINDOW_BYTES = 1024 * 1024
_PIECE_BYTES = 32 * 1024
"""A piece takes up to 3 ms; between pieces other threads run."""


def is_quick(body: bytes, max_bytes: int, max_parts: int) -> bool:
    """Tell at a glance that a body has at most `max_bytes`, and at most `max_parts` parts anywhere.

    Parts are separated by commas; those inside strings are counted too, so `False` says nothing.
    """
    return len(body) <= max_bytes and (len(body) <= max_parts or body.count(b",") < max_parts)


def check_object(text: bytes, max_depth: int, max_members: int) -> None:
    """Raise DocumentError for an object that nests deeper than `max_depth` or has too many parts.

    Text that is no valid JSON may raise or not.
    """
    may_be_deep = len(text) > 2 * max_depth and _opens_more_than(text, max_depth)
    if may_be_deep or (len(text) > _FEW_MEMBERS_BYTES and _has_commas(text, max_members)):
        measure(text, max_depth, max_members)


def check_array(text: bytes, max_elements: int) -> None:
    """Raise TooManyParts for an array too long to be taken apart."""
    if len(text) > max_elements and _has_commas(text, max_elements):
        measure(text, len(text), max_elements)


def _has_commas(text: bytes, least: int) -> bool:
    """Tell whether there are at least so many commas; a long text is searched with pauses."""
    found = 0
    for start in range(0, len(text), _WINDOW_BYTES):
        found += text.count(b",", start, start + _WINDOW_BYTES)
        if found >= least:
            return True
    return False


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


def measure(text: bytes, max_depth: int, max_parts: int, piece_bytes: int = _PIECE_BYTES) -> None:
    """Read marks at the speed of C: without escapes, every second part between quotes is structure."""
    position = depth = separators = marks_seen = 0
    in_string = False
    while position < len(text):
        piece = _piece(text, position, piece_bytes)
        position += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        marks = b"".join(parts[in_string::2]).translate(None, _NOT_MARKS)
        in_string ^= len(parts) % 2 == 0
        if not marks:
            continue
        depths = list(accumulate(map(DEPTH_CHANGE.__getitem__, marks), initial=depth))
        depth = depths[-1]
        if max(depths) > max_depth:
            raise DocumentError("too_deep")
        marks_seen += len(marks)
        if min(depths) <= 1:
            separators += list(zip(marks, depths, strict=False)).count(_COMMA_IN_OBJECT)
        if separators >= max_parts or marks_seen > MAX_MARKS:
            raise TooManyParts


def _piece(text: bytes, position: int, piece_bytes: int) -> bytes:
    """Return the next bytes, without cutting an escape in two."""
    piece = text[position : position + piece_bytes]
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return text[position : position + piece_bytes + 1] if backslashes % 2 else piece
