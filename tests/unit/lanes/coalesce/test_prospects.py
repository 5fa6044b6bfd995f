"""What strategies say to a request before it is sent: the same as when it is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.core.clock import ManualClock
from proxy.core.decision import Strategy, Urgency
from proxy.core.document import Document
from proxy.core.price import Price, PromptCache, Rates
from proxy.core.upstream import Provider
from proxy.dialects import dialect_for_path
from proxy.http.head import RequestHead
from proxy.lanes.coalesce.choice import key_of
from proxy.lanes.coalesce.prospects import prospects
from proxy.lanes.lane import Outgoing, Pooling
from proxy.policy.model import CoalescePolicy
from proxy.upstream.request_head import BodyPlan
from tests.support.direct_lane import pool

CHAT, EMBEDDINGS, COMPLETIONS = "/v1/chat/completions", "/v1/embeddings", "/v1/completions"
CACHED = Price(Rates(2.0, 8.0, 0.5, 2.0), cache=PromptCache(True, 1024, 300))
LONG = [{"role": "system", "content": "Answer with care. " * 400}]


def pooling(
    path: str, body: dict[str, Any], policy: CoalescePolicy, urgency: Urgency = Urgency.SOON
) -> Pooling:
    dialect, document = dialect_for_path(path), Document.parse(json.dumps({"model": "m"} | body).encode())
    assert dialect is not None
    return Pooling(policy, dialect, document, "m", urgency, dialect.is_stream(document), False)


CASES: list[tuple[str, dict[str, Any], CoalescePolicy, set[str]]] = [
    (CHAT, {"messages": [], "temperature": 0}, CoalescePolicy(), {"share"}),
    (CHAT, {"messages": [], "temperature": 0}, CoalescePolicy(strategies=(Strategy.SAMPLE,)), {"sample"}),
    (CHAT, {"messages": [], "temperature": 0, "user": 1}, CoalescePolicy(), set()),
    (CHAT, {"messages": []}, CoalescePolicy(), {"sample"}),
    (CHAT, {"messages": [], "stream": True}, CoalescePolicy(), set()),
    (CHAT, {"messages": [], "stream": True}, CoalescePolicy(max_in_flight=2), {"pace"}),
    (CHAT, {"messages": LONG, "stream": True}, CoalescePolicy(), {"warm"}),
    (EMBEDDINGS, {"input": "a"}, CoalescePolicy(), {"merge"}),
    (EMBEDDINGS, {"input": ""}, CoalescePolicy(), set()),
    (EMBEDDINGS, {"input": "a"}, CoalescePolicy(max_items=1), set()),
    (COMPLETIONS, {"prompt": "a"}, CoalescePolicy(), {"merge"}),
    (COMPLETIONS, {"prompt": "a", "seed": 1}, CoalescePolicy(), {"share"}),
]


@pytest.mark.parametrize(("path", "body", "policy", "able"), CASES)
def test_says_which_may_carry_a_request(
    path: str, body: dict[str, Any], policy: CoalescePolicy, able: set[str]
) -> None:
    asked = pooling(path, body, policy)
    found = prospects(asked, Provider.OPENAI, "POST", CACHED)
    assert {each.strategy.value for each in found if not each.obstacle} == able
    loop = asyncio.new_event_loop()
    head = RequestHead(b"POST", path.encode(), "1.1", [])
    connections = pool(loop, ManualClock())
    sent = Outgoing(head, connections, asked.document.raw, BodyPlan(), pooling=asked)
    for each in found:
        assert each.obstacle or key_of(each.strategy, asked, sent) is not None
    loop.close()


def test_says_why_nothing_is_warmed() -> None:
    def why(price: Price | None, urgency: Urgency = Urgency.SOON, method: str = "POST") -> str:
        asked = pooling(CHAT, {"messages": LONG}, CoalescePolicy(), urgency)
        return prospects(asked, Provider.OPENAI, method, price)[3].obstacle

    assert why(CACHED, Urgency.INTERACTIVE) == "interactive"
    assert "no price says" in why(None)
    assert why(CACHED, method="PUT") == "not a POST"
    assert why(CACHED) == ""
