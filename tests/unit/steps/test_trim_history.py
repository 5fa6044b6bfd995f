"""What trim_history makes of requests: options, reasons, details."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.dialect import Dialect
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.moderations import MODERATIONS
from proxy.dialects.responses import RESPONSES
from proxy.steps.step import Outcome, Rejected, StepContext
from proxy.steps.trim_history import STEP, Config, apply
from proxy.tokens.fixed import FixedCounter
from tests.unit.steps.contexts import body

COUNTER = FixedCounter()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def run(document: Document, config: Config, dialect: Dialect = CHAT) -> Outcome:
    return apply(document, config, StepContext(dialect, "gpt-4o", "openai", COUNTER))


def long_chat(**more: Any) -> Document:
    turns = [
        user("first " + "word " * 80),
        answer("a " + "word " * 80),
        user("second"),
        answer("b"),
        user("third"),
    ]
    return body(model="m", messages=turns, **more)


def contents(outcome: Outcome, key: str = "messages") -> list[str]:
    return [message["content"].split()[0] for message in json.loads(outcome.document.to_bytes())[key]]


@pytest.mark.parametrize("dialect", [COMPLETIONS, EMBEDDINGS, MODERATIONS])
def test_apis_without_a_conversation_are_skipped(dialect: Dialect) -> None:
    outcome = run(body(input=["x" * 400], prompt="x" * 400), Config(budget=1), dialect)
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, "this API has no conversation")


@pytest.mark.parametrize(
    ("dialect", "document", "reason"),
    [
        (RESPONSES, body(input="x" * 400), "input is no list of turns"),
        (CHAT, body(messages={"a": "x" * 400}), "messages is no list of turns"),
        (CHAT, body(model="m"), "messages is no list of turns"),
    ],
)
def test_what_is_no_list_of_turns_is_skipped(dialect: Dialect, document: Document, reason: str) -> None:
    outcome = run(document, Config(budget=1), dialect)
    assert (outcome.document, outcome.status, outcome.reason) == (document, StepStatus.SKIPPED, reason)


def test_says_what_it_saved() -> None:
    outcome = run(long_chat(), Config(budget=60))
    assert contents(outcome) == ["second", "b", "third"]
    before = sum(COUNTER.count_message(raw, "m").tokens for raw in long_chat().array("messages") or ())
    after = sum(COUNTER.count_message(raw, "m").tokens for raw in outcome.document.array("messages") or ())
    assert outcome.detail == (("saved", before - after), ("dropped", 2))
    assert outcome.tokens == (before, after)
    assert outcome.status is StepStatus.APPLIED


def test_a_short_conversation_is_not_even_counted() -> None:
    class NoCounting:
        def count_text(self, text: str, model: str) -> Any:
            raise AssertionError("counted")

        def count_message(self, raw: bytes, model: str) -> Any:
            raise AssertionError("counted")

    document = long_chat()
    for config in (Config(budget=5_000), Config(per_message=5_000), Config(budget=5_000, summary="system")):
        outcome = apply(document, config, StepContext(CHAT, "m", "openai", NoCounting()))
        assert outcome.document is document
        assert outcome.status is StepStatus.UNCHANGED


def test_a_short_body_with_a_picture_is_counted() -> None:
    picture = {"type": "image_url", "image_url": {"url": "http://x"}}
    turns = [user("a"), {"role": "user", "content": [picture]}, answer("b"), user("c")]
    outcome = run(body(messages=turns), Config(budget=600))
    assert [len(outcome.document.array("messages") or ()), outcome.tokens is not None] == [1, True]


def test_keeps_system_developer_and_summary_messages() -> None:
    kept = [{"role": role, "content": "word " * 100} for role in ("system", "developer", "summary")]
    outcome = run(body(messages=[*kept, user("old"), answer("old"), user("new")]), Config(budget=10))
    assert [message["role"] for message in json.loads(outcome.document.to_bytes())["messages"]] == [
        "system",
        "developer",
        "summary",
        "user",
    ]
    assert outcome.reason == "what must stay exceeds the budget"
    assert outcome.tokens is not None
    assert dict(outcome.detail)["over"] == outcome.tokens[1] - 10


def test_system_text_apart_from_the_messages_counts() -> None:
    document = body(system="word " * 100, messages=[user("old " * 10), answer("old"), user("new")])
    assert contents(run(document, Config(budget=140), MESSAGES)) == ["new"]
    assert run(document, Config(budget=180), MESSAGES).document is document


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
def test_the_role_summary_can_become_a_system_note(dialect: Dialect) -> None:
    key = "messages" if dialect is CHAT else "input"
    raw = (
        b'{"'
        + key.encode()
        + b'":[{"content": "\\u00e9", "role" : "summary" ,"n":1.0},{"role":"user","content":"x"}]}'
    )
    outcome = run(Document.parse(raw), Config(budget=10_000, summary="system"), dialect)
    assert outcome.document.to_bytes() == raw.replace(b'"summary"', b'"system"')
    assert dict(outcome.detail) == {"saved": 0, "summaries": 1}
    assert (
        run(outcome.document, Config(budget=10_000, summary="system"), dialect).document is outcome.document
    )
    assert run(Document.parse(raw), Config(budget=10_000), dialect).document.to_bytes() == raw


def test_anthropic_has_no_system_role_to_become() -> None:
    document = body(messages=[{"role": "summary", "content": "x"}, user("y")])
    assert run(document, Config(budget=10_000, summary="system"), MESSAGES).document is document


def test_an_overflow_can_be_rejected() -> None:
    document = body(messages=[user("word " * 100)])
    with pytest.raises(Rejected) as caught:
        run(document, Config(budget=50, on_overflow="reject"))
    assert caught.value.param == "messages"
    assert "50" in caught.value.message
    assert STEP.enforces(Config(budget=50, on_overflow="reject"))
    assert not STEP.enforces(Config(budget=50))
    assert run(document, Config(budget=50)).reason == "what must stay exceeds the budget"


def test_what_is_not_worth_it_stays() -> None:
    outcome = run(long_chat(), Config(budget=60, min_saving=1_000))
    assert (outcome.status, outcome.reason) == (
        StepStatus.SKIPPED,
        "trimming would save less than 1000 tokens",
    )
    assert run(long_chat(), Config(budget=60, min_saving=100)).status is StepStatus.APPLIED


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"previous_response_id": "resp_1"}, "earlier turns live at the server"),
        ({"conversation": "conv_1"}, "earlier turns live at the server"),
        ({"truncation": "auto"}, "the caller lets the server shorten the context"),
        ({"context_management": [{"type": "compaction"}]}, "the caller lets the server shorten the context"),
    ],
)
def test_history_that_the_server_keeps_or_shortens_is_left_to_it(more: dict[str, Any], reason: str) -> None:
    turns = [user("old " * 100), answer("old"), user("new")]
    outcome = run(body(input=turns, **more), Config(budget=10), RESPONSES)
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, reason)


def test_truncation_that_is_switched_off_is_no_objection() -> None:
    turns = [user("old " * 100), answer("old"), user("new")]
    outcome = run(
        body(input=turns, truncation="disabled", context_management=[]), Config(budget=10), RESPONSES
    )
    assert contents(outcome, "input") == ["new"]


def test_the_word_json_stays_where_json_mode_needs_it() -> None:
    turns = [
        user("old " * 50),
        answer("x"),
        user("as JSON please"),
        answer("{}"),
        user("more " * 20),
        answer("{}"),
        user("new"),
    ]
    plain = run(body(messages=turns), Config(budget=10))
    assert contents(plain) == ["new"]
    mode = {"response_format": {"type": "json_object"}}
    assert contents(run(body(messages=turns, **mode), Config(budget=10))) == ["as", "{}", "new"]
    told = [{"role": "system", "content": "answer in json"}, *turns]
    assert contents(run(body(messages=told, **mode), Config(budget=10))) == ["answer", "new"]
    text_mode = {"text": {"format": {"type": "json_object"}}}
    assert contents(run(body(input=turns, **text_mode), Config(budget=10), RESPONSES), "input") == [
        "as",
        "{}",
        "new",
    ]
    instructed = {**text_mode, "instructions": "JSON"}
    assert contents(run(body(input=turns, **instructed), Config(budget=10), RESPONSES), "input") == ["new"]


LONG = "word " * 200


def tool_loop(content: Any) -> list[dict[str, Any]]:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]}
    return [user("q"), call, {"role": "tool", "tool_call_id": "a", "content": content}]


def test_an_oversized_result_is_shortened_whatever_the_budget() -> None:
    document = body(messages=tool_loop(LONG))
    for config in (Config(per_message=50), Config(per_message=50, budget=100_000)):
        outcome = run(document, config)
        (*before, result) = json.loads(outcome.document.to_bytes())["messages"]
        assert before == json.loads(document.to_bytes())["messages"][:2]
        assert LONG.startswith(result["content"])
        assert 40 <= len(result["content"]) // 4 <= 50
        assert [name for name, _ in outcome.detail] == ["saved", "shortened"]
        assert run(outcome.document, config).document is outcome.document


def test_the_budget_is_measured_after_results_were_shortened() -> None:
    turns = [user("old"), answer("old"), *tool_loop(LONG)]
    assert dict(run(body(messages=turns), Config(budget=120, per_message=50)).detail).keys() == {
        "saved",
        "shortened",
    }
    assert "dropped" in dict(run(body(messages=turns), Config(budget=120)).detail)


def test_only_tool_results_are_shortened() -> None:
    document = body(messages=[user(LONG), answer(LONG), user(LONG)])
    assert run(document, Config(per_message=50)).document is document


@pytest.mark.parametrize(
    ("dialect", "items", "path"),
    [
        (
            RESPONSES,
            [
                {"type": "function_call", "call_id": "a"},
                {"type": "function_call_output", "call_id": "a", "output": LONG},
            ],
            (1, "output"),
        ),
        (
            RESPONSES,
            [
                {"type": "function_call", "call_id": "a"},
                {
                    "type": "function_call_output",
                    "call_id": "a",
                    "output": [{"type": "input_text", "text": LONG}],
                },
            ],
            (1, "output", 0, "text"),
        ),
        (
            MESSAGES,
            [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": LONG}]},
            ],
            (1, "content", 0, "content"),
        ),
        (
            MESSAGES,
            [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "a",
                            "content": [{"type": "text", "text": LONG}],
                        },
                        {"type": "text", "text": LONG},
                    ],
                },
            ],
            (1, "content", 0, "content", 0, "text"),
        ),
    ],
)
def test_results_are_found_in_every_dialect(
    dialect: Dialect, items: list[Any], path: tuple[Any, ...]
) -> None:
    key = "input" if dialect is RESPONSES else "messages"
    outcome = run(body(**{key: [user("q"), *items]}), Config(per_message=50), dialect)
    value = json.loads(outcome.document.to_bytes())[key][1:]
    for part in path:
        value = value[part]
    assert LONG.startswith(value)
    assert len(value) < 250


def test_results_shorten_even_where_the_history_is_the_servers() -> None:
    items = [{"type": "function_call_output", "call_id": "a", "output": LONG}]
    document = body(input=items, previous_response_id="r")
    assert run(document, Config(per_message=50), RESPONSES).status is StepStatus.APPLIED


def test_a_persons_words_beside_a_result_are_not_shortened() -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": LONG}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}
    spoken = {"role": "user", "content": [result, {"type": "text", "text": LONG}]}
    outcome = run(body(messages=[user("q"), use, spoken]), Config(per_message=50), MESSAGES)
    shorter, words = json.loads(outcome.document.to_bytes())["messages"][-1]["content"]
    assert len(shorter["content"]) < 250
    assert words["text"] == LONG


def test_the_longest_parts_of_a_result_lose_first() -> None:
    parts = [
        {"type": "text", "text": "short"},
        {"type": "text", "text": LONG},
        {"type": "text", "text": LONG},
    ]
    outcome = run(body(messages=tool_loop(parts)), Config(per_message=100))
    kept = json.loads(outcome.document.to_bytes())["messages"][-1]["content"]
    assert kept[0]["text"] == "short"
    assert kept[1] == kept[2]
    assert 30 < len(kept[1]["text"]) // 4 < 50
    assert run(outcome.document, Config(per_message=100)).document is outcome.document


def test_a_picture_in_a_result_stays() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}
    outcome = run(body(messages=tool_loop([picture, {"type": "text", "text": LONG}])), Config(per_message=50))
    assert json.loads(outcome.document.to_bytes())["messages"][-1]["content"][0] == picture


def test_a_marker_stands_where_text_was_cut() -> None:
    config = Config(per_message=50, marker="\n[…]\n", cut="middle")
    outcome = run(body(messages=tool_loop("start " + LONG + "end")), config)
    text = json.loads(outcome.document.to_bytes())["messages"][-1]["content"]
    assert text.startswith("start ")
    assert text.endswith("end")
    assert text.count("\n[…]\n") == 1


def test_the_bytes_of_what_stays_are_kept() -> None:
    raw = (
        b'{ "messages" : [ {"role":"user","content":"'
        + b"old " * 80
        + b'"} ,{"role":"assistant","content":"b"}, '
        b'\n{"role":"user","content":"\\u00e9\\/","x":1.0} ] , "seed":9007199254740993}'
    )
    outcome = run(Document.parse(raw), Config(budget=20))
    assert outcome.document.to_bytes() == (
        b'{ "messages" : [ {"role":"user","content":"\\u00e9\\/","x":1.0} ] , "seed":9007199254740993}'
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "budget or per_message"),
        ({"budget": 0}, "budget"),
        ({"per_message": 15}, "per_message"),
        ({"budget": 1, "keep_last": 0}, "keep_last"),
        ({"budget": 1, "keep_first": -1}, "keep_first"),
        ({"budget": 1, "min_saving": -1}, "min_saving"),
        ({"per_message": 100, "on_overflow": "reject"}, "on_overflow"),
        ({"budget": 1, "marker": "\ud800"}, "marker"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Config(**options)
