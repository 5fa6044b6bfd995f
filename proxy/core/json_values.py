"""JSON values decoded for a decision, never to be encoded again."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_LONGEST_INTEGER_DIGITS = 4000
_UNREADABLE = object()


def decode(raw: bytes, default: object = None) -> Any:
    """Decode one JSON value, or return `default`; never raises.

    Lone surrogates stay in the text, bytes that are no UTF-8 become U+FFFD, the last of duplicated keys wins,
    numbers beyond every type become an infinity, so that they still compare. NaN, Infinity and nesting beyond
    the parser give `default`.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(
            raw.decode("utf-8", "replace"), parse_constant=_refuse, parse_int=_integer, strict=False
        )
    except (ValueError, RecursionError):
        return default


def _refuse(name: str) -> None:
    raise ValueError(name)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER_DIGITS else float(digits)


def as_number(raw: bytes) -> int | float | None:
    """Return the number that a lenient reader takes a raw value for, `None` when it is not one.

    Servers that coerce, as pydantic does, read `"100"` as 100; NaN and infinities are numbers to Python.
    `true` is none here, although some count it as 1.
    """
    value = decode(raw, _UNREADABLE)
    if value is _UNREADABLE:
        value = "" if raw.lstrip()[:1] in (b"[", b"{") else raw.decode("utf-8", "replace")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def exceeds(raw: bytes, limit: float) -> bool:
    """Tell whether a raw value is a number that is not known to be at most `limit`; NaN is not."""
    number = as_number(raw)
    return number is not None and not number <= limit


def falls_below(raw: bytes, least: float) -> bool:
    """Tell whether a raw value is a number that is not known to be at least `least`; NaN is not."""
    number = as_number(raw)
    return number is not None and not number >= least
