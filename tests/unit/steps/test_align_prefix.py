from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.core.price import Price, PromptCache, Rates
from proxy.dialects import DIALECTS, Dialect
from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES
from proxy.sim.chat_rules import check_messages
from proxy.sim.messages_rules import check_messages_request
from proxy.sim.responses_rules import check_responses
from proxy.steps.align_prefix import STEP, Config, apply
from proxy.steps.step import Outcome, StepContext
from proxy.tokens.fixed import FixedCounter
from tests.support.conversations import FIELDS, conversation
from tests.support.legality import problems
from tests.unit.steps.contexts import body

DATE = "Today is 2026-11-30."
LONG = "You answer from the handbook of the parcel service and from nothing else. " * 80
"""1,480 tokens to the counter of these tests."""
SHORT = "You answer from the handbook. " * 40
HI = {"role": "user", "content": "hi"}
POINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}
MARK = {"cache_control": {"type": "ephemeral"}}


class Prices:
    """A price table of one row."""

    def __init__(self, minimum_tokens: int = 1024, write: float = 5.0) -> None:
        cache = PromptCache(is_automatic=True, minimum_tokens=minimum_tokens, lifetime_seconds=1800)
        self._price = Price(Rates(4, 20, 0.4, write), cache=cache)

    def price(self, provider: str, model: str) -> Price | None:
        return self._price


def run(
    document: Document,
    dialect: Dialect = CHAT,
    model: str = "gpt-5.6-sol",
    provider: str = "openai",
    refused: frozenset[str] = frozenset(),
    prices: Prices | None = None,
    **options: Any,
) -> Outcome:
    known = StepContext(dialect, model, provider, FixedCounter(), refused, prices=prices)
    outcome = apply(document, Config(**options), known)
    again = apply(outcome.document, Config(**options), known)
    assert again.document is outcome.document, "applying twice equals once"
    return outcome


def claude(document: Document, **known: Any) -> Outcome:
    return run(document, MESSAGES, "claude-sonnet-5", "anthropic", **known)


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def chat(*turns: dict[str, Any], **more: Any) -> Document:
    return body(model="m", messages=list(turns), **more)


def detail(outcome: Outcome) -> dict[str, Any]:
    return dict(outcome.detail)


def messages(outcome: Outcome) -> Any:
    return outcome.document.value("messages")


# --- moving lines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["vllm", "generic", "gemini", "mistral"])
def test_lines_are_moved_for_every_provider_and_nothing_else_is_done(provider: str) -> None:
    document = chat(system(f"{DATE}\n\n{LONG}"), HI, user="ü")
    outcome = run(document, provider=provider, volatile=("date",))
    assert (
        outcome.document.to_bytes()
        == document.set_path(("messages", 0, "content"), json.dumps(f"{LONG}\n\n{DATE}").encode()).to_bytes()
    )
    assert outcome.detail == (("moved", 1),)


