"""Names the prefixes of a conversation by digests, as a provider's prompt cache would tell them apart.

Owns what belongs to a cached prefix: tools and system text come before the first element, then every element
as the caller wrote it. Refuses to know what anybody remembers.
"""

from __future__ import annotations

import hashlib

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation

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
    # The length keeps two elements from being taken for one that holds both.
    chain.update(len(raw).to_bytes(8, "big"))
    chain.update(raw)
