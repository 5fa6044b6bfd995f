"""Owns the warnings about steps that are valid but do less than meant: their order, parameters and bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from proxy.dialects import dialect_for_path
from proxy.dialects.chat import CHAT
from proxy.dialects.dialect import Dialect
from proxy.policy.findings import FindingList, Mark
from proxy.policy.model import Route
from proxy.steps.cap_output import Config as CapOutput
from proxy.steps.dedupe_context import Config as DedupeContext
from proxy.steps.set_params import NOT_GIVEN
from proxy.steps.set_params import Config as SetParams
from proxy.steps.set_params import Rule as ParamRule

# What changes the beginning of a prompt after `align_prefix` has made it like others.
_CHANGES_PREFIX = ("trim_history", "dedupe_context", "shape_output")

# Parameters of one API by their names in the other, where there is one.
_CHAT_ONLY: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "stop": "",
    "n": "",
    "seed": "",
    "frequency_penalty": "",
    "presence_penalty": "",
    "logit_bias": "",
    "logprobs": "",
    "functions": "tools",
    "function_call": "tool_choice",
    "modalities": "",
    "prediction": "",
    "web_search_options": "tools",
}
_RESPONSES_ONLY: Mapping[str, str] = {
    "max_output_tokens": "max_completion_tokens",
    "text": "response_format",
    "instructions": "",
    "include": "",
    "truncation": "",
    "max_tool_calls": "",
}
_FOREIGN = {"chat": (_RESPONSES_ONLY, "Responses"), "responses": (_CHAT_ONLY, "chat")}


def report_step_oddities(route: Route, mark: Mark, path: str, findings: FindingList) -> None:
    """Warn about steps of a route that other steps or APIs undo."""
    problems = dict.fromkeys((*_order(route), *_foreign(route), *_dodged(route), *_below_minimum(route)))
    for problem, hint in problems:
        findings.warn(mark, f"{path}.steps", problem, hint)


def _dialects(route: Route) -> list[Dialect]:
    found = (dialect_for_path(pattern.lower()) for pattern in route.match.path)
    return [dialect for dialect in found if dialect is not None]


def _order(route: Route) -> Iterator[tuple[str, str]]:
    names = [bound.step.name for bound in route.steps]
    for index, bound in enumerate(route.steps):
        name, later = bound.step.name, names[index + 1 :]
        is_across = isinstance(bound.config, DedupeContext) and bound.config.scope == "all"
        if is_across and "trim_history" in later:
            yield "dedupe_context takes what trim_history drops after it for seen: put trim_history first", ""
        if name == "align_prefix":
            for other in _CHANGES_PREFIX:
                if other in later:
                    yield f"{other} changes the prompt after align_prefix: put align_prefix last", ""
        if name == "choose_model" and any(other != name for other in names[:index]):
            yield "steps before choose_model do not see the model that it chooses: put choose_model first", ""


def _foreign(route: Route) -> Iterator[tuple[str, str]]:
    for dialect in _dialects(route):
        names, whose = _FOREIGN.get(dialect.name, ({}, ""))
        for dotted, rule in _rules(route):
            key = dotted.partition(".")[0]
            adds = any(value is not NOT_GIVEN for value in (rule.default, rule.set, rule.add))
            if key in names and (adds or rule.max is not NOT_GIVEN or rule.min is not NOT_GIVEN):
                hint = f"{names[key]} is its name there" if names[key] else ""
                yield f"{key} is a parameter of {whose}: {dialect.path} does not have it", hint


def _dodged(route: Route) -> Iterator[tuple[str, str]]:
    """Find bounds on a cap that callers pass by with another cap."""
    bounded = {dotted for dotted, rule in _rules(route) if rule.max is not NOT_GIVEN}
    if any(isinstance(bound.config, CapOutput) and bound.config.max is not None for bound in route.steps):
        return
    for dialect in _dialects(route) or [CHAT]:
        caps = dialect.cap_field_names
        for name in caps:
            others = [other for other in caps if other not in bounded]
            if name in bounded and others:
                yield f"{name} is bounded, but {others[0]} caps an answer, too", "use cap_output: {max: …}"


def _below_minimum(route: Route) -> Iterator[tuple[str, str]]:
    for dialect in _dialects(route):
        least = dialect.least_cap_tokens
        for bound in route.steps:
            if not isinstance(bound.config, CapOutput):
                continue
            for word in ("default", "max"):
                value = getattr(bound.config, word)
                if value is not None and value < least:
                    yield f"cap_output.{word} is below {least}, the least that {dialect.path} takes", ""


def _rules(route: Route) -> Iterator[tuple[str, ParamRule]]:
    for bound in route.steps:
        if isinstance(bound.config, SetParams):
            yield from bound.config.rules.items()
