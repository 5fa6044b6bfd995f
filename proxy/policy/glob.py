"""Owns what policies do with patterns: compiling several into one test, and telling which covers which.

How one pattern fits one value is `proxy.core.globs`: a left-to-right search without regular expressions,
which cannot backtrack, whatever a caller sends (a policy must never be able to stop a worker).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from proxy.core.globs import fits

Accepts = Callable[[str], bool]
"""Whether a value satisfies a compiled condition."""


def covers(wide: str, narrow: str) -> bool:
    """Tell whether pattern `wide` accepts everything that pattern `narrow` accepts.

    No literal piece of a pattern can contain `*`, so a `*` of `narrow`, read as a character, is only ever
    swallowed by a `*` of `wide`: matching one pattern against the other as a value decides containment.
    """
    return fits(wide, narrow)


def compile_patterns(patterns: Iterable[str]) -> Accepts:
    """Return a test for "any of `patterns`", the cheapest that the patterns allow."""
    every = tuple(patterns)
    exact = frozenset(pattern for pattern in every if "*" not in pattern)
    starred = [pattern for pattern in every if "*" in pattern]
    prefixes = tuple(pattern[:-1] for pattern in starred if pattern.index("*") == len(pattern) - 1)
    others = tuple(partial(fits, each) for each in starred if each.index("*") < len(each) - 1)
    if others:
        return lambda value: (
            value in exact or value.startswith(prefixes) or any(accepts(value) for accepts in others)
        )
    if exact and prefixes:
        return lambda value: value in exact or value.startswith(prefixes)
    if prefixes:
        return lambda value: value.startswith(prefixes)
    return every[0].__eq__ if len(every) == 1 else exact.__contains__
