"""Which faults a request gets: its own `x-sim-…` headers over the first scenario rule that hits.

It owns the reading of the headers and the counting of rules. What a fault does is done where the answer is
sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import cast, get_type_hints
from urllib.parse import unquote

from proxy.sim.errors import ApiError
from proxy.sim.scenario import FaultMatch, FaultRule, Faults
from proxy.sim.text import seeded

__all__ = ["HEADER_PREFIX", "FaultBook", "Faults", "over", "read_headers", "read_metadata"]

HEADER_PREFIX = "x-sim-"
_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")


def read_headers(headers: Iterable[tuple[str, str]]) -> Faults:
    """Return the faults that a request's headers ask for.

    Raises ApiError (400) for an unknown `x-sim-…` header or a value that does not fit: a misspelt fault must
    not pass for the absence of one.
    """
    hints = get_type_hints(Faults)
    known = {HEADER_PREFIX + item.name.replace("_", "-"): item for item in fields(Faults)}
    given: dict[str, object] = {}
    for name, value in headers:
        lower = name.lower()
        if not lower.startswith(HEADER_PREFIX):
            continue
        item = known.get(lower)
        if item is None:
            raise _refusal(lower, f"unknown; known are {', '.join(known)}")
        kind = next(arg for arg in hints[item.name].__args__ if arg is not type(None))
        number = _convert(kind, value.strip(), lower)
        _check_range(number, item.metadata, lower)
        given[item.name] = number
    return Faults(**given)  # type: ignore[arg-type]  # each value was converted to its field's own type


def read_metadata(metadata: Mapping[str, str]) -> Faults:
    """Return what a batch's own metadata ask for: `sim_batch_…` keys, named as the headers are.

    Raises ApiError (400) as `read_headers` does. Other keys are the caller's.
    """
    wanted = {
        name.replace("_", "-"): value for name, value in metadata.items() if name.startswith("sim_batch_")
    }
    return read_headers((f"x-{name}", value) for name, value in wanted.items())


def _convert(kind: type, value: str, name: str) -> object:
    if kind is str:
        return unquote(value)
    if kind is bool:
        if value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        raise _refusal(name, f"expected 1 or 0, not '{value}'")
    try:
        number = kind(value)
    except ValueError:
        raise _refusal(name, f"expected a number, not '{value}'") from None
    if not math.isfinite(number):
        raise _refusal(name, "must be finite")
    return cast("float", number)


def _check_range(value: object, metadata: Mapping[str, float | None], name: str) -> None:
    low, high = metadata.get("low"), metadata.get("high")
    if isinstance(value, int | float):
        if low is not None and not value >= low:
            raise _refusal(name, f"must be at least {low:g}")
        if high is not None and not value <= high:
            raise _refusal(name, f"must be at most {high:g}")


def _refusal(name: str, problem: str) -> ApiError:
    return ApiError(400, f"Simulator header {name}: {problem}.", param=name, code="bad_sim_header")


class FaultBook:
    """The scenario's rules and how often each has matched. Not shared between providers."""

    def __init__(self, rules: tuple[FaultRule, ...], seed: int) -> None:
        self._rules = rules
        self._seed = seed
        self._matches = [0] * len(rules)

    def pick(self, path: str, model: str, headers: Mapping[str, str], method: str = "POST") -> Faults:
        """Return what the first rule that hits this request does, no faults if none does."""
        for index, rule in enumerate(self._rules):
            if rule.match.method is not None and rule.match.method.upper() != method:
                continue
            if not _matches(rule.match, path, model, headers):
                continue
            self._matches[index] += 1
            if self._hits(index, rule):
                return rule.do
        return Faults()

    def _hits(self, index: int, rule: FaultRule) -> bool:
        count = self._matches[index] - rule.skip
        if count <= 0:
            return False
        if rule.first is not None and count > rule.first:
            return False
        if count % rule.every:
            return False
        return seeded("fault", str(self._seed), str(index), str(count)).random() < rule.chance


def _matches(match: FaultMatch, path: str, model: str, headers: Mapping[str, str]) -> bool:
    if match.path is not None and not fnmatchcase(path, match.path):
        return False
    if match.model is not None and not fnmatchcase(model, match.model):
        return False
    return all(
        name in headers and fnmatchcase(headers[name], pattern) for name, pattern in match.headers.items()
    )


def over(wanted: Faults, base: Faults) -> Faults:
    """Return `base` with everything that `wanted` says."""
    said = {item.name: getattr(wanted, item.name) for item in fields(Faults)}
    return replace(base, **{name: value for name, value in said.items() if value is not None})
