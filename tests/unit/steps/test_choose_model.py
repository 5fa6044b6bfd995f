from __future__ import annotations

from typing import Any

import pytest

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects import Dialect
from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.moderations import MODERATIONS
from proxy.dialects.responses import RESPONSES
from proxy.steps.choose_model import STEP, Config, Rule, TokenBounds, When, apply
from proxy.steps.step import Outcome, StepContext
from tests.unit.steps.contexts import BytesAsTokens, Figure, body, context


def asking(text: str = "hi", **fields: Any) -> Document:
    """Return a request of one question for the model `big`."""
    return body(model="big", messages=[{"role": "user", "content": text}], **fields)


def chosen(document: Document, when: When, known: StepContext | None = None) -> bool:
    """Tell whether a rule with these conditions sends the request to `small`."""
    outcome = apply(document, Config((Rule(when, model="small"),)), known or context(model="big"))
    assert outcome.status is (StepStatus.APPLIED if outcome.model else StepStatus.UNCHANGED)
    return outcome.model == "small"


def follow(document: Document, *rules: Rule, dialect: Dialect = CHAT) -> Outcome:
    return apply(document, Config(rules), context(dialect, model="big"))


# --- where it goes -----------------------------------------------------------------------------------------


def test_the_model_is_replaced_in_place_and_nothing_else() -> None:
    document = Document.parse(b'{"x":1E2, "model" : "big" ,"messages":[]}')
    outcome = follow(document, Rule(model="small"))
    assert outcome.document.to_bytes() == b'{"x":1E2, "model" : "small" ,"messages":[]}'
    assert (outcome.model, outcome.upstream, outcome.added) == ("small", None, ())
    assert outcome.detail == (("rule", 1), ("model", "small"))


def test_duplicated_models_all_become_the_chosen_one() -> None:
    document = Document.parse(b'{"model":"a","model":"big","messages":[]}')
    assert follow(document, Rule(model="é")).document.value("model") == "é"
    assert b'"a"' not in follow(document, Rule(model="small")).document.to_bytes()


def test_another_upstream_leaves_the_body_alone() -> None:
    document = asking()
    outcome = follow(document, Rule(upstream="house"))
    assert (outcome.document, outcome.model, outcome.upstream) == (document, None, "house")
    assert outcome.status is StepStatus.APPLIED


def test_the_first_rule_that_holds_decides() -> None:
    rules = (
        Rule(When(keywords=("contract",)), keep=True),
        Rule(When(keywords=("hi", "contract")), model="small"),
        Rule(model="other"),
    )
    assert follow(asking("a contract"), *rules).detail == (("rule", 1),)
    assert follow(asking("a contract"), *rules).status is StepStatus.UNCHANGED
    assert follow(asking("hi"), *rules).model == "small"
    assert follow(asking("else"), *rules).model == "other"


def test_a_request_that_is_there_already_stays() -> None:
    document = asking()
    outcome = follow(document, Rule(model="big"))
    assert (outcome.document, outcome.status) == (document, StepStatus.UNCHANGED)
    assert outcome.detail == (("rule", 1),)


def test_without_a_rule_nothing_happens() -> None:
    document = asking()
    assert follow(document, Rule(When(tools=True), model="small")) == Outcome(document, StepStatus.UNCHANGED)


@pytest.mark.parametrize("dialect", [EMBEDDINGS, MODERATIONS])
def test_answers_that_do_not_compare_keep_their_model(dialect: Dialect) -> None:
    outcome = follow(body(model="big", input="a"), Rule(model="small"), dialect=dialect)
    assert (outcome.status, outcome.model) == (StepStatus.SKIPPED, None)


@pytest.mark.parametrize("raw", [b"{}", b'{"model":null}', b'{"model":""}', b'{"model":["big"]}'])
def test_a_request_without_a_model_names_none_afterwards(raw: bytes) -> None:
    outcome = follow(Document.parse(raw), Rule(model="small"))
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, "the request names no model")


