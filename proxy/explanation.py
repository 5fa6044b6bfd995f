"""What would happen to a request, as one object: for `weir explain`, `POST /explain` and a caller's dry run."""

from __future__ import annotations

from typing import Any

import orjson

from proxy.core.decision import StepReport
from proxy.core.document import Document, DocumentError
from proxy.core.errors import ProxyError
from proxy.pipeline import Decision, Pipeline, Request


def explain_request(pipeline: Pipeline, request: Request) -> bytes:
    """Return the explanation of a request as JSON; the edited body keeps its own bytes inside it."""
    try:
        decision = pipeline.explain(request)
    except ProxyError as error:
        rejection = {"code": error.kind.code, "status": error.kind.status, "message": error.message}
        return orjson.dumps({"rejected": rejection | {"param": error.param}})
    return orjson.dumps(explanation(pipeline, request, decision))


def explanation(pipeline: Pipeline, request: Request, decision: Decision) -> dict[str, Any]:
    """Return the explanation of a decision; `body` is an orjson fragment, or text where it is not JSON."""
    before, after = _tokens(pipeline, request, decision)
    return {
        "route": decision.route.name if decision.route is not None else None,
        "lost": [{"route": lost.route.name, "reason": lost.reason} for lost in decision.lost],
        "upstream": decision.upstream.name,
        "steps": [_step(report) for report in decision.steps],
        "urgency": {"value": decision.urgency.value.value, "reason": decision.urgency.reason},
        "lane": {"value": decision.lane.value.value, "reason": decision.lane.reason},
        "tokens": {"before": before, "after": after},
        "asks_usage": decision.asks_usage,
        "body": _body(request, decision),
    }


def sent_body(request: Request, decision: Decision) -> bytes:
    """Return the bytes that would be sent."""
    return decision.document.to_bytes() if decision.document is not None else request.body


def _body(request: Request, decision: Decision) -> object:
    if decision.document is not None:
        return orjson.Fragment(decision.document.to_bytes())
    return request.body.decode("utf-8", "replace")


def _tokens(pipeline: Pipeline, request: Request, decision: Decision) -> tuple[int | None, int | None]:
    if decision.document is None:
        return None, None
    try:
        original = Document.parse(request.body)
    except DocumentError:
        return None, None
    return (
        pipeline.count_prompt(original, decision.model),
        pipeline.count_prompt(decision.document, decision.model),
    )


def _step(report: StepReport) -> dict[str, Any]:
    detail: dict[str, Any] = dict(report.detail)
    if report.reason:
        detail["reason"] = report.reason
    return {"name": report.name, "status": report.status.value, "detail": detail}
