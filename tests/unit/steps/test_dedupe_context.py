from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.core.price import Price, PromptCache, Rates
from proxy.dialects import Dialect, dialect_for_path
from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES
from proxy.observe.prefixes import PrefixMemory
from proxy.steps import trim_history
from proxy.steps.dedupe_context import STEP, Config, apply
from proxy.steps.step import Outcome, StepContext
from proxy.tokens.fixed import FixedCounter
from tests.support.conversations import FIELDS, conversation
from tests.support.legality import problems
from tests.unit.steps.contexts import body

A = "The bridge opened in 1932 and carries eight lanes of traffic and two railway tracks across the harbour."
B = "Its main span is 503 metres long, and the top of the arch stands 134 metres above the water."
C = "Painters began at one end and, once they had come to the other, began again with a new coat of grey."
TWICE = f"[1] {A}\n[2] {A}\n[3] {B}\n\nWhy?"
ONCE = f"[1] {A}\n[3] {B}\n\nWhy?"
MARK = {"cache_control": {"type": "ephemeral"}}


def context(dialect: Dialect = CHAT, model: str = "gpt-4o") -> StepContext:
    return StepContext(dialect, model, "openai", FixedCounter())


def run(document: Document, dialect: Dialect = CHAT, **options: Any) -> Outcome:
    return apply(document, Config(**options), context(dialect))


def says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


def messages(outcome: Outcome, field: str = "messages") -> Any:
    return outcome.document.value(field)


# --- where texts are ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "fields", "path"),
    [
        (CHAT, {"messages": [says("system", "s"), says("user", TWICE)]}, ("messages", 1, "content")),
        (
            CHAT,
            {"messages": [says("user", [{"type": "image_url"}, {"type": "text", "text": TWICE}])]},
            ("messages", 0, "content", 1, "text"),
        ),
        (RESPONSES, {"input": TWICE}, ("input",)),
        (
            RESPONSES,
            {"input": [says("user", [{"type": "input_text", "text": TWICE}])]},
            ("input", 0, "content", 0, "text"),
        ),
        (MESSAGES, {"system": "s", "messages": [says("user", TWICE)]}, ("messages", 0, "content")),
        (COMPLETIONS, {"prompt": TWICE}, ("prompt",)),
        (COMPLETIONS, {"prompt": ["x", TWICE]}, ("prompt", 1)),
    ],
)
def test_each_api_loses_the_repetition_and_nothing_else(
    dialect: Dialect, fields: dict[str, Any], path: tuple[str | int, ...]
) -> None:
    document = body(model="gpt-4o", **fields, user="ü")
    outcome = run(document, dialect)
    assert outcome.status is StepStatus.APPLIED
    assert outcome.document.to_bytes() == document.set_path(path, json.dumps(ONCE).encode()).to_bytes()
    assert dict(outcome.detail)["duplicates"] == 1


def test_prompts_of_one_call_have_nothing_to_do_with_each_other() -> None:
    document = body(prompt=[f"[1] {A}\n\nOne?", f"[1] {A}\n\nTwo?"])
    assert run(document, COMPLETIONS, scope="all").status is StepStatus.UNCHANGED


@pytest.mark.parametrize(
    ("dialect", "fields", "reason"),
    [
        (EMBEDDINGS, {"input": [TWICE, TWICE]}, "this API reads no passages"),
        (CHAT, {"messages": TWICE}, "messages is no list of turns"),
        (COMPLETIONS, {"prompt": [[1, 2], list(range(90))]}, "prompt is no text"),
        (RESPONSES, {"input": {"a": TWICE}}, "input is no text"),
    ],
)
def test_what_has_no_passages_says_why(dialect: Dialect, fields: dict[str, Any], reason: str) -> None:
    outcome = run(body(**fields), dialect)
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, reason)


def test_what_a_model_wrote_is_never_touched() -> None:
    turns = [
        says("user", "hi"),
        says("assistant", TWICE),
        says("user", "again"),
        says("assistant", [{"type": "thinking", "thinking": TWICE, "signature": "s"}]),
        says("user", "and again"),
    ]
    for scope in ("last_user", "all"):
        assert run(body(messages=turns), MESSAGES, scope=scope).status is StepStatus.UNCHANGED


# --- scope -------------------------------------------------------------------------------------------------