def test_a_model_that_refuses_what_the_caller_sent_is_not_chosen() -> None:
    outcome = follow(asking(temperature=0.1), Rule(When(tools=False), model="o3"), Rule(model="small"))
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, "o3 refuses the caller's temperature")


BOUND = "what the request refers to exists at its own upstream only"


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (RESPONSES, {"previous_response_id": "resp_1"}),
        (RESPONSES, {"conversation": {"id": "conv_1"}}),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}),
        (RESPONSES, {"input": [{"id": "msg_1"}, {"role": "user", "content": "hi"}]}),
        (RESPONSES, {"input": [{"id": "ig_1", "type": "image_generation_call", "status": "completed"}]}),
        (RESPONSES, {"input": [{"type": "reasoning", "id": "rs", "encrypted_content": "g", "summary": []}]}),
        (RESPONSES, {"input": [{"type": "reasoning", "id": "rs", "summary": []}]}),
        (RESPONSES, {"input": [{"type": "compaction", "encrypted_content": "g"}]}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]}),
        (RESPONSES, {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}),
        (RESPONSES, {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}),
        (RESPONSES, {"tools": [{"type": "code_interpreter", "container": {"file_ids": ["file-1"]}}]}),
        (RESPONSES, {"tools": [{"type": "mcp", "connector_id": "connector_gmail"}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]}),
        (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
        (MESSAGES, {"container": "c_1"}),
        (MESSAGES, {"container": {"skills": [{"type": "anthropic", "skill_id": "pptx"}]}}),
        (
            MESSAGES,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}],
                    }
                ]
            },
        ),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]},
        ),
    ],
)
def test_what_exists_at_one_upstream_stays_there(dialect: Dialect, fields: dict[str, Any]) -> None:
    document = body(model="big", **fields)
    spelt = document.to_bytes().replace(b"file_id", b"file\\u005fid").replace(b'"id"', b'"\\u0069d"')
    for each in (document, Document.parse(spelt)):
        for rule in (Rule(upstream="house"), Rule(model="small", upstream="house")):
            outcome = follow(each, rule, dialect=dialect)
            assert (outcome.document, outcome.status, outcome.reason) == (each, StepStatus.SKIPPED, BOUND)
        assert follow(each, Rule(model="small"), dialect=dialect).model == "small"


FUNCTION = {
    "type": "function",
    "name": "open",
    "parameters": {"properties": {"file_id": {"type": "string"}, "container": {"id": "x"}}},
}


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (RESPONSES, {"previous_response_id": None, "conversation": None, "prompt": None}),
        (RESPONSES, {"input": [{"role": "user", "content": 'the "file_id" of item_reference'}]}),
        (RESPONSES, {"input": [{"id": "msg_1", "role": "assistant", "content": "hi"}]}),
        (RESPONSES, {"input": [{"type": "function_call", "id": "fc", "arguments": '{"file_id": "f"}'}]}),
        (RESPONSES, {"input": [{"type": "image_generation_call", "id": "ig", "result": "AAAA"}]}),
        (RESPONSES, {"tools": [FUNCTION]}),
        (RESPONSES, {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}),
        (CHAT, {"messages": [{"role": "assistant", "audio": None}], "prompt": {"id": "x"}}),
        (
            MESSAGES,
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "input": {"file_id": "mine"}}]}
                ]
            },
        ),
    ],
)
def test_what_only_looks_like_an_id_binds_nothing(dialect: Dialect, fields: dict[str, Any]) -> None:
    document = body(model="big", **fields)
    assert follow(document, Rule(upstream="house"), dialect=dialect).upstream == "house"


def test_a_fine_tuned_model_stays_where_it_was_made_unless_another_one_answers() -> None:
    document = body(model="ft:gpt-4o:org::abc", messages=[])
    outcome = follow(document, Rule(upstream="house"))
    assert (outcome.status, outcome.upstream) == (StepStatus.SKIPPED, None)
    assert follow(document, Rule(upstream="house", model="small")).upstream == "house"


