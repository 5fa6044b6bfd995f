"""The key by which a provider brings requests with the same beginning to the same cache.

Owns what the key says: a digest of tools and stable system text, so that it is the same in every process and
for every caller with these, and which share of the traffic the request belongs to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation, Role
from proxy.dialects.prompt_caching import REQUESTS_PER_KEY

_DIGEST_BYTES = 8
# Whose requests these are, if the caller says so; else the person's first message tells conversations apart.
_WHOSE = ("safety_identifier", "user", "conversation")


def cache_key(
    document: Document,
    conversation: Conversation | None,
    before: Sequence[bytes],
    requests_per_minute: int | None,
) -> str:
    """Return the key of a request; `before` is what its prompt begins with and others do, too.

    All requests of a conversation have the same key. Without anything in common a conversation has a key of
    its own.
    """
    if not any(before):
        return f"weir-{_digest(_first_words(document, conversation))}"
    key = f"weir-{_digest(b''.join(len(raw).to_bytes(8, 'big') + raw for raw in before))}"
    shards = 1 if requests_per_minute is None else -(-requests_per_minute // REQUESTS_PER_KEY)
    if shards == 1 or document.get("previous_response_id") not in (None, b"null"):
        # Of a conversation that lives at the server nothing is left to tell it by.
        return key
    return f"{key}-{int(_digest(_whose(document, conversation)), 16) % shards}"


def _whose(document: Document, conversation: Conversation | None) -> bytes:
    for name in _WHOSE:
        raw = document.get(name)
        if raw is not None and raw not in (b"null", b'""'):
            return raw
    return _first_words(document, conversation)


def _first_words(document: Document, conversation: Conversation | None) -> bytes:
    if conversation is None:
        return document.get("input") or b""
    for raw, element in zip(conversation.raws, conversation.elements, strict=True):
        if element.role is not Role.SYSTEM:
            return raw
    return b""


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest()