TOOL_RESULT = json.dumps({"hits": [{"text": A, "score": 0.9}, {"text": C, "score": 0.8}]})
LONG_CHAT = [
    says("system", f"<doc>{B}</doc>"),
    says("user", TWICE),
    says("assistant", "Because."),
    says("tool", TOOL_RESULT, tool_call_id="c"),
    says("user", f"[1] {B}\n[2] {C}\n\nAnd why that?"),
]


def test_the_last_message_is_compared_with_itself_only() -> None:
    outcome = run(body(messages=LONG_CHAT))
    expected = [*LONG_CHAT]
    expected[1] = says("user", ONCE)
    assert messages(outcome) == expected


def test_everything_is_compared_with_what_stands_before_it() -> None:
    outcome = run(body(messages=LONG_CHAT), scope="all")
    expected = [*LONG_CHAT]
    expected[1] = says("user", f"[1] {A}\n\nWhy?")
    expected[3] = says("tool", json.dumps({"hits": [{"text": C, "score": 0.8}]}), tool_call_id="c")
    expected[4] = says("user", "And why that?")
    assert messages(outcome) == expected


def test_system_text_beside_the_messages_comes_first() -> None:
    document = body(
        system=[{"type": "text", "text": f"<doc>{A}</doc>"}],
        messages=[says("user", f"<doc>{A}</doc><doc>{B}</doc> Why?")],
    )
    outcome = run(document, MESSAGES, scope="all")
    assert outcome.document.value("system") == document.value("system")
    assert messages(outcome) == [says("user", f"<doc>{B}</doc> Why?")]


def test_tool_results_beside_a_persons_words_are_not_the_persons() -> None:
    turn = says(
        "user",
        [
            {"type": "tool_result", "tool_use_id": "c", "content": f"<doc>{A}</doc><doc>{A}</doc>"},
            {"type": "text", "text": f"<doc>{B}</doc><doc>{B}</doc>"},
        ],
    )
    (edited,) = messages(run(body(messages=[turn]), MESSAGES))
    assert edited["content"][0] == turn["content"][0]
    assert edited["content"][1]["text"] == f"<doc>{B}</doc>"


# --- parts of a message ------------------------------------------------------------------------------------


def texts(*said: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in said]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((A, A, "Why?"), (A, "Why?")),
        ((A, B, A, B, "Why?"), (A, B, "Why?")),
        ((A, A), (A, A)),
        ((A, "Why?", A), (A, "Why?", A)),
        ((A, A + "!", "Why?"), (A, A + "!", "Why?")),
        (("short", "short", "Why?"), ("short", "short", "Why?")),
        ((f"<doc>{A}</doc>", f"<doc>{A}</doc>", "Why?"), (f"<doc>{A}</doc>", "Why?")),
        ((f"<doc>{A}</doc>", f"<doc>{A}</doc>"), (f"<doc>{A}</doc>",)),
    ],
)
def test_a_part_that_is_a_repetition_goes_as_a_whole(
    said: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    outcome = run(body(messages=[says("user", texts(*said))]))
    assert messages(outcome) == [says("user", texts(*expected))]


def test_no_message_and_no_result_is_left_empty() -> None:
    turns = [
        says("user", f"<doc>{A}</doc>"),
        says("assistant", "Yes?"),
        says("user", f"<doc>{A}</doc>"),
        says("assistant", "Well?"),
        says("user", texts(f"<doc>{A}</doc>", f"<doc>{A}</doc>")),
    ]
    outcome = run(body(messages=turns), scope="all")
    assert outcome.status is StepStatus.UNCHANGED


def test_equal_parts_of_different_messages_are_no_repetition() -> None:
    turns = [says("user", texts(A, "One?")), says("assistant", "1"), says("user", texts(A, "Two?"))]
    assert run(body(messages=turns), scope="all").status is StepStatus.UNCHANGED


# --- cached prefixes ---------------------------------------------------------------------------------------


def test_what_the_caller_marked_as_cached_is_left_alone_but_counts_as_said() -> None:
    marked = says("user", [{"type": "text", "text": TWICE} | MARK])
    turns = [marked, says("assistant", "x"), says("user", f"<doc>{A}</doc><doc>{C}</doc> Why?")]
    assert messages(run(body(messages=turns), MESSAGES, scope="all")) == [
        *turns[:2],
        says("user", f"<doc>{C}</doc> Why?"),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {
            "messages": [
                says("user", TWICE),
                says("assistant", "x"),
                says("user", [{"type": "text", "text": TWICE} | MARK]),
            ]
        },
        {"messages": [says("user", TWICE)], **MARK},
    ],
)
def test_a_request_that_is_marked_to_its_end_is_left_alone(fields: dict[str, Any]) -> None:
    outcome = run(body(**fields), MESSAGES)
    assert outcome.reason == "all of it is in a prefix that the caller marked as cached"


