"""Owns the warnings: policies that are valid but cannot mean what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from proxy.core.decision import Urgency
from proxy.dialects import dialect_for_path
from proxy.dialects.dialect import Dialect
from proxy.dialects.question import TURN_FIELDS
from proxy.dialects.system_text import has_system_text
from proxy.policy.findings import FindingList, Mark
from proxy.policy.format import Located
from proxy.policy.glob import covers
from proxy.policy.model import Match, PolicySet, Route, TokenRange

# A literal path or model name has no use for these; someone who writes them thinks of regular expressions.
_REGEXP = re.compile(r"\.\*|\.\+|^\^|\$$|\\[dws.]|\[[^\]]*\]|\(.*\)|\|")

_NEEDED: Mapping[str, tuple[Callable[[Dialect], Any], str]] = {
    "cap_output": (lambda dialect: dialect.cap_field_names, "output cap"),
    "add_stop": (lambda dialect: dialect.stop_field, "stop sequences"),
    "shape_output": (lambda dialect: has_system_text(dialect.name), "answer to shape"),
    "choose_model": (lambda dialect: dialect.name in TURN_FIELDS, "choice of model"),
}
"""What a step needs of an API shape to have any effect there."""


def report_oddities(policies: PolicySet, routes: Sequence[Located[Route]], findings: FindingList) -> None:
    """Warn about routes and upstreams that can have no effect or another one than meant."""
    for index, located in enumerate(routes):
        route, path = located.value, f"routes.{located.value.name}"
        _report_shadow(routes[:index], located, path, findings)
        _report_patterns(route.match, located.mark, path, findings)
        _report_steps(route, located.mark, path, findings)
        _report_lanes(route, located.mark, path, findings)
        if route.match.needs_body and not route.match.path:
            findings.warn(located.mark, path, "without match.path every request's body has to be read")


def _report_shadow(
    earlier: Iterable[Located[Route]], located: Located[Route], path: str, findings: FindingList
) -> None:
    for other in earlier:
        if _covers(other.value.match, located.value.match):
            where = f"{other.mark.file}:{other.mark.line}"
            problem = f"this route can never match: {other.value.name} ({where}) takes all its requests first"
            findings.warn(located.mark, path, problem)
            return


def _covers(wide: Match, narrow: Match) -> bool:
    """Tell whether every request that `narrow` accepts is accepted by `wide` for certain."""
    narrow_headers = dict(narrow.headers)
    return (
        _patterns_cover(wide.path, narrow.path)
        and _patterns_cover(wide.method, narrow.method)
        and _patterns_cover(wide.model, narrow.model)
        and all(_patterns_cover(patterns, narrow_headers.get(name, ())) for name, patterns in wide.headers)
        and wide.tools in (None, narrow.tools)
        and wide.stream in (None, narrow.stream)
        and _range_covers(wide.tokens, narrow.tokens)
    )


def _patterns_cover(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    if not wide:
        return True
    return bool(narrow) and all(any(covers(each, pattern) for each in wide) for pattern in narrow)


def _range_covers(wide: TokenRange | None, narrow: TokenRange | None) -> bool:
    if wide is None:
        return True
    if narrow is None:
        return False
    low = wide.min is None or (narrow.min is not None and narrow.min >= wide.min)
    high = wide.max is None or (narrow.max is not None and narrow.max <= wide.max)
    return low and high


def _report_patterns(match: Match, mark: Mark, path: str, findings: FindingList) -> None:
    headers = (pattern for _, patterns in match.headers for pattern in patterns)
    for what, patterns in (("path", match.path), ("model", match.model), ("headers", headers)):
        if any(_REGEXP.search(pattern) for pattern in patterns):
            problem = "this looks like a regular expression; patterns know only *, which stands for any text"
            findings.warn(mark, f"{path}.match.{what}", problem)


def _report_steps(route: Route, mark: Mark, path: str, findings: FindingList) -> None:
    for target in route.match.path:
        if "*" in target or not route.steps:
            continue
        dialect = dialect_for_path(target)
        if dialect is None:
            findings.warn(mark, f"{path}.steps", f"no step works on {target}: its API shape is not known")
            continue
        for bound in route.steps:
            needed = _NEEDED.get(bound.step.name)
            if needed is not None and not needed[0](dialect):
                problem = f"{bound.step.name} does nothing on {target}: that API has no {needed[1]}"
                findings.warn(mark, f"{path}.steps", problem)


def _report_lanes(route: Route, mark: Mark, path: str, findings: FindingList) -> None:
    urgencies = {route.urgency.default, *(rule.urgency for rule in route.urgency.rules)}
    by_caller = "x-weir-urgency" in route.allow_caller
    if route.coalesce is not None and urgencies == {Urgency.INTERACTIVE} and not by_caller:
        findings.warn(mark, f"{path}.coalesce", "has no effect: the route's requests are all interactive")
    if Urgency.DEFERRABLE in urgencies and route.batch is None:
        findings.warn(mark, f"{path}.urgency", "nothing is deferred: the route has no batch section")
