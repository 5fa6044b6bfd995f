"""Owns what YAML readers disagree about: unquoted words that YAML 1.1 or 1.2 turn into something else.

Where text is wanted such a word is refused with the advice to quote it, so that no stop sequence ever
becomes `false` and no model name a date. Rules: https://yaml.org/type/ (1.1) and YAML 1.2.2, section 10.3.
"""

from __future__ import annotations

import re

_BOOLEAN = re.compile(r"y|yes|n|no|true|false|on|off", re.IGNORECASE | re.ASCII)
_NULL = re.compile(r"~|null|", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}(?:[Tt \t].*)?", re.ASCII)
_SEXAGESIMAL = re.compile(r"[-+]?\d[\d_]*(?::[0-5]?\d)+(?:\.[\d_]*)?", re.ASCII)
_NUMBER = re.compile(
    r"[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.[\d_]+)(?:[eE][-+]?\d+)?"
    r"|[-+]?0(?:x[\da-fA-F_]+|o[0-7_]+|b[01_]+)"
    r"|[-+]?\.inf|\.nan",
    re.IGNORECASE | re.ASCII,
)

INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
"""An integer that every YAML version reads alike."""

DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,18}(?:[eE][-+][0-9]{1,3})?")
"""A decimal number that every YAML version reads alike."""


def trap(text: str) -> str | None:
    """Return what YAML may read an unquoted `text` as, if that is not plain text."""
    if _NULL.fullmatch(text):
        return "null"
    if _BOOLEAN.fullmatch(text):
        return "a boolean"
    if _DATE.fullmatch(text):
        return "a date"
    if _SEXAGESIMAL.fullmatch(text):
        return "a base-60 number"
    if _NUMBER.fullmatch(text):
        return "a number"
    if text in ("<<", "="):
        return "a special key"
    return None


def quoted(text: str) -> str:
    """Return the advice to quote a word."""
    return f'quote it: "{text}"' if text else 'write "" for empty text'
