"""Owns the warnings: policies that are valid but cannot mean what they say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from proxy.core.decision import Strategy, Urgency
from proxy.dialects import dialect_for_path
from proxy.dialects.conversation import conversation_fields
from proxy.dialects.dialect import Dialect
from proxy.dialects.question import TURN_FIELDS
from proxy.dialects.system_text import has_system_text
from proxy.policy.batch_api import SERVED_BY_DEFAULT
from proxy.policy.findings import FindingList, Mark
from proxy.policy.format import Located
from proxy.policy.glob import covers
from proxy.policy.lane import SHORTEST_HOLD_SECONDS
from proxy.policy.model import CoalescePolicy, Match, PolicySet, Route, TokenRange
from proxy.policy.step_oddities import report_step_oddities
from proxy.policy.values import looks_like_regexp
from proxy.steps.add_stop import Config as AddStop

_MOST_STOPS = 4
"""What the chat and completions APIs take; a route without a known path is judged by it."""

_ESCAPE = re.compile(r"\\[nrt]")

_SOON_ONLY = frozenset({Strategy.WARM, Strategy.PACE})
"""What the coalesce lane does not do to interactive requests."""

_RESPONSES = "/v1/responses"
"""The one API whose requests may be promised an answer by their body alone (`background`)."""

_LONGEST_WAIT_SECONDS = 5.0
"""Nobody who waits longer than this for a pool to fill does so on purpose."""

_NEEDED: Mapping[str, tuple[Callable[[Dialect], Any], str]] = {
    "cap_output": (lambda dialect: dialect.cap_field_names, "output cap"),
    "add_stop": (lambda dialect: dialect.stop_field, "stop sequences"),
    "shape_output": (lambda dialect: has_system_text(dialect.name), "answer to shape"),
    "choose_model": (lambda dialect: dialect.name in TURN_FIELDS, "choice of model"),
    "trim_history": (conversation_fields, "conversation"),
    "dedupe_context": (lambda dialect: dialect.name in TURN_FIELDS, "passages to read"),
    "align_prefix": (lambda dialect: has_system_text(dialect.name), "system text"),
}
"""What a step needs of an API shape to have any effect there."""


def report_oddities(policies: PolicySet, routes: Sequence[Located[Route]], findings: FindingList) -> None:
    """Warn about routes and upstreams that can have no effect or another one than meant."""
    for index, located in enumerate(routes):
        route, path = located.value, f"routes.{located.value.name}"
        _report_shadow(routes[:index], located, path, findings)
        _report_patterns(route.match, located.mark, path, findings)
        _report_steps(route, located.mark, path, findings)
        report_step_oddities(route, located.mark, path, findings)
        _report_twice(route, located.mark, path, findings)
        _report_stops(route, located.mark, path, findings)
        _report_lanes(route, located.mark, path, findings)
        _report_tiers(policies, route, located.mark, path, findings)
        _report_webhook(route, located.mark, path, findings)
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
        _patterns_cover(_lowered(wide.path), _lowered(narrow.path))
        and _patterns_cover(wide.method, narrow.method)
        and _patterns_cover(wide.model, narrow.model)
        and all(_patterns_cover(patterns, narrow_headers.get(name, ())) for name, patterns in wide.headers)
        and wide.tools in (None, narrow.tools)
        and wide.stream in (None, narrow.stream)
        and _range_covers(wide.tokens, narrow.tokens)
    )


def _lowered(patterns: Sequence[str]) -> list[str]:
    """Return patterns of paths as they are matched."""
    return [pattern.lower() for pattern in patterns]


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
        if any(looks_like_regexp(pattern) for pattern in patterns):
            problem = (
                "this looks like a regular expression; "
                "patterns are globs that know only *, which stands for any text"
            )
            findings.warn(mark, f"{path}.match.{what}", problem)


def _report_twice(route: Route, mark: Mark, path: str, findings: FindingList) -> None:
    for name, count in Counter(bound.step.name for bound in route.steps).items():
        if count > 1:
            findings.warn(mark, f"{path}.steps", f"{name} stands here {count} times; each of them is applied")


def _report_stops(route: Route, mark: Mark, path: str, findings: FindingList) -> None:
    dialects = [dialect_for_path(pattern) for pattern in route.match.path]
    limits = [dialect.stop_limit for dialect in dialects if dialect is not None and dialect.stop_limit]
    for bound in route.steps:
        if not isinstance(bound.config, AddStop):
            continue
        sequences = bound.config.sequences
        limit = bound.config.limit or max(limits, default=_MOST_STOPS)
        if len(sequences) > limit:
            problem = f"add_stop has {len(sequences)} sequences, of which at most {limit} are ever sent"
            findings.warn(mark, f"{path}.steps", problem)
        if any(_ESCAPE.search(sequence) for sequence in sequences):
            problem = "a stop sequence has a backslash and a letter in it, not a line break or a tab"
            findings.warn(mark, f"{path}.steps", problem, 'write "\\n" in double quotes')


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


def _report_pool(pool: CoalescePolicy, is_urgent: bool, mark: Mark, path: str, findings: FindingList) -> None:
    strategies = frozenset(pool.strategies)
    if not strategies:
        findings.warn(mark, f"{path}.strategies", "nothing is carried together: no strategy may be used")
    elif is_urgent and strategies <= _SOON_ONLY:
        problem = "has no effect: the route's requests are all interactive and never made to wait like that"
        findings.warn(mark, path, problem)
    elif strategies == {Strategy.PACE} and not pool.max_in_flight:
        problem = "has no effect: pace does nothing without max_in_flight"
        findings.warn(mark, f"{path}.strategies", problem)
    elif pool.max_in_flight and Strategy.PACE not in strategies:
        findings.warn(mark, f"{path}.max_in_flight", "has no effect: strategies leaves pace out")
    if pool.max_wait_seconds > _LONGEST_WAIT_SECONDS:
        problem = f"a request may wait {pool.max_wait_seconds:g}s for others before it is sent"
        findings.warn(mark, f"{path}.max_wait", problem, "the default is 20ms")


def _report_lanes(route: Route, mark: Mark, path: str, findings: FindingList) -> None:
    urgencies = {route.urgency.default, *(rule.urgency for rule in route.urgency.rules)}
    by_caller = "x-weir-urgency" in route.allow_caller
    is_urgent = urgencies == {Urgency.INTERACTIVE} and not by_caller
    if route.coalesce is not None:
        _report_pool(route.coalesce, is_urgent, mark, f"{path}.coalesce", findings)
    if route.batch is not None:
        if set(route.batch.upstream_tiers) == {"direct"}:
            problem = "nothing is deferred: direct is no cheaper tier"
            findings.warn(mark, f"{path}.batch.upstream_tiers", problem)
        deadline_seconds = route.urgency.deadline_seconds
        if deadline_seconds is not None and deadline_seconds < SHORTEST_HOLD_SECONDS:
            problem = f"nothing is deferred: the deadline is below {SHORTEST_HOLD_SECONDS:.0f}s"
            findings.warn(mark, f"{path}.urgency", problem)
    if Urgency.DEFERRABLE in urgencies and route.batch is None:
        findings.warn(mark, f"{path}.urgency", "nothing is deferred: the route has no batch section")


def _report_tiers(policies: PolicySet, route: Route, mark: Mark, path: str, findings: FindingList) -> None:
    """Warn of a `batch` section in front of a server of models, where nothing is cheaper later.

    Whoever wants that server to work off batches needs no such section, and gets no batch by it.
    """
    upstream = policies.upstreams.get(route.upstream or policies.default_upstream)
    is_elsewhere = any(bound.step.upstreams(bound.config) for bound in route.steps)
    if route.batch is None or upstream is None or is_elsewhere or upstream.provider not in SERVED_BY_DEFAULT:
        return
    problem = f"nothing is deferred: {upstream.provider.value} has no cheaper tier, unless --prices names one"
    hint = "its own /v1/batches need no such section" if upstream.batch_api is not None else ""
    findings.warn(mark, f"{path}.batch", problem, hint)


def _report_webhook(route: Route, mark: Mark, path: str, findings: FindingList) -> None:
    """Warn of a webhook that has nothing to hear: held callers hear their answers themselves."""
    if route.batch is None or not route.batch.webhook or "prefer" in route.allow_caller:
        return
    if _patterns_cover(_lowered(route.match.path), [_RESPONSES]):
        return
    problem = "nobody is told: the route's requests are all held, since callers may not ask for tickets"
    findings.warn(mark, f"{path}.batch.webhook", problem, "write allow_caller: [prefer]")
