"""Owns combining the files of a set: upstreams united, defaults merged, routes in order, names resolved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from proxy.core.decision import Urgency
from proxy.policy.batch_api import served_batch_api
from proxy.policy.findings import FindingList, Mark, did_you_mean
from proxy.policy.fingerprint import version_of
from proxy.policy.format import Located, PolicyFile
from proxy.policy.model import (
    HeaderLevel,
    Match,
    PolicySet,
    Provider,
    Route,
    Upstream,
    UrgencyPolicy,
    Webhook,
)


def assemble(
    files: Sequence[PolicyFile], fallback: Upstream | None, findings: FindingList
) -> tuple[PolicySet, tuple[Located[Route], ...]]:
    """Return the set that the files make, and its routes with their positions.

    `fallback` is the upstream of a set that defines none. Reports whatever does not fit together; then the
    set that is returned must not be used.
    """
    upstreams = _upstreams(files, findings)
    if not upstreams and fallback is not None:
        upstreams = {fallback.name: fallback}
    defaults = _defaults(files, findings)
    default_upstream = _default_upstream(files, defaults, upstreams, findings)
    routes = tuple(_routes(files, defaults, upstreams, findings))
    values = tuple(route.value for route in routes)
    webhooks = _webhooks(files, findings)
    _check_webhooks(files, routes, upstreams, webhooks, findings)
    policies = PolicySet(
        version=version_of(upstreams, default_upstream, values, webhooks),
        upstreams=upstreams,
        default_upstream=default_upstream,
        routes=values,
        default_headers=defaults.get("headers", HeaderLevel.FULL),
        models=frozenset(_models(values)),
        webhooks=webhooks,
    )
    return policies, routes


def _upstreams(files: Sequence[PolicyFile], findings: FindingList) -> dict[str, Upstream]:
    upstreams: dict[str, Upstream] = {}
    seen: dict[str, Mark] = {}
    for file in files:
        for name, located in file.upstreams.items():
            if name in upstreams:
                _given_twice(findings, located.mark, f"upstreams.{name}", f"upstream {name}", seen[name])
                continue
            seen[name] = located.mark
            upstreams[name] = _upstream(name, located, findings)
    return upstreams


def _upstream(name: str, located: Located[dict[str, Any]], findings: FindingList) -> Upstream:
    given = dict(located.value)
    asked: Located[dict[str, Any]] = given.pop("batch_api", Located({}, located.mark))
    provider = given.get("provider", Provider.GENERIC)
    path = f"upstreams.{name}.batch_api"
    served = served_batch_api(provider, asked.value, asked.mark, path, findings)
    return Upstream(name=name, batch_api=served, **given)


def _webhooks(files: Sequence[PolicyFile], findings: FindingList) -> dict[str, Webhook]:
    webhooks: dict[str, Webhook] = {}
    seen: dict[str, Mark] = {}
    for file in files:
        for name, located in file.webhooks.items():
            if name in webhooks:
                _given_twice(findings, located.mark, f"webhooks.{name}", f"webhook {name}", seen[name])
                continue
            seen[name] = located.mark
            webhooks[name] = Webhook(name=name, **located.value)
    return webhooks


def _check_webhooks(
    files: Sequence[PolicyFile],
    routes: Iterable[Located[Route]],
    upstreams: dict[str, Upstream],
    webhooks: dict[str, Webhook],
    findings: FindingList,
) -> None:
    named: list[tuple[str, str, Mark]] = []
    marks = {name: located.mark for file in files for name, located in file.upstreams.items()}
    for name, upstream in upstreams.items():
        if upstream.batch_api is not None and name in marks:
            named.append((upstream.batch_api.webhook, f"upstreams.{name}.batch_api.webhook", marks[name]))
    for route in routes:
        if route.value.batch is not None:
            path = f"routes.{route.value.name}.batch.webhook"
            named.append((route.value.batch.webhook, path, route.mark))
    for webhook, path, mark in named:
        if webhook and webhook not in webhooks:
            findings.error(mark, path, f"unknown webhook {webhook}", did_you_mean(webhook, webhooks))


def _defaults(files: Sequence[PolicyFile], findings: FindingList) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    seen: dict[str, Mark] = {}
    for file in files:
        if file.defaults is None:
            continue
        mark = file.defaults.mark
        for key, value in file.defaults.value.items():
            if key in defaults:
                _given_twice(findings, mark, "defaults", f"default {key}", seen[key])
                continue
            seen[key] = mark
            defaults[key] = value
    return defaults


def _default_upstream(
    files: Sequence[PolicyFile],
    defaults: dict[str, Any],
    upstreams: dict[str, Upstream],
    findings: FindingList,
) -> str:
    named: Located[str] | None = defaults.get("upstream")
    if named is not None:
        _check_upstream(named, "defaults.upstream", upstreams, findings)
        return named.value
    if len(upstreams) == 1:
        return next(iter(upstreams))
    marks = [located.mark for file in files for located in file.upstreams.values()]
    if marks:
        findings.error(
            marks[1], "upstreams", "several upstreams, and defaults.upstream does not say which is used"
        )
    else:
        findings.error(_first_mark(files), "upstreams", "no upstream is defined")
    return ""


def _first_mark(files: Sequence[PolicyFile]) -> Mark:
    return next((route.mark for file in files for route in file.routes), Mark("policy"))


def _routes(
    files: Sequence[PolicyFile],
    defaults: dict[str, Any],
    upstreams: dict[str, Upstream],
    findings: FindingList,
) -> Iterable[Located[Route]]:
    seen: dict[str, Mark] = {}
    inherited = {key: value for key, value in defaults.items() if key != "upstream"}
    for file in files:
        for index, located in enumerate(file.routes):
            given = inherited | located.value
            name = given["name"]
            if name in seen:
                _given_twice(findings, located.mark, f"routes[{index}].name", f"route {name}", seen[name])
            seen.setdefault(name, located.mark)
            upstream: Located[str] | None = given.pop("upstream", None)
            if upstream is not None:
                _check_upstream(upstream, f"routes[{index}].upstream", upstreams, findings)
            for bound in given.get("steps", ()):
                for target in sorted(bound.step.upstreams(bound.config)):
                    place = f"routes[{index}].steps.{bound.step.name}"
                    _check_upstream(Located(target, located.mark), place, upstreams, findings)
            yield Located(_route(given, upstream.value if upstream else None), located.mark)


def _route(given: dict[str, Any], upstream: str | None) -> Route:
    urgency: dict[str, Any] = given.pop("urgency", {})
    if "coalesce" in given:
        # Interactive requests are never pooled: a route that asks for a pool means `soon`.
        urgency = {"default": Urgency.SOON} | urgency
    allow_caller = frozenset(given.pop("allow_caller", ()))
    return Route(upstream=upstream, urgency=UrgencyPolicy(**urgency), allow_caller=allow_caller, **given)


def _check_upstream(
    named: Located[str], path: str, upstreams: dict[str, Upstream], findings: FindingList
) -> None:
    if named.value not in upstreams:
        hint = did_you_mean(named.value, upstreams)
        findings.error(named.mark, path, f"unknown upstream {named.value}", hint)


def _given_twice(findings: FindingList, mark: Mark, path: str, what: str, first: Mark) -> None:
    findings.error(mark, path, f"{what} is given twice (first in {first.file}:{first.line})")


def _models(routes: Iterable[Route]) -> Iterable[str]:
    for route in routes:
        matches: list[Match] = [route.match, *(rule.match for rule in route.urgency.rules)]
        for match in matches:
            yield from (model for model in match.model if "*" not in model)
        for bound in route.steps:
            yield from bound.step.models(bound.config)
