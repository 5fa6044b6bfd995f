"""Owns the cheap look at an event: may it say more than that the content goes on? Never parses JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_ESCAPE = b"\\u00"
_ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|[4-7][0-9a-fA-F])")
"""Letters, and the underscore, as escapes: a marker may be written so, and hardly anything else is."""


class EndKey(NamedTuple):
    """The key that says why a choice ended, alone and with the two usual spellings of "it has not"."""

    key: bytes
    tight_null: bytes
    loose_null: bytes


def is_marked(data: bytes, markers: Sequence[bytes], end_key: EndKey | None) -> bool:
    """Tell whether an event, or several, must be read.

    It must if it holds a marker, escapes of letters, or `end_key` with anything but one spelling of `null`.
    """
    for marker in markers:
        if marker in data:
            return True
    if end_key is not None:
        count = data.count
        key, tight_null, loose_null = end_key
        keys = count(key)
        if keys and keys != count(tight_null) and keys != count(loose_null):
            return True
    return has_escaped_letters(data)


def has_escaped_letters(data: bytes) -> bool:
    """Tell whether a key may be written in escapes, so that looking for its letters does not find it."""
    return _ESCAPE in data and _ESCAPED_LETTER.search(data) is not None


def with_plain_letters(data: bytes) -> bytes:
    """Return JSON whose letters are not written in escapes, so that a key is found however it is spelt.

    For looking only: what stands in texts may be spelt otherwise afterwards.
    """
    if not has_escaped_letters(data):
        return data
    return _ESCAPED_LETTER.sub(lambda found: bytes((int(found[0][2:], 16),)), data)
