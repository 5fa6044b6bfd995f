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
from proxy.dialects.responses import RESPONSES
from proxy.steps.shape_output import STEP, Config, apply
from proxy.steps.step import Outcome
from tests.unit.steps.contexts import body, context

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
SHAPED = Config(schema=SCHEMA, name="parts")
SYSTEM = {"role": "system", "content": "You help."}


def run(document: Document, config: Config, dialect: Dialect = CHAT, **known: Any) -> Outcome:
    return apply(document, config, context(dialect, **known))


# --- schema ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "given", "field", "value"),
    [
        (
            CHAT,
            {},
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "parts", "schema": SCHEMA, "strict": True}},
        ),
        (
            RESPONSES,
            {},
            "text",
            {"format": {"type": "json_schema", "name": "parts", "schema": SCHEMA, "strict": True}},
        ),
        (MESSAGES, {}, "output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}),
        (
            MESSAGES,
            {"output_config": {"effort": "low"}},
            "output_config",
            {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        ),
    ],
)
def test_each_api_gets_the_schema_in_its_own_form(
    dialect: Dialect, given: dict[str, Any], field: str, value: dict[str, Any]
) -> None:
    outcome = run(body(**given), SHAPED, dialect)
    assert outcome.document.value(field) == value
    assert outcome.detail == (("schema", "parts"),)
    assert outcome.added == (() if given else (field,))


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (CHAT, {"response_format": {"type": "text"}}),
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"guided_json": {}}),
        (CHAT, {"response_format": 7}),
        (RESPONSES, {"text": {"format": {"type": "text"}}}),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": {}}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
    ],
)
def test_the_callers_own_format_wins(dialect: Dialect, fields: dict[str, Any]) -> None:
    document = body(**fields)
    assert run(document, SHAPED, dialect) == Outcome(document, StepStatus.UNCHANGED)


def test_null_is_as_good_as_absent() -> None:
    assert run(body(response_format=None), SHAPED).status is StepStatus.APPLIED
    assert run(body(text=None), SHAPED, RESPONSES).status is StepStatus.APPLIED


def test_tools_get_no_schema_unless_wanted() -> None:
    document = body(tools=[{"type": "function", "function": {"name": "f"}}])
    outcome = run(document, SHAPED)
    assert (outcome.document, outcome.status) == (document, StepStatus.SKIPPED)
    assert run(document, Config(schema=SCHEMA, schema_with_tools=True)).status is StepStatus.APPLIED


@pytest.mark.parametrize(
    ("dialect", "fields", "reason"),
    [
        (CHAT, {"modalities": ["text", "audio"]}, "spoken"),
        (MESSAGES, {"messages": [{"role": "user"}, {"role": "assistant", "content": "{"}]}, "began"),
        (MESSAGES, {"output_config": "x"}, "output_config is not an object"),
        (RESPONSES, {"text": []}, "text is not an object"),
        (COMPLETIONS, {}, "no structured output"),
        (EMBEDDINGS, {}, "no structured output"),
    ],
)
def test_where_it_would_break_none_is_given(dialect: Dialect, fields: dict[str, Any], reason: str) -> None:
    document = body(**fields)
    outcome = run(document, SHAPED, dialect)
    assert (outcome.document, outcome.status) == (document, StepStatus.SKIPPED)
    assert reason in outcome.reason


@pytest.mark.parametrize(
    ("dialect", "field"), [(CHAT, "response_format"), (RESPONSES, "text"), (MESSAGES, "output_config")]
)
def test_a_remembered_refusal_is_obeyed(dialect: Dialect, field: str) -> None:
    outcome = run(body(), SHAPED, dialect, refused=frozenset({field}))
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, f"the upstream refuses {field}")


# --- verbosity ---------------------------------------------------------------------------------------------


def test_verbosity_is_a_default_for_models_that_take_it() -> None:
    config = Config(verbosity="low")
    for model in ("gpt-5-mini", "openai/gpt-5.2"):
        outcome = run(body(), config, model=model)
        assert (outcome.document.value("verbosity"), outcome.added) == ("low", ("verbosity",))
    nested = run(body(text={"format": {"type": "text"}}), config, RESPONSES, model="gpt-5")
    assert nested.document.value("text") == {"format": {"type": "text"}, "verbosity": "low"}
    for document in (body(verbosity="high"), body(verbosity="low")):
        assert run(document, config, model="gpt-5").status is StepStatus.UNCHANGED
    assert run(body(), config, model="gpt-4o").reason == "the model takes no verbosity"
    assert run(body(), config, MESSAGES).reason == "this API has no verbosity"
    named = Config(verbosity="low", verbosity_models=("prod-*",))
    assert run(body(), named, model="prod-1").status is StepStatus.APPLIED
    refused = run(body(), config, model="gpt-5", refused=frozenset({"verbosity"}))
    assert refused.reason == "the upstream refuses verbosity"


