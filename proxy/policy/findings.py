"""Owns what is said about a faulty policy: findings with positions, and the error that carries all of them.

A finding never quotes a value that may be a secret: it names the key path.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Whether a policy set with this finding can be used."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; `line` and `column` count from 1."""

    file: str
    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (or odd) at one place; `path` is a key path such as `routes[0].match.model`.

    `hint` is a suggestion that completes the problem, usually "did you mean …?".
    """

    file: str
    line: int
    column: int
    path: str
    problem: str
    hint: str = ""
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """Render `file:line:column: path: problem (hint)`, warnings marked as such."""
        marker = "warning: " if self.severity is Severity.WARNING else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.file}:{self.line}:{self.column}: {self.path or 'policy'}: {marker}{self.problem}{hint}"


class PolicyErrors(Exception):
    """A policy set cannot be used. `findings` holds every error, in reading order, warnings included."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = tuple(findings)


class Broken(Exception):
    """A value could not be read, and what is wrong with it has been reported already."""


class FindingList:
    """Collects findings while a set is read, so that one run reports everything."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def error(self, mark: Mark, path: str, problem: str, hint: str = "") -> None:
        """Add an error."""
        self._found.append(Finding(mark.file, mark.line, mark.column, path, problem, hint))

    def warn(self, mark: Mark, path: str, problem: str, hint: str = "") -> None:
        """Add a warning."""
        finding = Finding(mark.file, mark.line, mark.column, path, problem, hint, Severity.WARNING)
        self._found.append(finding)

    @property
    def has_errors(self) -> bool:
        """Whether anything found so far makes the set unusable."""
        return any(finding.severity is Severity.ERROR for finding in self._found)

    def in_order(self) -> tuple[Finding, ...]:
        """Return everything found so far: files as they were read, each from top to bottom."""
        files = list(dict.fromkeys(finding.file for finding in self._found))
        return tuple(sorted(self._found, key=lambda each: (files.index(each.file), each.line, each.column)))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "did you mean …?" for the nearest of `known`, or nothing if none is near."""
    # Case is the commonest of misspellings, and no likeness to difflib.
    by_lower = {each.lower(): each for each in known}
    near = [by_lower[each] for each in difflib.get_close_matches(word.lower(), list(by_lower), n=1)]
    return f"did you mean {near[0]}?" if near else ""
