"""What changed in a body, in lines that a person can read: one JSON member a line, long ones cut short.

For reading only: numbers may be spelled otherwise than in the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

from proxy.core.json_values import decode

WIDTH = 160
_AROUND = 40
_CONTEXT_LINES = 2
_UNREADABLE = object()


def body_diff(before: bytes, after: bytes) -> list[str]:
    """Return the changed lines with a little context, each behind `-`, `+` or a space; empty if none did."""
    old, new = _lines(before), _lines(after)
    diff: list[str] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT_LINES):
        if diff:
            diff.append("  ...")
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                diff += ["  " + _cut(line) for line in old[old_start:old_end]]
            else:
                diff += _changed(old[old_start:old_end], new[new_start:new_end])
    return diff


def _lines(body: bytes) -> list[str]:
    value = decode(body, _UNREADABLE)
    if value is _UNREADABLE:
        text = body.decode("utf-8", "replace")
    else:
        text = json.dumps(value, ensure_ascii=False, indent=2)
    # A lone surrogate cannot be printed.
    return text.encode("utf-8", "backslashreplace").decode().splitlines()


def _changed(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    if len(old) != len(new):
        yield from ("- " + _cut(line) for line in old)
        yield from ("+ " + _cut(line) for line in new)
        return
    for before, after in zip_longest(old, new, fillvalue=""):
        start = _common(before, after)
        end = _common(before[start:][::-1], after[start:][::-1])
        yield "- " + _around(before, start, len(before) - end)
        yield "+ " + _around(after, start, len(after) - end)


def _common(one: str, other: str) -> int:
    """Return the length of the common beginning."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def _around(line: str, start: int, end: int) -> str:
    """Return a line whose change is at `start` to `end`, without what is far from it."""
    if len(line) <= WIDTH:
        return line
    head = line[:start] if start <= 2 * _AROUND else f"{line[:_AROUND]}…{line[start - _AROUND : start]}"
    rest = len(line) - end
    tail = line[end:] if rest <= _AROUND else line[end : end + _AROUND] + "…"
    return head + _cut(line[start:end]) + tail


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}… ({len(text)} characters)"
