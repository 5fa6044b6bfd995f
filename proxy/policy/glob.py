"""Owns patterns: text in which `*` stands for any run of characters, and nothing else is special.

There are no regular expressions here on purpose: matching is a left-to-right search for the literal pieces
and cannot backtrack, whatever a caller sends (a policy must never be able to stop a worker).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Accepts = Callable[[str], bool]
"""Whether a value satisfies a compiled condition."""


class Glob:
    """One compiled pattern. Case-sensitive, anchored at both ends."""

    __slots__ = ("_head", "_middle", "_shortest", "_tail", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._head, *rest = pattern.split("*")
        self._tail = rest[-1] if rest else None
        self._middle = tuple(piece for piece in rest[:-1] if piece)
        self._shortest = len(pattern.replace("*", ""))

    def accepts(self, value: str) -> bool:
        """Tell whether `value` fits the pattern, in time linear in its length."""
        tail = self._tail
        if tail is None:
            return value == self._head
        if len(value) < self._shortest or not value.startswith(self._head) or not value.endswith(tail):
            return False
        at, end = len(self._head), len(value) - len(tail)
        for piece in self._middle:
            found = value.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True

    def covers(self, other: str) -> bool:
        """Tell whether everything that pattern `other` accepts is accepted here too.

        No literal piece of this pattern can contain `*`, so a `*` of `other`, read as a character, is only
        ever swallowed by a `*` of this one: matching the pattern as if it were a value decides containment.
        """
        return self.accepts(other)


def compile_patterns(patterns: Iterable[str]) -> Accepts:
    """Return a test for "any of `patterns`", the cheapest that the patterns allow."""
    every = tuple(patterns)
    exact = frozenset(pattern for pattern in every if "*" not in pattern)
    starred = [pattern for pattern in every if "*" in pattern]
    prefixes = tuple(pattern[:-1] for pattern in starred if pattern.index("*") == len(pattern) - 1)
    globs = tuple(Glob(pattern).accepts for pattern in starred if pattern.index("*") < len(pattern) - 1)
    if globs:
        return lambda value: (
            value in exact or value.startswith(prefixes) or any(accepts(value) for accepts in globs)
        )
    if exact and prefixes:
        return lambda value: value in exact or value.startswith(prefixes)
    if prefixes:
        return lambda value: value.startswith(prefixes)
    return every[0].__eq__ if len(every) == 1 else exact.__contains__
