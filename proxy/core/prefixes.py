"""The port through which a step learns what a provider has likely cached: conversations sent a while ago.

A prefix is known by a digest of everything up to and including one element; the digests of a conversation
are a chain, so that the longest known one tells how much of it was sent before. Nothing here reads the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of element indices, ascending."""


class SentPrefix(msgspec.Struct, frozen=True):
    """A conversation as it goes out now: the caller's whole conversation and which elements were left out."""

    key: bytes
    dropped: Ranges = ()


class SeenPrefix(msgspec.Struct, frozen=True):
    """How much of a conversation was sent before: its first `elements`, without those in `dropped`."""

    elements: int
    dropped: Ranges


class PrefixLookup(Protocol):
    """Whoever remembers what was sent, for one caller, upstream and model."""

    def seen(self, keys: Sequence[bytes], within_seconds: float) -> SeenPrefix | None:
        """Return what was sent of a conversation within a time; `keys[i]` is the prefix of i + 1 elements."""
        ...
