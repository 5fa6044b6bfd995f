"""Names the prefixes of a conversation by digests, as a provider's prompt cache would tell them apart.

Owns what belongs to a cached prefix: tools and system text come before the first element, then every element
as the caller wrote it, less its marks. Refuses to know what anybody remembers.
"""

from __future__ import annotations

import hashlib
import re

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation, has_cache_mark

_S = rb"[ \t\r\n]*"
_FIELD = rb'"(?:cache_control|prompt_cache_breakpoint)"' + _S + rb":" + _S + rb"\{[^{}]*\}"
# Where a caller marks the end of a prefix changes with every turn, and is no part of what is cached.
_MARK = re.compile(_S + rb"," + _S + _FIELD + rb"|" + _FIELD + _S + rb",?" + _S)
_TYPE = rb'"type"' + _S + rb":" + _S + rb'"text"'
_TEXT = rb'"text"' + _S + rb":" + _S + rb'("(?:[^"\\]|\\.)*+")'
_COMMA = _S + rb"," + _S
# A mark needs a list of blocks: the same text stands in a list now and is a plain string in the next turn.
_ONE_TEXT = re.compile(
    rb'("content"' + _S + rb":" + _S + rb")\[" + _S + rb"\{" + _S
    + rb"(?:" + _TYPE + _COMMA + _TEXT + rb"|" + _TEXT + _COMMA + _TYPE + rb")"
    + _S + rb"\}" + _S + rb"\]",
    re.DOTALL,
)  # fmt: skip
_DIGEST_BYTES = 16
_BEFORE_ELEMENTS = ("tools", "functions")


def prefix_keys(document: Document, conversation: Conversation) -> tuple[bytes, ...]:
    """Return a digest per element, of everything up to and including it; linear, about 1 ms per MB."""
    chain = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    fields = (document.get(name) or b"" for name in _BEFORE_ELEMENTS)
    for raw in (*fields, *conversation.fixed):
        _add(chain, raw)
    keys: list[bytes] = []
    for raw in conversation.raws:
        _add(chain, raw)
        keys.append(chain.digest())
    return tuple(keys)


def _add(chain: hashlib.blake2b, raw: bytes) -> None:
    if has_cache_mark(raw):
        raw = _MARK.sub(b"", raw)
    if b"text" in raw:
        raw = _ONE_TEXT.sub(rb"\1\2\3", raw, 1)
    # The length keeps two elements from being taken for one that holds both.
    chain.update(len(raw).to_bytes(8, "big"))
    chain.update(raw)
