"""Patterns in which `*` stands for any run of characters and nothing else is special; no backtracking."""

from __future__ import annotations


def fits(pattern: str, value: str) -> bool:
    """Tell whether `value` fits `pattern` as a whole, case-sensitively, in linear time."""
    head, *rest = pattern.split("*")
    if not rest:
        return value == head
    tail = rest.pop()
    if len(value) < len(head) + len(tail) or not value.startswith(head) or not value.endswith(tail):
        return False
    position, end = len(head), len(value) - len(tail)
    for piece in rest:
        found = value.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True