@pytest.mark.parametrize(
    ("dialect", "fields", "expected"),
    [
        (
            CHAT,
            {"messages": [system(DATE), system(LONG), HI]},
            {"messages": [system(f"{LONG}\n\n{DATE}"), HI]},
        ),
        (
            CHAT,
            {"messages": [system([{"type": "text", "text": DATE}, {"type": "text", "text": LONG}]), HI]},
            {"messages": [system([{"type": "text", "text": f"{LONG}\n\n{DATE}"}]), HI]},
        ),
        (
            RESPONSES,
            {"instructions": f"{DATE}\n\n{LONG}", "input": "hi"},
            {"instructions": f"{LONG}\n\n{DATE}"},
        ),
        (
            RESPONSES,
            {"instructions": f"{DATE}\n\nBe kind.", "input": [{"role": "developer", "content": LONG}, HI]},
            {
                "instructions": "Be kind.",
                "input": [{"role": "developer", "content": f"{LONG}\n\n{DATE}"}, HI],
            },
        ),
        (MESSAGES, {"system": f"{DATE}\n\n{LONG}", "messages": [HI]}, {"system": f"{LONG}\n\n{DATE}"}),
        (
            MESSAGES,
            {
                "system": [{"type": "text", "text": f"{DATE}\n\nBe kind."}, {"type": "text", "text": LONG}],
                "messages": [HI],
            },
            {"system": [{"type": "text", "text": "Be kind."}, {"type": "text", "text": f"{LONG}\n\n{DATE}"}]},
        ),
    ],
)
def test_lines_go_behind_all_of_the_system_text(
    dialect: Dialect, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    outcome = run(body(model="m", **fields), dialect, provider="vllm", volatile=("date",))
    assert {name: outcome.document.value(name) for name in fields} == fields | expected


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (CHAT, {"messages": [system(f"{LONG}\n\n{DATE}"), HI]}),
        (CHAT, {"messages": [HI, system(f"{DATE}\n\n{LONG}")]}),
        (CHAT, {"messages": [{"role": "user", "content": f"{DATE}\n\n{LONG}"}]}),
        (CHAT, {"messages": [system(DATE), HI]}),
        (CHAT, {"messages": [HI]}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [system(None), system(7), system([1, {"type": "text"}])]}),
        (RESPONSES, {"instructions": DATE, "input": [system(LONG), HI]}),
        (RESPONSES, {"input": "hi"}),
        (MESSAGES, {"messages": [HI]}),
    ],
)
def test_where_nothing_is_out_of_order_nothing_moves(dialect: Dialect, fields: dict[str, Any]) -> None:
    document = body(model="m", **fields)
    outcome = run(document, dialect, provider="vllm", volatile=("date",))
    assert outcome.document is document
    assert outcome.status is StepStatus.UNCHANGED


def test_the_beginning_is_the_same_on_any_day() -> None:
    days = [
        run(chat(system(f"Today is 2026-11-{day}.\n\n{LONG}"), HI), volatile=("date",)).document.to_bytes()
        for day in (29, 30)
    ]
    common = next(index for index, (one, two) in enumerate(zip(*days, strict=True)) if one != two)
    assert LONG.encode() in days[0][:common]
    assert days[0][-60:] == days[1][-60:], "and so is the key"


# --- marks -------------------------------------------------------------------------------------------------


def test_a_long_system_text_is_marked_for_models_that_take_marks() -> None:
    outcome = run(chat(system(LONG), HI))
    assert messages(outcome) == [system([{"type": "text", "text": LONG} | POINT]), HI]
    assert detail(outcome)["breakpoints"] == 1


def test_the_mark_stands_before_what_changes() -> None:
    outcome = run(chat(system(f"{DATE}\n\n{LONG}"), HI), volatile=("date",))
    assert messages(outcome)[0]["content"] == [
        {"type": "text", "text": LONG} | POINT,
        {"type": "text", "text": f"\n\n{DATE}"},
    ]
    outcome = claude(body(system=f"{LONG}\n\n{DATE}", messages=[HI]), volatile=("date",))
    assert outcome.document.value("system") == [
        {"type": "text", "text": LONG} | MARK,
        {"type": "text", "text": f"\n\n{DATE}"},
    ]
    assert detail(outcome) == {"breakpoints": 1}


@pytest.mark.parametrize(
    ("known", "turns"),
    [
        ({"model": "gpt-5.5"}, [system(LONG), HI]),
        ({"model": "gpt-4o"}, [system(LONG), HI]),
        ({"provider": "azure"}, [system(LONG), HI]),
        ({"breakpoints": False}, [system(LONG), HI]),
        ({"refused": frozenset({"prompt_cache_breakpoint"})}, [system(LONG), HI]),
        ({"prices": Prices(minimum_tokens=4096)}, [system(LONG), HI]),
        ({}, [system(SHORT), HI]),
        ({}, [HI, system(LONG)]),
        ({}, [{"role": "user", "content": LONG}]),
    ],
)
def test_no_mark_where_it_is_refused_or_says_nothing(known: dict[str, Any], turns: list[Any]) -> None:
    outcome = run(chat(*turns), **known)
    assert messages(outcome) == turns
    assert set(detail(outcome)) <= {"key"}


def test_tools_count_for_the_length_of_a_prefix() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": LONG}}]
    assert detail(run(chat(system(SHORT), HI, tools=tools)))["breakpoints"] == 1


