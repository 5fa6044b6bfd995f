"""Which keys a lenient server could take for another key.

Some servers tell no cases apart (Go's `encoding/json` matches by Unicode case folding), some take camelCase
for snake_case (protobuf's JSON mapping). Weir reads a key as it is written; this module says where that
matters. It decides nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

_LONGEST_KEY_CHARS = 256


def are_plain(keys: Iterable[str]) -> bool:
    """Tell at a glance that no key could be taken for a lower-case ASCII name that it is not."""
    joined = "".join(keys)
    return joined.isascii() and (joined.islower() or joined == joined.lower())


def lookalike(keys: Iterable[str], name: str) -> str | None:
    """Return the first key that is not `name` but that a server could read as `name`."""
    wanted = _folded(name)
    return next((key for key in keys if key != name and _folded(key) == wanted), None)


def _folded(key: str) -> str:
    if len(key) > _LONGEST_KEY_CHARS:
        return key
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", key).casefold()).replace("_", "")
