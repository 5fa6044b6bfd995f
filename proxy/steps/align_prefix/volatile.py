"""Which lines of a text change from request to request, as a policy declares them.

Owns the lines that have names (`date`, `time`, `uuid`, `hex`). Nothing is guessed: a line is volatile only if
the policy says so. Where it stands is not looked at here. Matching is linear in the line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

from proxy.core.globs import fits
from proxy.steps.align_prefix.structure import is_role_line

_LONGEST_LINE_CHARS = 200

_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?: ?[AaPp]\.?[Mm]\.?)?"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[A-Z]{3,4}|[+-]\d{2}:?\d{2}))?"
_MONTH = (
    r"(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}|\d{4}年\d{1,2}月\d{1,2}日"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}(?:st|nd|rd|th|\.)? {_MONTH},? \d{{4}})"
)
_WEEKDAY = r"(?i:[ ,(]{0,2}(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\)?)?"
_END = r"[\s.,;:!)\]\"'*_`。！]*$"

# The name stands for a line that ends so: a date in the middle of a sentence belongs to that sentence.
_DATE_LINE = re.compile(rf"(?<!\d){_DAY}(?:(?:T|,? (?:at )?){_TIME}{_ZONE})?{_WEEKDAY}{_END}")
_CLOCK = re.compile(r"\d:\d\d")
_TIME_LINE = re.compile(rf"(?<![\d:]){_TIME}{_ZONE}{_END}")
_UUID = re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f])")
_HEX_LINE = re.compile(rf"(?<![0-9A-Fa-f])[0-9A-Fa-f]{{16,128}}{_END}")
_DIGIT = re.compile(r"\d")

_NAMED = (("date", _DATE_LINE), ("time", _TIME_LINE), ("uuid", _UUID), ("hex", _HEX_LINE))
BUILT_IN = tuple(name for name, _ in _NAMED)
"""The names of lines that a policy need not spell."""


class Change(IntEnum):
    """How often a line changes; greater is more often.

    A date, a name or a session may stay the same for a whole conversation, the time of day does not.
    """

    NEVER = 0
    SOMETIMES = 1
    ALWAYS = 2


def changes_of(lines: Sequence[str], declared: Sequence[str]) -> list[Change]:
    """Return for each line of a text how often it changes."""
    names = frozenset(declared).intersection(BUILT_IN)
    patterns = [pattern for pattern in declared if pattern not in names]
    return [_change(line.strip(), patterns, names) for line in lines]


def _change(line: str, patterns: Sequence[str], names: frozenset[str]) -> Change:
    if not line:
        return Change.NEVER
    if not any(fits(pattern, line) for pattern in patterns) and not _is_named(line, names):
        return Change.NEVER
    return Change.SOMETIMES if _CLOCK.search(line) is None else Change.ALWAYS


def _is_named(line: str, names: frozenset[str]) -> bool:
    if not names or len(line) > _LONGEST_LINE_CHARS or _DIGIT.search(line) is None or is_role_line(line):
        return False
    return any(name in names and pattern.search(line) is not None for name, pattern in _NAMED)
