"""One golden case: a policy, a request, and what Weir makes of it.

    name          (optional) what the case shows, one sentence
    policy        a policy document
    method path   default POST, /v1/chat/completions
    headers       request headers
    encoding      (optional) of `request`; latin-1 makes "\\xff" one byte, so that any bytes can be written
    request       the body, to the byte: a block scalar (`|-`) or quoted text
    lanes         (optional) lanes besides stream that the process runs; default both
    refused       (optional) parameters that the upstream is known to refuse
    expect        written by `make golden`, read by reviewers; the last key, without comments inside

A policy is cut out of the file as text, not as data, so that it reaches the loader as an operator wrote it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from proxy.core.clock import ManualClock
from proxy.core.decision import StepReport
from proxy.core.errors import ProxyError
from proxy.explanation import explain_request, sent_body
from proxy.lanes.batch.deferring import Deferring
from proxy.lanes.batch.pace import Pace
from proxy.pipeline import Decision, Pipeline, Request
from proxy.policy.builtin import PLACEHOLDER
from proxy.policy.lane import LaneCapabilities
from proxy.policy.load import load
from proxy.tokens.fixed import FixedCounter
from proxy.upstream.providers.prices import PriceTable, load_prices

PRICES = load_prices()


def deferring_with(prices: PriceTable, keeps_credentials: bool = False) -> Deferring:
    """Return what decides about deferring in a process whose store is up and has seen nothing yet."""
    return Deferring(prices, prices, Pace(prices), keeps_credentials, lambda: True)


CASES = Path(__file__).resolve().parent
KEYS = ("name", "policy", "method", "path", "headers", "encoding", "request", "lanes", "refused", "expect")


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """A case as its file says it; `source` is the file's text, `expect` is `None` where it is missing."""

    file: Path
    source: str
    policy: str
    body: bytes
    expect: Mapping[str, Any] | None
    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)
    lanes: tuple[str, ...] = ("coalesce", "batch")
    refused: frozenset[str] = frozenset()


def case_files() -> list[Path]:
    """Return the files of all cases in name order."""
    return sorted(CASES.glob("*.yaml"))


def read_case(file: Path) -> GoldenCase:
    """Read a case. Raises `ValueError` for a file of another form."""
    source = file.read_text(encoding="utf-8")
    root = yaml.compose(source, yaml.SafeLoader)
    values = yaml.safe_load(source)
    if not isinstance(root, yaml.MappingNode) or not isinstance(values, dict):
        raise ValueError(f"{file.name}: a mapping is wanted")
    unknown = [key for key in values if key not in KEYS]
    if unknown or ("expect" in values and list(values)[-1] != "expect"):
        raise ValueError(f"{file.name}: unknown keys {unknown}, or expect is not the last key")
    if not isinstance(values.get("request"), str):
        raise ValueError(f"{file.name}: request must be text")
    optional: dict[str, Any] = {key: values[key] for key in ("method", "path") if key in values}
    if "lanes" in values:
        optional["lanes"] = tuple(values["lanes"])
    return GoldenCase(
        file=file,
        source=source,
        policy=_text_of(root, "policy", source),
        body=values["request"].encode(values.get("encoding", "utf-8")),
        expect=values.get("expect"),
        headers={name.lower(): str(value) for name, value in values.get("headers", {}).items()},
        refused=frozenset(values.get("refused", ())),
        **optional,
    )


def _text_of(root: yaml.MappingNode, wanted: str, source: str) -> str:
    for key, node in root.value:
        if key.value == wanted:
            start, end = node.start_mark, node.end_mark
            return textwrap.dedent(" " * start.column + source[start.index : end.index]).rstrip() + "\n"
    raise ValueError(f"the case has no {wanted}")


def run_case(case: GoldenCase, folder: Path) -> dict[str, Any]:
    """Return what the real pipeline makes of a case, in the form of `expect`; `folder` takes the policy."""
    policy_file = folder / f"{case.file.stem}.policy.yaml"
    policy_file.write_text(case.policy, encoding="utf-8")
    policies = load([str(policy_file)], {}, PLACEHOLDER)
    pipeline = Pipeline(
        policies,
        FixedCounter(),
        ManualClock(),
        LaneCapabilities(coalesce="coalesce" in case.lanes, batch="batch" in case.lanes),
        refusals=lambda upstream, model: case.refused,
        deferring=deferring_with(PRICES),
    )
    request = Request(case.method, case.path, case.headers.get, case.body)
    explained = json.loads(explain_request(pipeline, request))
    candidates = pipeline.candidates(case.method, case.path, case.headers.get)
    try:
        decision = pipeline.decide(request, candidates)
    except ProxyError as error:
        return {"rejected": _rejection(error, explained)}
    said = outcome(decision, request, explained["lost"], policies.default_upstream)
    for key in ("route", "urgency", "lane"):
        assert explained[key] == said[key], "explain tells the same"
    return said


def _rejection(error: ProxyError, explained: Mapping[str, Any]) -> dict[str, Any]:
    kind = error.kind
    said = {"status": kind.status, "code": kind.code, "message": error.message, "param": error.param}
    told = dict(explained["rejected"])
    by_route, steps = told.pop("route", None), told.pop("steps", [])
    assert set(explained) == {"rejected"}
    assert told == said, "explain tells the same"
    assert by_route is None or steps[-1]["status"] == "rejected", "and which step it was"
    return {key: value for key, value in said.items() if value is not None}


def outcome(
    decision: Decision, request: Request, lost: list[dict[str, str]], default_upstream: str
) -> dict[str, Any]:
    """Return a decision in the form of `expect`; what is as always is left out."""
    said: dict[str, Any] = {"route": decision.route.name if decision.route is not None else None}
    if lost:
        said["lost"] = {route["route"]: route["reason"] for route in lost}
    if decision.upstream.name != default_upstream:
        said["upstream"] = decision.upstream.name
    body = sent_body(request, decision)
    said["body"] = "unchanged" if body == request.body else body.decode("utf-8", "backslashreplace")
    said["steps"] = [_step(report) for report in decision.steps]
    if decision.asks_usage:
        said["asks_usage"] = True
    said["urgency"] = {"value": decision.urgency.value.value, "reason": decision.urgency.reason}
    said["lane"] = {"value": decision.lane.value.value, "reason": decision.lane.reason}
    return said


def _step(report: StepReport) -> dict[str, Any]:
    said: dict[str, Any] = {"name": report.name, "status": report.status.value}
    if report.reason:
        said["reason"] = report.reason
    if report.detail:
        said["detail"] = dict(report.detail)
    return said