def test_where_the_path_names_the_model_nothing_is_chosen() -> None:
    known = StepContext(CHAT, "big", "azure", BytesAsTokens(), names_model=True)
    outcome = apply(asking(), Config((Rule(model="small"),)), known)
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, "the path names the model")


@pytest.mark.parametrize(
    "content",
    [
        [{"type": ["q"]}, {"type": "image_url"}],
        [{"type": {"a": 1}}, {"type": "image_url"}],
        [{"type": "tool_result", "content": [{"type": []}, {"type": "image_url"}]}],
        [[], None, 1, {"type": "image_url"}],
    ],
)
def test_odd_types_hide_no_image(content: list[Any]) -> None:
    document = body(model="big", messages=[{"role": "user", "content": content}])
    assert chosen(document, When(images=True))
    spelt = document.to_bytes().replace(b"image_url", b"image\\u005furl")
    assert chosen(Document.parse(spelt), When(images=True))


# --- conditions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyword", "text", "holds"),
    [
        ("refund", "I want a REFUND now", True),
        ("refund", "refunding", True),
        ("refund", "re fund", False),
        ("legal*advice", "Legal and tax ADVICE?", True),
        ("legal*advice", "advice, legal", False),
        ("STRASSE", "in der Straße", True),
        ("a.c", "abc", False),
        ("(a+)+$", "a" * 40 + "b", False),
        ("東京", "注文は東京へ", True),
    ],
)
def test_keywords_are_text_in_the_last_question(keyword: str, text: str, holds: bool) -> None:
    assert chosen(asking(text), When(keywords=(keyword,))) is holds
    assert chosen(asking(text), When(not_keywords=(keyword,))) is not holds


def test_keywords_are_not_looked_for_elsewhere() -> None:
    messages = [
        {"role": "system", "content": "refund"},
        {"role": "user", "content": "refund?"},
        {"role": "assistant", "content": "refund!"},
        {"role": "user", "content": "thanks"},
        {"role": "tool", "content": "refund"},
    ]
    assert not chosen(body(model="big", messages=messages), When(keywords=("refund",)))


TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_tools_images_and_formats_are_seen() -> None:
    picture = [{"type": "image_url", "image_url": {"url": "u"}}]
    seeing = body(model="big", messages=[{"role": "user", "content": picture}])
    json_format = asking(response_format={"type": "json_object"})
    for name, with_it in (("tools", asking(tools=TOOLS)), ("images", seeing), ("schema", json_format)):
        for wanted in (True, False):
            assert chosen(with_it, When(**{name: wanted})) is wanted  # type: ignore[arg-type]
            assert chosen(asking(), When(**{name: wanted})) is not wanted  # type: ignore[arg-type]


def test_headers_are_matched_by_pattern_and_presence() -> None:
    headers = {"x-tier": "trial-7"}
    known = StepContext(CHAT, "big", "openai", BytesAsTokens(), frozenset(), headers.get)
    assert chosen(asking(), When(headers={"X-Tier": ("paid", "trial-*")}), known)
    assert chosen(asking(), When(headers={"x-tier": ("*",)}), known)
    assert not chosen(asking(), When(headers={"x-tier": ("trial",)}), known)
    assert not chosen(asking(), When(headers={"x-tier": ("*",), "x-other": ("*",)}), known)
    assert not chosen(asking(), When(headers={"x-tier": ("*",)}))


class Counting(BytesAsTokens):
    """Counts a token per message or character and remembers how many values it was asked about."""

    def __init__(self) -> None:
        self.asked = 0

    def count_message(self, raw: bytes, model: str) -> Figure:
        self.asked += 1
        return Figure(100)

    def count_text(self, text: str, model: str) -> Figure:
        self.asked += 1
        return Figure(len(text))


