"""An upper bound of tokens from bytes alone: what decides most budgets without counting anything.

Owns one rule: a byte-level vocabulary never makes more tokens than UTF-8 bytes, and JSON never spells a
text shorter than UTF-8 does. Refuses to parse. Media are the exception (a short URL may cost thousands),
so their mentions are added.
"""

from __future__ import annotations

from proxy.tokens.bounded import utf8_length
from proxy.tokens.images import MAX_IMAGE_TOKENS

# The framing of a message that is hardly there ({}), of a tool listing and of the reply.
_FRAMING_TOKENS = 32
_SEARCHED_BYTES = 256 * 1024
_SHORTEST_MEDIA_PART_BYTES = 24
# Every media part names its kind in a string that begins like one of these (`media.MEDIA_KINDS`). Longer
# beginnings than needed would miss kinds, shorter ones would match "content" or "input_text".
_MEDIA_MARKS = (
    b'"image', b'"input_i', b'"input_a', b'"input_f', b'"input_v', b'"file', b'"audio', b'"video',
    b'"document', b'"computer_s', b'"container_u',
)  # fmt: skip


def upper_bound_bytes(raw: bytes | str) -> int:
    """Return a number of tokens that the text (str) or JSON (bytes: a body or a part of it) cannot exceed.

    Linear with a very small factor. Above 256 KiB of JSON the bound stays true but is useless, because even
    the search for media would take milliseconds.
    """
    if isinstance(raw, str):
        return utf8_length(raw)
    if len(raw) > _SEARCHED_BYTES:
        return len(raw) // _SHORTEST_MEDIA_PART_BYTES * MAX_IMAGE_TOKENS
    mentions = sum(raw.count(mark) for mark in _MEDIA_MARKS)
    return len(raw) + _FRAMING_TOKENS + mentions * MAX_IMAGE_TOKENS
