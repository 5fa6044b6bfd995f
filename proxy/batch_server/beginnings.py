"""How a prompt begins, as digests at growing lengths: prompts that begin alike have the first of them alike.

Owns what counts as a prompt's order: tools and system text, then element by element, then the text itself at
a few lengths, since most batches repeat one long instruction before a short text of their own. The digests
only sort; two that are equal by chance cost a cache hit and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from proxy.core.document import Document, TooManyParts
from proxy.dialects.conversation import conversation_fields
from proxy.dialects.dialect import Dialect

LEVEL_BYTES = 4
"""Bytes of one digest."""

MOST_LEVELS = 16
_LENGTHS_BYTES = (256, 1024, 4096, 16_384, 65_536)
"""Where text is compared within an element; what is shorter than the first is not worth a cache."""

_TOOLS = ("tools", "functions")
_TEXT_FIELDS = {"completions": ("prompt",)}


def beginning(document: Document, dialect: Dialect | None) -> bytes:
    """Return the digests of a request's prompt, `LEVEL_BYTES` each; empty where its API caches nothing."""
    levels = bytearray()
    chain = hashlib.blake2b(digest_size=LEVEL_BYTES)
    for piece in _pieces(document, dialect):
        start = 0
        for length in _LENGTHS_BYTES:
            if length >= len(piece) or len(levels) >= MOST_LEVELS * LEVEL_BYTES:
                break
            chain.update(piece[start:length])
            levels += chain.digest()
            start = length
        if len(levels) >= MOST_LEVELS * LEVEL_BYTES:
            break
        # The length keeps two elements from being taken for one that holds both.
        chain.update(piece[start:])
        chain.update(len(piece).to_bytes(8, "big"))
        levels += chain.digest()
    return bytes(levels)


def _pieces(document: Document, dialect: Dialect | None) -> Iterator[bytes]:
    if dialect is None:
        return
    texts = _TEXT_FIELDS.get(dialect.name, ())
    elements, *fixed = conversation_fields(dialect) or ("", *texts)
    head = b"\0".join(document.get(name) or b"" for name in _TOOLS)
    if len(head) > 1:
        yield head
    for name in fixed:
        value = document.get(name)
        if value is not None:
            yield value
    if not elements:
        return
    try:
        raws = document.elements(elements)
    except TooManyParts:
        return
    yield from raws if raws is not None else filter(None, (document.get(elements),))