def test_a_marked_system_text_stays_and_what_follows_it_does_not_have_to() -> None:
    document = body(
        system=[{"type": "text", "text": f"<doc>{A}</doc><doc>{A}</doc>"} | MARK],
        messages=[says("user", f"<doc>{A}</doc><doc>{B}</doc> Why?")],
    )
    outcome = run(document, MESSAGES, scope="all")
    assert outcome.document.get("system") == document.get("system")
    assert messages(outcome) == [says("user", f"<doc>{B}</doc> Why?")]


AUTOMATIC = Price(Rates(4, 20, 0.4, 5), cache=PromptCache(True, 1024, 600))


class OnePrice:
    """A price table of one row."""

    def price(self, provider: str, model: str) -> Price | None:
        return AUTOMATIC


class Desk:
    """A Weir that remembers, with a clock to be moved."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = PrefixMemory(self.clock)

    def send(self, turns: list[Any], trims: bool = False, dedupes: bool = True) -> Outcome:
        """Return the outcome of the last step; what was sent is remembered when all have run."""
        known = StepContext(
            CHAT,
            "m",
            "openai",
            FixedCounter(),
            prices=OnePrice(),
            prefixes=self.memory.scoped(b"s" * 16),
        )
        outcomes: list[Outcome] = []
        document = body(messages=turns)
        if trims:
            outcomes.append(trim_history.apply(document, trim_history.Config(budget=250), known))
        if dedupes:
            outcomes.append(apply(document, Config(scope="all"), known))
        for outcome in outcomes:
            if outcome.sent is not None:
                self.memory.remember(b"s" * 16, outcome.sent)
        return outcomes[-1]


MORE = [says("assistant", "Because."), says("user", f"<doc>{B}</doc><doc>{C}</doc> And then?")]


def test_what_was_sent_shorter_is_sent_shorter_again() -> None:
    desk = Desk()
    first = desk.send([says("user", TWICE)])
    second = desk.send([says("user", TWICE), *MORE])
    assert messages(second)[:1] == messages(first) == [says("user", ONCE)]


def test_a_conversation_that_is_cached_as_the_caller_wrote_it_stays_so() -> None:
    """As when the step is switched on while people talk."""
    desk = Desk()
    desk.send([says("user", TWICE)], trims=True, dedupes=False)
    for _ in range(3):
        outcome = desk.send([says("user", TWICE), *MORE])
        kept = [says("user", TWICE), MORE[0], says("user", f"<doc>{C}</doc> And then?")]
        assert messages(outcome) == kept
        desk.clock.advance(100)
    desk.clock.advance(700)
    assert messages(desk.send([says("user", TWICE), *MORE]))[0] == says("user", ONCE), "it is forgotten there"


def test_trimming_before_it_does_not_look_like_sending_as_written() -> None:
    desk = Desk()
    for turns in ([says("user", TWICE)], [says("user", TWICE), *MORE]):
        assert messages(desk.send(turns, trims=True))[0] == says("user", ONCE)
        assert messages(desk.send(turns, trims=True))[0] == says("user", ONCE), "and sent once more"


# --- figures and bounds ------------------------------------------------------------------------------------


def test_it_says_what_it_saved() -> None:
    outcome = run(body(model="m", messages=[says("user", TWICE)], tools=[1]))
    count = FixedCounter().count_message
    before, after = (count(json.dumps(says("user", text)).encode(), "m").tokens for text in (TWICE, ONCE))
    assert outcome.detail == (("saved", before - after), ("duplicates", 1))
    assert outcome.tokens == (before, after)


def test_an_edit_that_saves_no_token_is_not_made() -> None:
    class One:
        def count_text(self, text: str, model: str) -> Any:
            return FixedCounter().count_text("", model)

        def count_message(self, raw: bytes, model: str) -> Any:
            return FixedCounter().count_text("", model)

    known = StepContext(CHAT, "m", "openai", One())
    document = body(messages=[says("user", TWICE)])
    assert apply(document, Config(), known).document is document


def test_short_requests_are_not_even_read() -> None:
    class Counts:
        def count_text(self, text: str, model: str) -> Any:
            raise AssertionError

        count_message = count_text

    known = StepContext(CHAT, "m", "openai", Counts())  # type: ignore[arg-type]
    assert apply(body(messages=[says("user", "hi")]), Config(), known).status is StepStatus.UNCHANGED


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"markers": ("a",), "separator": "b"}, "exclude"),
        ({"markers": ("*",)}, "markers"),
        ({"markers": ("a", " ")}, "markers"),
        ({"separator": "**"}, "separator"),
        ({"separator": ""}, "separator"),
        ({"min_chars": 0}, "min_chars"),
        ({"similarity": 0.2}, "similarity"),
        ({"similarity": 1.1}, "similarity"),
        ({"similarity": float("nan")}, "similarity"),
        ({"top_k": 0}, "top_k"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Config(**options)


def test_it_may_count_tokens_and_depends_on_more_than_single_fields() -> None:
    assert STEP.counts_tokens
    assert STEP.reads(Config()) is None


# --- whatever the request is -------------------------------------------------------------------------------

PASSAGES = [A, B, C, A.replace("eight", "several"), f"{A}\n\n{B}", B.upper(), "x", C.replace("grey", "red")]
SHAPES: dict[str, Callable[[list[str]], str]] = {
    "labels": lambda texts: "\n".join(f"[{number}] {text}" for number, text in enumerate(texts, 1)),
    "tags": lambda texts: "".join(
        f"<document id='{n}'>\n{text}\n</document>" for n, text in enumerate(texts)
    ),
    "rules": "\n---\n".join,
    "json": lambda texts: json.dumps([{"text": text, "score": len(text) % 7} for text in texts]),
    "strings": lambda texts: json.dumps({"hits": texts}),
}
QUESTION = "\n\nHow old is the bridge, and why?"


def said(chance: Random) -> str:
    picked = chance.choices(PASSAGES, k=chance.randint(1, 7))
    return "Use these:\n" + SHAPES[chance.choice([*SHAPES])](picked) + chance.choice(["", QUESTION])


@settings(max_examples=300)
@given(
    seed=st.integers(0, 10**9),
    options=st.fixed_dictionaries(
        {
            "scope": st.sampled_from(["last_user", "all"]),
            "similarity": st.sampled_from([0.5, 0.8, 1]),
            "min_chars": st.sampled_from([1, 80]),
        },
        optional={"top_k": st.integers(1, 3), "min_score": st.sampled_from([0.0, 3.0])},
    ),
)
def test_a_growing_conversation_keeps_its_beginning(seed: int, options: dict[str, Any]) -> None:
    chance = Random(seed)
    turns = [says("system", said(chance))]
    before: list[Any] = []
    for _ in range(4):
        turns.append(says("user", said(chance)))
        document = body(model="m", messages=turns)
        outcome = run(document, **options)
        kept = messages(outcome)
        assert len(kept) == len(turns)
        assert kept[: len(before)] == before, "what was sent stays what it was"
        assert QUESTION not in turns[-1]["content"] or kept[-1]["content"].endswith(QUESTION.strip())
        assert apply(outcome.document, Config(**options), context()).document is outcome.document
        if outcome.status is StepStatus.APPLIED:
            assert outcome.tokens is not None
            assert outcome.tokens[0] - outcome.tokens[1] == outcome.detail[0][1]
            assert len(outcome.document.to_bytes()) < len(document.to_bytes())
        before = kept
        turns.append(says("assistant", said(chance)))


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_whatever_goes_a_conversation_stays_legal(dialect: str) -> None:
    chance = Random(11)
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}[dialect]
    known = dialect_for_path(path)
    assert known is not None
    applied = 0
    for seed in range(300):
        field = FIELDS[dialect]
        request = json.loads(conversation(dialect, Random(seed)))
        for item in request[field]:
            if item.get("role") == "user" and isinstance(item["content"], str):
                item["content"] = said(chance)
            elif isinstance(item.get("output"), str):
                item["output"] = said(chance)
        raw = json.dumps(request).encode()
        expected = problems(dialect, raw)
        outcome = run(Document.parse(raw), known, scope="all")
        assert problems(dialect, outcome.document.to_bytes()) == expected
        applied += outcome.status is StepStatus.APPLIED
    assert applied > 100
