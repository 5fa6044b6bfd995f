"""Which strategy may carry which request."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from proxy.core.decision import Strategy, Urgency
from proxy.core.document import Document
from proxy.core.upstream import Provider, Upstream
from proxy.dialects import dialect_for_path
from proxy.http.head import RequestHead
from proxy.lanes.coalesce.choice import key_of
from proxy.lanes.lane import Outgoing, Pooling
from proxy.policy.model import CoalescePolicy
from proxy.upstream.pool import Pool
from proxy.upstream.request_head import BodyPlan
from proxy.upstream.target import make_target

LONG = "x" * 20_000
CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
PATHS = {
    "chat": "/v1/chat/completions",
    "embeddings": "/v1/embeddings",
    "moderations": "/v1/moderations",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


class _Pool:
    """What choosing looks at of a pool."""

    target = make_target(Upstream("up", "http://127.0.0.1:1/v1", provider=Provider.OPENAI), {})


POOL = cast(Pool, _Pool())
PACED = CoalescePolicy(max_in_flight=2)


def fits(
    name: str,
    body: dict[str, Any],
    policy: CoalescePolicy = PACED,
    urgency: Urgency = Urgency.SOON,
    method: bytes = b"POST",
    **ways: Any,
) -> list[str]:
    """Return the strategies that have a key for a request, in order."""
    raw = json.dumps(body).encode()
    dialect = dialect_for_path(PATHS[name])
    assert dialect is not None
    document = Document.parse(raw)
    pooling = Pooling(
        policy, dialect, document, body.get("model", ""), urgency, bool(body.get("stream")), False
    )
    head = RequestHead(method, PATHS[name].encode(), "1.1", [], upgrade=ways.get("upgrade", False))
    outgoing = Outgoing(head, POOL, ways.get("raw", raw), BodyPlan(len(raw)), pooling=pooling)
    return [each.value for each in Strategy if key_of(each, pooling, outgoing) is not None]


@pytest.mark.parametrize(
    ("name", "body", "wanted"),
    [
        ("embeddings", {"model": "m", "input": "a"}, ["merge", "pace"]),
        ("moderations", {"input": "a"}, ["merge", "pace"]),
        ("completions", {"model": "m", "prompt": "a"}, ["merge", "pace"]),
        ("completions", {"model": "m", "prompt": "a", "temperature": 0}, ["merge", "pace"]),
        ("completions", {"model": "m", "prompt": "a", "seed": 7}, ["share", "pace"]),
        ("chat", CHAT, ["sample", "pace"]),
        ("chat", CHAT | {"temperature": 0}, ["share", "pace"]),
        ("chat", CHAT | {"seed": 1}, ["share", "pace"]),
        ("chat", CHAT | {"stream": True}, ["pace"]),
        ("chat", CHAT | {"n": 3}, ["pace"]),
        ("chat", CHAT | {"user": LONG, "n": 3}, ["warm", "pace"]),
    ],
)
def test_the_first_of_these_carries(name: str, body: dict[str, Any], wanted: list[str]) -> None:
    assert fits(name, body) == wanted


def test_a_policy_names_the_strategies_that_may() -> None:
    only = CoalescePolicy(strategies=(Strategy.SHARE,), max_in_flight=2)
    assert fits("completions", {"model": "m", "prompt": "a", "temperature": 0}, only) == ["share"]
    assert fits("embeddings", {"model": "m", "input": "a"}, only) == []
    assert fits("chat", CHAT, CoalescePolicy()) == ["sample"], "without a limit nothing is paced"


def test_interactive_requests_are_never_warmed() -> None:
    long = CHAT | {"user": LONG}
    assert fits("chat", long) == ["sample", "warm", "pace"]
    assert fits("chat", long, urgency=Urgency.INTERACTIVE) == ["sample", "pace"]


def test_only_whole_bodies_that_are_posted_are_pooled() -> None:
    assert fits("embeddings", {"model": "m", "input": "a"}, method=b"PUT") == ["pace"]
    assert fits("embeddings", {"model": "m", "input": "a"}, raw=None) == []
    assert fits("embeddings", {"model": "m", "input": "a"}, upgrade=True) == []


def test_forms_that_no_api_documents_are_not_shared() -> None:
    shared = CHAT | {"temperature": 0}
    for wrong in ({"user": 123}, {"metadata": "m"}, {"stream_options": {"include_usage": True}}):
        assert fits("chat", shared | wrong) == ["pace"]


def test_certificates_tell_callers_apart() -> None:
    raw = json.dumps(CHAT | {"temperature": 0, "user": LONG}).encode()
    dialect = dialect_for_path(PATHS["chat"])
    assert dialect is not None
    for strategy in (Strategy.SHARE, Strategy.WARM, Strategy.PACE):
        keys = set()
        for caller in (b"", b"one", b"two", b"two"):
            document = Document.parse(raw)
            pooling = Pooling(PACED, dialect, document, "m", Urgency.SOON, False, False, caller)
            head = RequestHead(b"POST", PATHS["chat"].encode(), "1.1", [])
            outgoing = Outgoing(head, POOL, raw, BodyPlan(len(raw)), pooling=pooling)
            keys.add(key_of(strategy, pooling, outgoing))
        assert len(keys - {None}) == 3
