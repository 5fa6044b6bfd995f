"""Whatever is trimmed stays a conversation that the upstream takes: thousands of them, in every dialect."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects.chat import CHAT
from proxy.dialects.dialect import Dialect
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES
from proxy.sim.chat_rules import check_messages
from proxy.sim.messages_rules import check_messages_request
from proxy.sim.responses_rules import check_responses
from proxy.steps import trim_history
from proxy.steps.step import StepContext
from proxy.steps.trim_history import Config
from proxy.tokens.fixed import FixedCounter
from tests.support.conversations import FIELDS, conversation, conversations
from tests.support.legality import kept_indices, last_words, problems, unbroken_thinking

DIALECTS: dict[str, Dialect] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS)
COUNTER = FixedCounter()
LONG = 20
"""How many times longer texts are where cuts in blocks are meant: those are for prompts worth caching."""


def context(dialect: str) -> StepContext:
    return StepContext(DIALECTS[dialect], "gpt-4o", "openai", COUNTER)


def size(dialect: str, document: Document) -> int:
    """Count a conversation without the step's own reckoning."""
    fixed = {"chat": (), "responses": ("instructions",), "messages": ("system",)}[dialect]
    raws = [*(document.array(FIELDS[dialect]) or ())]
    raws += [raw for name in fixed if (raw := document.get(name)) is not None]
    return sum(COUNTER.count_message(raw, "gpt-4o").tokens for raw in raws)


def check(dialect: str, body: bytes, config: Config) -> None:
    assert problems(dialect, body) == [] or b"How can I help?" in body, "the maker of conversations is right"
    field = FIELDS[dialect]
    document = Document.parse(body)
    before = size(dialect, document)
    outcome = trim_history.apply(document, config, context(dialect))
    sent = outcome.document.to_bytes()
    assert config.budget is not None
    if before <= config.budget:
        assert sent is body
        assert outcome.status is StepStatus.UNCHANGED
        return
    if outcome.document is document:
        assert outcome.status is StepStatus.SKIPPED
        assert outcome.reason == "what must stay exceeds the budget"
        return

    whole, kept = document.array(field) or (), outcome.document.array(field) or ()
    indices = kept_indices(whole, kept)
    assert indices is not None, "what stays keeps its bytes and its order"
    items = json.loads(body)[field]
    assert problems(dialect, sent) == []
    check_as_the_simulator_does(dialect, sent)
    check_what_stays(dialect, items, indices)

    after = size(dialect, outcome.document)
    assert after < before
    assert dict(outcome.detail)["saved"] == before - after
    assert outcome.tokens == (before, after)
    assert after <= config.budget or outcome.reason == "what must stay exceeds the budget"
    assert trim_history.apply(outcome.document, config, context(dialect)).document is outcome.document
    again = Document.parse(sent)
    assert trim_history.apply(again, config, context(dialect)).document is again


def check_what_stays(dialect: str, items: list[dict[str, Any]], indices: list[int]) -> None:
    stays = {last_words(dialect, items), len(items) - 1}
    stays |= {n for n, item in enumerate(items) if item.get("role") in ("system", "developer", "summary")}
    stays |= {
        n for n, item in enumerate(items) if item.get("type") in ("compaction", "mcp_list_tools", "mcp_call")
    }
    if dialect == "messages":
        stays |= unbroken_thinking(items)
    assert stays <= set(indices)
    # Templates that want the roles to take turns get no two users in a row that were not so before.
    asks = [n for n in indices if items[n].get("role") == "user" and not _is_result(items[n])]
    for first, second in pairwise(asks):
        between = [
            n for n in indices if first < n < second and items[n].get("role") not in ("system", "developer")
        ]
        originally = [
            n for n in range(first + 1, second) if items[n].get("role") not in ("system", "developer")
        ]
        assert between or not originally


def _is_result(item: dict[str, Any]) -> bool:
    content = item.get("content")
    return isinstance(content, list) and any(part["type"] == "tool_result" for part in content)


def check_as_the_simulator_does(dialect: str, sent: bytes) -> None:
    body = json.loads(sent)
    match dialect:
        case "chat":
            for message in body["messages"]:
                message["role"] = message["role"].replace("summary", "system")
            check_messages(body)
        case "responses":
            check_responses(body)
        case _:
            check_messages_request(body, {"anthropic-version": "2023-06-01"})


CONFIGS = st.builds(
    Config,
    budget=st.sampled_from([1, 20, 60, 150, 400]),
    keep_last=st.sampled_from([1, 1, 2, 4]),
    keep_first=st.sampled_from([0, 0, 1, 2, 5]),
)


@EVERY_DIALECT
@given(data=st.data(), config=CONFIGS)
@settings(max_examples=100)
def test_the_upstream_takes_what_is_left(dialect: str, data: st.DataObject, config: Config) -> None:
    check(dialect, data.draw(conversations(dialect)), config)


@EVERY_DIALECT
@pytest.mark.parametrize("length", [1, LONG], ids=["to the budget", "in blocks"])
def test_the_upstream_takes_what_is_left_of_hundreds(dialect: str, length: int) -> None:
    trimmed = 0
    for seed in range(200):
        chance = Random(seed)
        body = conversation(dialect, chance, length)
        config = Config(
            budget=chance.choice((40, 80, 120, 300)) * length + 400 * (length > 1),
            keep_last=chance.choice((1, 1, 3)),
            keep_first=chance.choice((0, 0, 1, 3)),
        )
        check(dialect, body, config)
        trimmed += size(dialect, Document.parse(body)) > (config.budget or 0)
    assert trimmed > 60, "many of them are too long"
