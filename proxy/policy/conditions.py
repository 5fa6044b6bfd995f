"""Owns the single conditions of a `match`: each tells whether it holds and, if not, why, in a few words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from proxy.policy.glob import Accepts, compile_patterns
from proxy.policy.model import Match, TokenRange


class RequestFacts(msgspec.Struct, frozen=True):
    """What the body says that a match may ask for.

    `model` is `None` when it is missing or no string; `tools` is whether any tool is offered; `tokens`
    counts the prompt and is called only when every other condition of a route has held.
    """

    model: str | None
    tools: bool
    stream: bool
    tokens: Callable[[], int]


@dataclass(frozen=True, slots=True)
class BodyCondition:
    """One condition about the body. `reason` is only asked for where `holds` said no."""

    holds: Callable[[RequestFacts], bool]
    reason: Callable[[RequestFacts], str]


@dataclass(frozen=True, slots=True)
class HeadConditions:
    """The conditions that need no body, compiled; `None` and empty are 'not given'.

    `path` takes paths in lower case: some servers do not tell cases apart, and no spelling may dodge a route.
    """

    path: Accepts | None
    method: Accepts | None
    headers: tuple[tuple[str, Accepts], ...]
    match: Match

    @staticmethod
    def of(match: Match) -> HeadConditions:
        """Compile the head half of a match."""
        return HeadConditions(
            path=compile_patterns([pattern.lower() for pattern in match.path]) if match.path else None,
            method=compile_patterns(match.method) if match.method else None,
            headers=tuple((name, compile_patterns(patterns)) for name, patterns in match.headers),
            match=match,
        )

    def loss(
        self, method: str, path: str, names: tuple[str, ...], header: Callable[[str], str | None]
    ) -> str | None:
        """Return why a head fails, or `None` if every condition holds. `names` are those of `path`."""
        if self.path is not None and not any(map(self.path, names)):
            return f"path {path} is not {_any_of(self.match.path)}"
        if self.method is not None and not self.method(method):
            return f"method {method} is not {_any_of(self.match.method)}"
        for name, accepts in self.headers:
            value = header(name)
            if value is None:
                return f"header {name} is absent"
            if not accepts(value):
                return f"header {name} has another value"
        return None


def body_conditions(match: Match) -> tuple[BodyCondition, ...]:
    """Compile the body half of a match, the costly token count last."""
    conditions: list[BodyCondition] = []
    if match.model:
        conditions.append(_model(match.model))
    if match.tools is not None:
        conditions.append(_tools(match.tools))
    if match.stream is not None:
        conditions.append(_stream(match.stream))
    if match.tokens is not None:
        conditions.append(_tokens(match.tokens))
    return tuple(conditions)


def _model(patterns: tuple[str, ...]) -> BodyCondition:
    accepts = compile_patterns(patterns)
    return BodyCondition(
        lambda facts: facts.model is not None and accepts(facts.model),
        lambda facts: (
            "the body names no model"
            if facts.model is None
            else f"model {facts.model} is not {_any_of(patterns)}"
        ),
    )


def _tools(wanted: bool) -> BodyCondition:
    reason = "no tools are offered" if wanted else "tools are offered"
    return BodyCondition(lambda facts: facts.tools is wanted, lambda facts: reason)


def _stream(wanted: bool) -> BodyCondition:
    reason = "no stream is requested" if wanted else "a stream is requested"
    return BodyCondition(lambda facts: facts.stream is wanted, lambda facts: reason)


def _tokens(bounds: TokenRange) -> BodyCondition:
    least = bounds.min if bounds.min is not None else 0
    most = bounds.max if bounds.max is not None else math.inf

    def reason(facts: RequestFacts) -> str:
        tokens = facts.tokens()
        return f"{tokens} tokens are {f'fewer than {least}' if tokens < least else f'more than {most}'}"

    return BodyCondition(lambda facts: least <= facts.tokens() <= most, reason)


def _any_of(patterns: tuple[str, ...]) -> str:
    return " or ".join(patterns)