# --- terse -------------------------------------------------------------------------------------------------


def test_the_instruction_is_the_same_bytes_in_every_turn() -> None:
    config = Config(terse="Be brief.")
    turns: list[dict[str, Any]] = [SYSTEM]
    prefixes = set()
    for text in ("one", "two", "three"):
        turns.append({"role": "user", "content": text})
        sent = run(body(messages=turns), config).document.to_bytes()
        prefixes.add(sent[: sent.index(b'{"role": "user"')])
    assert prefixes == {b'{"messages": [{"role": "system", "content": "You help.\\n\\nBe brief."}, '}


def test_a_system_text_is_made_by_option_and_reported_as_added() -> None:
    made = Config(terse="Be brief.", create_system=True)
    assert run(body(input="x"), made, RESPONSES).added == ("instructions",)
    assert run(body(messages=[{"role": "user"}]), made, MESSAGES).added == ("system",)
    assert run(body(messages=[{"role": "user"}]), made).added == ()
    assert run(body(input="x"), Config(terse="Be brief."), RESPONSES).reason == "there is no system text"
    assert run(body(prompt="x"), made, COMPLETIONS).reason == "this API has no system text"


def test_what_works_is_done_and_the_first_obstacle_named() -> None:
    config = Config(schema=SCHEMA, verbosity="low", terse="Be brief.")
    outcome = run(body(messages=[SYSTEM]), config, model="gpt-4o")
    assert outcome.status is StepStatus.APPLIED
    assert outcome.detail == (("schema", "answer"), ("terse", "added"))
    assert outcome.reason == "the model takes no verbosity"
    assert outcome.added == ("response_format",)


# --- configuration -----------------------------------------------------------------------------------------

DEEP: dict[str, Any] = {"type": "array"}
for _ in range(70):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "must be given"),
        ({"schema": {"type": "array"}}, "of type object"),
        ({"schema": {"type": "object"}}, "schema needs additionalProperties"),
        ({"schema": SCHEMA | {"required": []}}, "schema must list a"),
        (
            {"schema": SCHEMA | {"properties": {"a": {"type": "array", "items": {"properties": {}}}}}},
            r"schema.properties.a.items needs",
        ),
        (
            {"schema": SCHEMA | {"properties": {"a": {"anyOf": [{"type": "object"}]}}}},
            r"schema.properties.a.anyOf\[0\] needs",
        ),
        ({"schema": SCHEMA | {"$defs": {"d": {"type": "object"}}}}, r"schema.\$defs.d needs"),
        ({"schema": SCHEMA | {"properties": {"a": DEEP}}}, "nested more deeply"),
        ({"schema": SCHEMA | {"x": 1 << 70}}, "cannot be written"),
        ({"schema": SCHEMA, "name": "a b"}, "name must"),
        ({"terse": " \n"}, "terse must not be blank"),
        ({"terse": "\ud800"}, "terse must be Unicode"),
        ({"verbosity": "low", "create_system": True}, "create_system needs terse"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**options)


def test_a_loose_schema_may_be_anything_that_is_an_object() -> None:
    config = Config(schema={"type": "object", "properties": {"a": {}}}, strict=False)
    sent = run(body(), config).document.value("response_format")
    assert sent["json_schema"]["strict"] is False


def test_nothing_is_enforced_and_nothing_counted() -> None:
    assert not STEP.enforces(SHAPED)
    assert not STEP.counts_tokens


# --- citations ---------------------------------------------------------------------------------------------


def cited(enabled: object) -> list[Any]:
    document = {"type": "document", "source": {"type": "text", "data": "x"}, "citations": enabled}
    return [{"role": "user", "content": [{"type": ["odd"]}, document]}]


def test_no_schema_for_answers_with_citations() -> None:
    in_result = [
        {"type": "tool_result", "content": [{"type": "search_result", "citations": {"enabled": True}}]}
    ]
    for messages in (cited({"enabled": True}), [{"role": "user", "content": in_result}]):
        document = body(messages=messages)
        outcome = run(document, SHAPED, MESSAGES)
        assert (outcome.document, outcome.reason) == (document, "no schema for answers with citations")
    spelt = body(messages=cited({"enabled": True})).to_bytes().replace(b"citations", b"cit\\u0061tions")
    assert run(Document.parse(spelt), SHAPED, MESSAGES).status is StepStatus.SKIPPED
    for off in ({"enabled": False}, {}, None, [True]):
        assert run(body(messages=cited(off)), SHAPED, MESSAGES).status is StepStatus.APPLIED