def test_instructions_of_responses_carry_no_mark() -> None:
    outcome = run(body(instructions=LONG, input=[HI]), RESPONSES)
    assert set(detail(outcome)) == {"key"}
    outcome = run(
        body(instructions="Be kind.", input=[{"role": "developer", "content": LONG}, HI]), RESPONSES
    )
    assert outcome.document.value("input")[0]["content"] == [{"type": "input_text", "text": LONG} | POINT]


def test_claude_gets_its_mark_behind_system_text_or_tools() -> None:
    outcome = claude(body(system=LONG, messages=[HI]))
    assert outcome.document.value("system") == [{"type": "text", "text": LONG} | MARK]
    tools = [{"name": "a"}, {"name": "b", "description": LONG}]
    outcome = claude(body(tools=tools, messages=[HI]))
    assert outcome.document.value("tools") == [tools[0], tools[1] | MARK]
    assert outcome.added == ()


def test_a_conversation_that_goes_on_is_marked_at_its_end() -> None:
    said = [HI, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    outcome = claude(body(system=LONG, messages=said))
    assert detail(outcome) == {"breakpoints": 2}
    assert messages(outcome) == [
        *said[:2],
        {"role": "user", "content": [{"type": "text", "text": "b"} | MARK]},
    ]
    long_turns = [HI, {"role": "assistant", "content": LONG}, {"role": "user", "content": "b"}]
    assert detail(claude(body(messages=long_turns))) == {"breakpoints": 1}


@pytest.mark.parametrize(
    ("options", "turns"),
    [
        ({}, [HI]),
        ({"one_shot": True}, [HI, {"role": "assistant", "content": "a"}, HI]),
        ({}, [HI, {"role": "assistant", "content": "a"}]),
        ({}, [HI, {"role": "assistant", "content": "a"}, {"role": "user", "content": []}]),
    ],
)
def test_others_are_not(options: dict[str, Any], turns: list[Any]) -> None:
    """They may be over with this request; then writing them to the cache would only cost more."""
    outcome = claude(body(system=LONG, messages=turns), **options)
    assert detail(outcome) == {"breakpoints": 1}
    assert messages(outcome) == turns


def test_behind_the_time_of_day_nothing_is_marked() -> None:
    turns = [HI, {"role": "assistant", "content": "a"}, HI]
    for line, count in (("It is 18:05", 1), (DATE, 2)):
        outcome = claude(body(system=f"{LONG}\n\n{line}", messages=turns), volatile=("date", "time"))
        assert detail(outcome) == {"breakpoints": count}


@pytest.mark.parametrize(
    "fields",
    [
        {"system": [{"type": "text", "text": f"{DATE}\n\n{LONG}"} | MARK], "messages": [HI]},
        {
            "system": f"{DATE}\n\n{LONG}",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"} | MARK]}],
        },
        {"system": f"{DATE}\n\n{LONG}", "messages": [HI], "tools": [{"name": "a"} | MARK]},
        {"system": f"{DATE}\n\n{LONG}", "messages": [HI]} | MARK,
    ],
)
def test_the_callers_own_marks_win(fields: dict[str, Any]) -> None:
    outcome = claude(body(**fields), volatile=("date",))
    assert (outcome.status, outcome.reason) == (
        StepStatus.SKIPPED,
        "the caller marks its cached prefixes itself",
    )


def test_a_caller_with_breakpoints_still_gets_a_key() -> None:
    turn = system([{"type": "text", "text": f"{DATE}\n\n{LONG}"} | POINT])
    outcome = run(chat(turn, HI), volatile=("date",), one_shot=True)
    assert messages(outcome) == [turn, HI]
    assert outcome.added == ("prompt_cache_key",)


def test_there_are_never_more_than_four_marks() -> None:
    turns = [HI, {"role": "assistant", "content": LONG}, HI]
    outcome = claude(body(system=LONG, tools=[{"name": "a", "description": LONG}], messages=turns))
    assert outcome.document.to_bytes().count(b'"cache_control"') == 2


# --- keys --------------------------------------------------------------------------------------------------


def key(document: Document, dialect: Dialect = CHAT, **known: Any) -> Any:
    return run(document, dialect, **known).document.value("prompt_cache_key")


def test_the_key_follows_from_what_requests_have_in_common() -> None:
    first = key(chat(system(LONG), HI))
    assert first == key(chat(system(LONG), HI, user="other", temperature=1))
    assert first == key(chat(system(LONG), {"role": "user", "content": "other"}), model="gpt-4o")
    assert first == key(chat(system(f"{LONG}\n\n{DATE}"), HI), volatile=("date",))
    assert first != key(chat(system(LONG + "."), HI))
    assert first != key(chat(system(LONG), HI, tools=[{"type": "function"}]))
    assert first.startswith("weir-")
    assert len(first) <= 64


def test_a_conversation_keeps_its_key() -> None:
    turns = [HI]
    keys = set()
    for words in ("a" * 2000, "b", "c"):
        turns += [{"role": "assistant", "content": words}, {"role": "user", "content": words}]
        for first in ([], [system(SHORT)]):
            keys.add((bool(first), key(chat(*first, *turns), requests_per_minute=600)))
    assert len(keys) == 2


def test_busy_routes_get_several_keys_and_all_of_them_are_used() -> None:
    def keys(requests_per_minute: int | None) -> set[Any]:
        return {
            key(
                chat(system(LONG), {"role": "user", "content": f"question {number}"}),
                requests_per_minute=requests_per_minute,
            )
            for number in range(100)
        }

    assert len(keys(None)) == len(keys(15)) == 1
    assert len(keys(16)) == 2
    assert len(keys(60)) == 4


def test_whose_request_it_is_decides_about_the_share_if_the_caller_says_it() -> None:
    def of(user: str, question: str) -> Any:
        turn = {"role": "user", "content": question}
        return key(chat(system(LONG), turn, safety_identifier=user), requests_per_minute=1500)

    assert of("ann", "1") == of("ann", "2")
    assert len({of(str(number), "1") for number in range(50)}) > 20


def test_a_chain_of_responses_keeps_the_key_that_needs_no_history() -> None:
    base = key(body(instructions=LONG, input="hi"), RESPONSES)
    for words in ("a", "b"):
        chained = body(instructions=LONG, input=words, previous_response_id="r")
        assert key(chained, RESPONSES, requests_per_minute=900) == base


@pytest.mark.parametrize(
    ("document", "known"),
    [
        (chat(system(LONG), HI, prompt_cache_key="mine"), {}),
        (chat(system(LONG), HI, prompt_cache_key=None), {}),
        (chat(system(LONG), HI), {"cache_key": False}),
        (chat(system(LONG), HI), {"refused": frozenset({"prompt_cache_key"})}),
        (chat(system(LONG), HI), {"provider": "vllm"}),
        (chat(system("short"), HI), {}),
    ],
)
def test_no_key_where_there_is_one_or_it_is_of_no_use(document: Document, known: dict[str, Any]) -> None:
    outcome = run(document, breakpoints=False, volatile=("date",), **known)
    assert outcome.document is document


# --- requests that are not continued -----------------------------------------------------------------------


@pytest.mark.parametrize("turn", [HI | {"content": LONG}, HI | {"content": "x" * 1024}])
def test_a_one_shot_is_not_written_to_a_cache_that_charges_for_it(turn: dict[str, Any]) -> None:
    outcome = run(chat(turn), one_shot=True)
    assert outcome.document.value("prompt_cache_options") == {"mode": "explicit"}
    assert outcome.added == ("prompt_cache_key", "prompt_cache_options")
    assert b"prompt_cache_breakpoint" not in outcome.document.to_bytes()


def test_what_one_shots_have_in_common_is_marked() -> None:
    outcome = run(chat(system(LONG), HI), one_shot=True)
    assert outcome.document.value("prompt_cache_options") == {"mode": "explicit"}
    assert detail(outcome)["breakpoints"] == 1
    assert "breakpoints" not in detail(run(chat(system(LONG), HI), one_shot=True, breakpoints=False))


@pytest.mark.parametrize(
    "known",
    [
        {"model": "gpt-5.5"},
        {"provider": "azure"},
        {"refused": frozenset({"prompt_cache_options"})},
        {"prices": Prices(write=4.0)},
    ],
)
def test_no_option_where_it_is_refused_or_saves_nothing(known: dict[str, Any]) -> None:
    outcome = run(chat(system(LONG), HI), one_shot=True, **known)
    assert outcome.document.get("prompt_cache_options") is None


def test_the_callers_own_options_win() -> None:
    for given in ({"mode": "implicit"}, {"ttl": "30m"}):
        outcome = run(chat(system(LONG), HI, prompt_cache_options=given), one_shot=True)
        assert outcome.document.value("prompt_cache_options") == given
        assert outcome.added == ("prompt_cache_key",)


def test_a_short_one_shot_is_cached_nowhere() -> None:
    assert run(chat(HI), one_shot=True).status is StepStatus.UNCHANGED


# --- legality ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dialect", "model", "provider"),
    [
        ("chat", CHAT, "gpt-5.6-sol", "openai"),
        ("chat", CHAT, "gpt-4o", "openai"),
        ("responses", RESPONSES, "gpt-5.6-sol", "openai"),
        ("messages", MESSAGES, "claude-sonnet-5", "anthropic"),
    ],
)
def test_whatever_is_moved_and_marked_a_conversation_stays_legal(
    name: str, dialect: Dialect, model: str, provider: str
) -> None:
    applied = 0
    for seed in range(200):
        request = json.loads(conversation(name, Random(seed)))
        request["model"] = model
        if name == "messages":
            request["system"] = f"{DATE}\n\n{LONG}"
            request["max_tokens"] = 5
        else:
            request[FIELDS[name]].insert(0, {"role": "developer", "content": f"{DATE}\n\n{LONG}"})
            request[FIELDS[name]].insert(0, {"role": "system", "content": "It is 18:05"})
        raw = json.dumps(request).encode()
        expected = problems(name, raw)
        outcome = run(Document.parse(raw), dialect, model, provider, volatile=("date", "time"))
        sent = outcome.document.to_bytes()
        assert problems(name, sent) == expected
        assert sent.count(b'"cache_control"') + sent.count(b'"prompt_cache_breakpoint"') <= 4
        if name == "messages":
            check_messages_request(json.loads(sent), {"anthropic-version": "2023-06-01", "x-api-key": "k"})
        elif name == "responses":
            check_responses(json.loads(sent))
        elif "summary" not in {item["role"] for item in request["messages"]}:
            check_messages(json.loads(sent))
        applied += outcome.status is StepStatus.APPLIED
    assert applied > 150


