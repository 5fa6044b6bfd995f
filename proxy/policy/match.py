"""Owns which route a request takes, and why it did not take the others. Pure: no I/O, no state.

Matching happens in two halves, because a body is only read when a route asks about it: `candidates` looks at
the head alone, `pick` then decides among the candidates with the body's facts. `explain` evaluates the very
same conditions one by one, so that what it reports is what happens.

Reasons never contain a header's value: a condition may well be about a credential.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from proxy.policy.base_paths import BasePaths
from proxy.policy.conditions import BodyCondition, HeadConditions, RequestFacts, body_conditions
from proxy.policy.glob import Accepts
from proxy.policy.model import Match, PolicySet, Route

__all__ = ["HeaderLookup", "Lost", "RequestFacts", "RouteTable"]

HeaderLookup = Callable[[str], str | None]
"""A header's value by its lower-case name; `None` when the request does not have it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A route that did not take the request, and the first of its conditions that failed."""

    route: Route
    reason: str


@dataclass(frozen=True, slots=True)
class _Test:
    """A compiled `Match`."""

    head: HeadConditions
    body: tuple[BodyCondition, ...]

    def loss(
        self,
        method: str,
        path: str,
        names: tuple[str, ...],
        header: HeaderLookup,
        facts: RequestFacts | None,
    ) -> str | None:
        """Return why the match fails, or `None` if it holds."""
        reason = self.head.loss(method, path, names, header)
        if reason is not None or not self.body:
            return reason
        if facts is None:
            return "the body was not read"
        failed = _failed(self.body, facts)
        return failed.reason(facts) if failed is not None else None


@dataclass(frozen=True, slots=True)
class _Gate:
    """What is left to ask about a route's head. `path` is `None` where the path is known to fit."""

    route: Route
    path: Accepts | None
    method: Accepts | None
    headers: tuple[tuple[str, Accepts], ...]
    final: bool


_Gates = tuple[_Gate, ...]


@dataclass(frozen=True, slots=True)
class _Settled:
    """The routes of a path about which there is nothing left to ask."""

    routes: tuple[Route, ...]


class RouteTable:
    """The compiled routes of one policy set; built once per load, shared by all requests."""

    __slots__ = ("_body", "_by_path", "_gates", "_open_gates", "_rules", "_tests", "bases")

    def __init__(self, policies: PolicySet) -> None:
        tests = tuple((route, _compile(route.match)) for route in policies.routes)
        self.bases = BasePaths(policies)
        self._tests = tests
        self._body = {id(route): test.body for route, test in tests}
        gates = self._gates = tuple(_gate(route, test) for route, test in tests)
        exact = {path.lower() for route, _ in tests for path in route.match.path if "*" not in path}
        self._by_path = {path: _gates_of(self.bases.names(path), gates) for path in exact}
        # A path that no route spells out can only be met by a route with a glob or without a path.
        self._open_gates = tuple(gate for gate in gates if _is_open(gate.route.match))
        self._rules = {
            rule.match: _compile(rule.match) for route in policies.routes for rule in route.urgency.rules
        }

    def candidates(self, method: str, path: str, header: HeaderLookup) -> tuple[Route, ...]:
        """Return the routes whose head conditions all hold, in order.

        `path` is without its query; its case does not count, and one below an upstream's base path has its
        name below `/v1`, too. The tuple ends with the first route that asks nothing about the body: no later
        one can win. Empty means that the request passes untouched.
        """
        path = path.lower()
        gates = self._by_path.get(path)
        if gates is None:
            names = self.bases.names(path)
            gates = self._open_gates if len(names) == 1 else _gates_of(names, self._gates)
        if isinstance(gates, _Settled):
            return gates.routes
        found: list[Route] = []
        asked: str | None = None
        value: str | None = None
        for gate in gates:
            if gate.path is not None and not gate.path(path):
                continue
            if gate.method is not None and not gate.method(method):
                continue
            for name, accepts in gate.headers:
                if name != asked:
                    asked, value = name, header(name)
                if value is None or not accepts(value):
                    break
            else:
                found.append(gate.route)
                if gate.final:
                    break
        return tuple(found)

    def pick(self, candidates: tuple[Route, ...], facts: RequestFacts | None) -> Route | None:
        """Return the first candidate whose body conditions hold too.

        `facts` is `None` for a body that was not read or not understood: then only routes that ask nothing
        about the body can win. The candidates must come from this table.
        """
        for route in candidates:
            conditions = self._body[id(route)]
            if not conditions or (facts is not None and _failed(conditions, facts) is None):
                return route
        return None

    def explain(
        self, method: str, path: str, header: HeaderLookup, facts: RequestFacts | None
    ) -> tuple[Route | None, tuple[Lost, ...]]:
        """Return the route that `pick` would return, and why each route before it lost."""
        lost: list[Lost] = []
        names = self.bases.names(path.lower())
        for route, test in self._tests:
            reason = test.loss(method, path, names, header, facts)
            if reason is None:
                return route, tuple(lost)
            lost.append(Lost(route, reason))
        return None, tuple(lost)

    def holds(
        self, match: Match, method: str, path: str, header: HeaderLookup, facts: RequestFacts | None
    ) -> bool:
        """Tell whether the match of an urgency rule of this table's routes holds for a request."""
        names = self.bases.names(path.lower())
        return self._rules[match].loss(method, path, names, header, facts) is None


def _gate(route: Route, test: _Test) -> _Gate:
    return _Gate(route, test.head.path, test.head.method, test.head.headers, not test.body)


def _is_open(match: Match) -> bool:
    return not match.path or any("*" in path for path in match.path)


def _gates_of(names: tuple[str, ...], gates: _Gates) -> _Gates | _Settled:
    """Return the gates that fit a path of these names, settled if up to a final one they ask nothing more."""
    fitting = tuple(
        replace(gate, path=None) for gate in gates if gate.path is None or any(map(gate.path, names))
    )
    for index, gate in enumerate(fitting):
        if gate.method is not None or gate.headers:
            return fitting
        if gate.final:
            fitting = fitting[: index + 1]
            break
    return _Settled(tuple(gate.route for gate in fitting))


def _compile(match: Match) -> _Test:
    return _Test(HeadConditions.of(match), body_conditions(match))


def _failed(conditions: tuple[BodyCondition, ...], facts: RequestFacts) -> BodyCondition | None:
    for condition in conditions:
        if not condition.holds(facts):
            return condition
    return None
