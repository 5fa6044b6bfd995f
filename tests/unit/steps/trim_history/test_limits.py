"""A budget that a policy makes a limit holds whatever a request says, and what goes never breaks the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.clock import ManualClock
from proxy.core.document import Document
from proxy.core.price import Price, PromptCache, Rates
from proxy.dialects.chat import CHAT
from proxy.dialects.dialect import Dialect
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES
from proxy.observe.prefixes import PrefixMemory
from proxy.steps.step import Outcome, Rejected, StepContext
from proxy.steps.trim_history import Config, apply
from proxy.tokens.fixed import FixedCounter
from tests.unit.steps.contexts import body

LIMIT = Config(budget=2000, on_overflow="reject")
LONG = "word " * 2000
MARKED = Price(Rates(input=4, output=20, cached=0.2, cache_write=5), cache=PromptCache(False, 1024, 300))


class OnePrice:
    """A price table of one row."""

    def price(self, provider: str, model: str) -> Price | None:
        return MARKED


def run(document: Document, config: Config, dialect: Dialect = CHAT) -> Outcome:
    prefixes = PrefixMemory(ManualClock()).scoped(b"s" * 16)
    return apply(
        document,
        config,
        StepContext(dialect, "m", "p", FixedCounter(), prices=OnePrice(), prefixes=prefixes),
    )


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("mark", ["cache_control", "prompt_cache_breakpoint"])
def test_a_cache_mark_is_no_way_past_a_limit(mark: str) -> None:
    block = {"type": "text", "text": LONG, mark: {"type": "ephemeral"}}
    turns = [user("word " * 30), answer("ok"), user([block])]
    with pytest.raises(Rejected):
        run(body(messages=turns, max_tokens=9), LIMIT, MESSAGES)
    earlier = [user([block]), answer("ok"), user("and now?")]
    outcome = run(body(messages=earlier, max_tokens=9), LIMIT, MESSAGES)
    assert outcome.tokens is not None
    assert outcome.tokens[1] <= 2000


@pytest.mark.parametrize(
    "more",
    [
        {"conversation": "c"},
        {"previous_response_id": "r"},
        {"truncation": "auto"},
        {"context_management": [{"type": "x"}]},
    ],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
def test_fields_of_any_api_are_no_way_past_a_limit(more: dict[str, Any], dialect: Dialect) -> None:
    key = "input" if dialect is RESPONSES else "messages"
    with pytest.raises(Rejected):
        run(body(**{key: [user(LONG)]}, **more), LIMIT, dialect)


def test_a_least_saving_is_no_way_past_a_limit() -> None:
    turns = [user("word " * 10), answer("ok"), user("word " * 1590)]
    config = Config(budget=2000, on_overflow="reject", min_saving=1000)
    outcome = run(body(messages=turns), config)
    assert outcome.tokens is not None
    assert outcome.tokens[1] <= 2000


def test_chat_has_no_fields_that_leave_the_context_to_the_server() -> None:
    turns = [user("old " * 100), answer("old"), user("new")]
    fields = {"conversation": "x", "previous_response_id": "x", "truncation": "auto"}
    outcome = run(body(messages=turns, **fields, context_management=[1]), Config(budget=10))
    assert [each["content"] for each in messages_of(outcome)] == ["new"]


def messages_of(outcome: Outcome, key: str = "messages") -> list[Any]:
    found: list[Any] = json.loads(outcome.document.to_bytes())[key]
    return found


JSON_MODE = {"response_format": {"type": "json_object"}}


def tool_call(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": function}]}


def test_a_tool_of_that_name_does_not_say_the_word() -> None:
    turns = [
        user("Answer as JSON. " + "word " * 60),
        answer("{}"),
        user("go on"),
        tool_call("read_json"),
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]
    outcome = run(body(messages=turns, **JSON_MODE), Config(budget=40, cache="ignore"))
    assert messages_of(outcome)[0] == turns[0]
    assert outcome.reason == "what must stay exceeds the budget"


def test_shortening_does_not_take_the_last_mention() -> None:
    result = {"role": "tool", "tool_call_id": "a", "content": "word " * 100 + "file.json"}
    document = body(messages=[user("q"), tool_call("read"), result, user("q")], **JSON_MODE)
    outcome = run(document, Config(per_message=20, budget=60, cache="ignore"))
    assert result in messages_of(outcome)
    plain = run(
        body(messages=[user("q"), tool_call("read"), result, user("q")]),
        Config(per_message=20, budget=600, cache="ignore"),
    )
    assert result not in messages_of(plain)
    again = run(outcome.document, Config(per_message=20, budget=60, cache="ignore"))
    assert again.document.to_bytes() == outcome.document.to_bytes()


def test_local_shell_calls_go_with_their_outputs_or_stay() -> None:
    items: list[Any] = [user("word " * 10)]
    for number in range(3):
        call = {"type": "local_shell_call", "id": f"lsh_{number}", "call_id": f"call_{number}"}
        items.append({**call, "action": {"type": "exec", "command": ["word " * 30]}, "status": "completed"})
        items.append({"type": "local_shell_call_output", "id": f"call_{number}", "output": "word " * 30})
    outcome = run(body(input=items), Config(budget=100, cache="ignore", keep_last=1), RESPONSES)
    kept = messages_of(outcome, "input")
    calls = {item["call_id"] for item in kept if item.get("type") == "local_shell_call"}
    outputs = {item["id"] for item in kept if item.get("type") == "local_shell_call_output"}
    assert calls == outputs
    assert len(calls) < 3


def test_no_block_of_text_becomes_blank() -> None:
    parts = [{"type": "text", "text": "\n  " + "word " * 12} for _ in range(40)]
    result = {"type": "tool_result", "tool_use_id": "a", "content": parts}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
    document = body(messages=[user("q"), use, user([result])], max_tokens=9)
    outcome = run(document, Config(per_message=16), MESSAGES)
    shortened = messages_of(outcome)[2]["content"][0]["content"]
    assert all(part["text"].strip() for part in shortened)
    assert shortened != parts