def sized(turns: int, bounds: TokenBounds) -> tuple[bool, int]:
    """Return whether a conversation of 100 tokens a turn is chosen, and how many turns were counted."""
    counter = Counting()
    messages = [{"role": "user", "content": "x" * 400} for _ in range(turns)]
    known = StepContext(CHAT, "big", "openai", counter)
    return chosen(body(model="big", messages=messages), When(bounds), known), counter.asked


@pytest.mark.parametrize(
    ("turns", "bounds", "holds", "counted"),
    [
        (4, TokenBounds(max=400), True, 4),
        (5, TokenBounds(max=400), False, 5),
        (90, TokenBounds(max=400), False, 5),
        (4, TokenBounds(min=400), True, 4),
        (3, TokenBounds(min=400), False, 3),
        (90, TokenBounds(min=400), True, 4),
        (4, TokenBounds(min=400, max=400), True, 4),
        (90, TokenBounds(min=400, max=800), False, 9),
    ],
)
def test_turns_are_counted_only_as_far_as_the_bounds_ask(
    turns: int, bounds: TokenBounds, holds: bool, counted: int
) -> None:
    assert sized(turns, bounds) == (holds, counted)


def test_a_length_that_decides_saves_the_count() -> None:
    assert sized(1, TokenBounds(max=100_000)) == (True, 0)
    assert sized(1, TokenBounds(min=100_000)) == (False, 0)


def test_conditions_that_fail_first_save_the_count() -> None:
    counter = Counting()
    known = StepContext(CHAT, "big", "openai", counter)
    assert not chosen(asking("x" * 500), When(TokenBounds(max=200), tools=True), known)
    assert counter.asked == 0


def test_a_tool_loop_weighs_what_its_question_weighed() -> None:
    question = [{"role": "user", "content": "Stock?"}]
    loop: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]},
        {"role": "tool", "tool_call_id": "a", "content": "x" * 90_000},
    ]
    small = When(TokenBounds(max=100))
    for messages in (question, question + loop, question + loop * 9):
        assert chosen(body(model="big", messages=messages), small)


def test_prompts_and_plain_input_are_counted_as_text() -> None:
    text = When(TokenBounds(min=50, max=60))
    for dialect, fields in ((COMPLETIONS, {"prompt": "x" * 55}), (RESPONSES, {"input": "x" * 55})):
        known = StepContext(dialect, "big", "openai", Counting())
        assert chosen(body(model="big", **fields), text, known)


def test_anthropic_questions_count_too() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "refund"}]}
    document = body(model="big", messages=[{"role": "user", "content": "hi"}, use, result])
    assert not chosen(document, When(keywords=("refund",)), context(MESSAGES, model="big"))
    assert chosen(document, When(keywords=("hi",)), context(MESSAGES, model="big"))


# --- configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Config(()), "rules must name"),
        (lambda: Config((Rule(model="a"), Rule(model="b"))), "never asked"),
        (Rule, "needs model"),
        (lambda: Rule(model="a", keep=True), "keep: true alone"),
        (lambda: Rule(model=""), "model must"),
        (lambda: Rule(model=" a"), "model must"),
        (lambda: Rule(model="a\r\nX-Evil: 1"), "model must"),
        (lambda: Rule(model="a" * 201), "model must"),
        (TokenBounds, "tokens needs"),
        (lambda: TokenBounds(min=-1), "negative"),
        (lambda: TokenBounds(min=2, max=1), "tokens.min"),
        (lambda: When(keywords=("a", " ")), "keywords must"),
        (lambda: When(not_keywords=("*",)), "not_keywords must"),
        (lambda: When(headers={"x": ()}), "headers must"),
    ],
)
def test_what_cannot_be_meant_is_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_its_targets_are_known_to_whoever_loads_it() -> None:
    config = Config((Rule(When(tools=True), model="a", upstream="u"), Rule(model="b")))
    assert STEP.models(config) == frozenset({"a", "b"})
    assert STEP.upstreams(config) == frozenset({"u"})
    assert STEP.shorthand == "rules"
    assert STEP.counts_tokens
    assert not STEP.enforces(config)