# --- bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [each for each in DIALECTS if each not in (CHAT, RESPONSES, MESSAGES)])
def test_apis_without_system_text_say_so(dialect: Dialect) -> None:
    outcome = run(body(prompt=LONG, input=LONG), dialect)
    assert outcome.reason == "this API has no system text"
    assert COMPLETIONS in DIALECTS


@pytest.mark.parametrize("provider", ["vllm", "gemini", "anthropic"])
def test_providers_that_take_nothing_say_so(provider: str) -> None:
    assert (
        run(chat(system(LONG), HI), provider=provider).reason == "the provider takes neither keys nor marks"
    )


def test_what_is_no_conversation_is_left_alone() -> None:
    assert run(body(messages="x" * 2000)).reason == "messages is no list of turns"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"volatile": ("*",)}, "volatile"),
        ({"volatile": ("date", "")}, "volatile"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"requests_per_minute": 9, "cache_key": False}, "requests_per_minute"),
        ({"cache_key": False, "breakpoints": False}, "nothing"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Config(**options)


def test_it_may_count_tokens_and_depends_on_more_than_single_fields() -> None:
    assert STEP.counts_tokens
    assert STEP.reads(Config()) is None


def test_nothing_is_counted_where_lengths_decide() -> None:
    class Counts:
        def count_text(self, text: str, model: str) -> Any:
            raise AssertionError

        count_message = count_text

    known = StepContext(CHAT, "gpt-5.6", "openai", Counts())  # type: ignore[arg-type]
    assert apply(chat(system("short"), HI), Config(), known).status is StepStatus.UNCHANGED
