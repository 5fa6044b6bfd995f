"""What would happen to one request, as one object; the edited body keeps its own bytes inside it."""

from __future__ import annotations

import json
from typing import Any

import orjson

from proxy.core.decision import StepReport
from proxy.core.document import Document, DocumentError
from proxy.core.errors import ProxyError
from proxy.core.stages import Stage, Trace
from proxy.dialects.dialect import Dialect
from proxy.explanation.prompt_cost import Prompt, read_prompt
from proxy.explanation.strategies import strategies
from proxy.lanes.batch.plan import DeferralPlan
from proxy.pipeline import Decision, Pipeline, Request
from proxy.policy.rewriting import PolicyRefusal
from proxy.policy.watched import IsWanted, watched


def explain_request(pipeline: Pipeline, request: Request) -> bytes:
    """Return the explanation of a request as JSON. Raises Abandoned."""
    trace = Trace()
    try:
        decision = pipeline.explain(request, trace)
    except ProxyError as error:
        return orjson.dumps({"rejected": rejection(error)})
    return orjson.dumps(explanation(pipeline, request, decision, trace))


def rejection(error: ProxyError) -> dict[str, Any]:
    """Return why a request would be refused; by which route and step, where one of them did it."""
    facts: dict[str, Any] = {
        "code": error.kind.code,
        "status": error.kind.status,
        "message": error.message,
        "param": error.param,
    }
    if isinstance(error, PolicyRefusal):
        facts |= {"route": error.route, "steps": [_step(report, []) for report in error.steps]}
    return facts


def explanation(pipeline: Pipeline, request: Request, decision: Decision, trace: Trace) -> dict[str, Any]:
    """Return the explanation of a decision; `body` is an orjson fragment, or text where it is not JSON.

    `trace` is what the pipeline left of the steps. Tokens are those of the whole prompt; `usd` is what they
    cost without any cache hit, where a price is known.
    """
    stages = stages_of(request, decision, trace)
    prompts = read_prompts(stages, decision.dialect, pipeline, request.is_wanted)
    return {
        "route": decision.route.name if decision.route is not None else None,
        "lost": [{"route": lost.route.name, "reason": _printable(lost.reason)} for lost in decision.lost],
        "upstream": decision.upstream.name,
        "model": _printable(decision.model),
        "steps": [_step(report, prompts[index : index + 2]) for index, report in enumerate(decision.steps)],
        "urgency": {"value": decision.urgency.value.value, "reason": decision.urgency.reason},
        "lane": {"value": decision.lane.value.value, "reason": decision.lane.reason},
        "deferral": None if decision.deferral is None else _deferral(decision.deferral),
        "strategies": strategies(request, decision, pipeline.prices),
        "asks_usage": decision.asks_usage,
        **_change([prompts[0], prompts[-1]] if prompts else []),
        "body": _body(request, decision),
    }


def _deferral(plan: DeferralPlan) -> dict[str, Any]:
    return {
        "delivery": plan.delivery.value,
        "tiers": [tier.value for tier in plan.tiers],
        "deadline_seconds": plan.deadline_seconds,
        "hold_seconds": plan.hold_seconds,
    }


def stages_of(request: Request, decision: Decision, trace: Trace) -> list[Stage]:
    """Return the stages of a request; of one that no step saw the one that it is in, if it can be read."""
    if trace.stages:
        return trace.stages
    document = decision.document
    if document is None:
        try:
            document = Document.parse(request.body)
        except DocumentError:
            return []
    named = document.value("model")
    return [Stage(document, decision.upstream, named if isinstance(named, str) else "")]


def read_prompts(
    stages: list[Stage], dialect: Dialect | None, pipeline: Pipeline, is_wanted: IsWanted | None = None
) -> list[Prompt]:
    """Measure each stage; what a step left alone is measured once. Raises Abandoned."""
    counter = watched(pipeline.counter, is_wanted)
    name = None if dialect is None else dialect.name
    prompts: list[Prompt] = []
    for index, stage in enumerate(stages):
        before = stages[index - 1] if index else None
        if before is not None and stage.document is before.document and stage.upstream is before.upstream:
            prompts.append(prompts[-1])
        else:
            prompts.append(read_prompt(stage, name, counter, pipeline.prices))
    return prompts


def sent_body(request: Request, decision: Decision) -> bytes:
    """Return the bytes that would be sent."""
    return decision.document.to_bytes() if decision.document is not None else request.body


def _body(request: Request, decision: Decision) -> object:
    body = sent_body(request, decision)
    is_json = decision.document is not None and _is_json(body)
    return orjson.Fragment(body) if is_json else body.decode("utf-8", "replace")


def _printable(text: str) -> str:
    """Return text that can be encoded: a caller's model name may hold half a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_json(body: bytes) -> bool:
    """Tell whether a body may stand inside JSON; what Weir reads may hold NaN, a mark or odd bytes."""
    try:
        # Numbers are not looked at: those of thousands of digits are numbers to JSON, but not to `int`.
        json.loads(body.decode("utf-8"), parse_constant=_refuse, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)


def _step(report: StepReport, prompts: list[Prompt]) -> dict[str, Any]:
    detail: dict[str, Any] = dict(report.detail)
    if report.reason:
        detail["reason"] = report.reason
    return {
        "name": report.name,
        "status": report.status.value,
        "detail": detail,
        **_change(prompts if len(prompts) == 2 else []),
    }


def _change(prompts: list[Prompt]) -> dict[str, Any]:
    """Return tokens and dollars of two prompts; unknown ones of none."""
    if not prompts:
        return {name: {"before": None, "after": None} for name in ("tokens", "usd")}
    before, after = prompts
    return {
        "tokens": {"before": before.tokens, "after": after.tokens},
        "usd": {"before": before.input_usd(), "after": after.input_usd()},
    }
