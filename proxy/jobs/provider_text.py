"""What providers and callers say, as stores and heads can hold it. Pure.

JSON may hold half a surrogate pair, a header field any byte, and a line of a result file a line break where a
field's value should be. No store takes the first, no head may hold the others: one such word must not keep a
job from ending, or it is carried (and paid) again and again.
"""

from __future__ import annotations


def storable(text: str) -> str:
    """Return a text with `?` in the place of lone surrogates."""
    # Nearly every text is one that can be encoded; asking is cheaper than making another.
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def relayable(fields: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the header fields whose names and values are printable ASCII; the others are left out."""
    return tuple(field for field in fields if all(part.isascii() and part.isprintable() for part in field))
