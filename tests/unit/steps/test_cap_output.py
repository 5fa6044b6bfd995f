from __future__ import annotations

import pytest

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES
from proxy.dialects.unknown import UNKNOWN
from proxy.steps.cap_output import STEP, Config, apply
from proxy.steps.step import Outcome, Rejected
from tests.unit.steps.contexts import body, context

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def capped(raw: bytes, config: Config, **known: str) -> bytes:
    return apply(Document.parse(raw), config, context(**known)).document.to_bytes()  # type: ignore[arg-type]


# --- default -----------------------------------------------------------------------------------------------


def test_a_default_is_appended_where_the_caller_gave_none() -> None:
    outcome = apply(body(model="gpt-4o", seed=9007199254740993), Config(default=300, max=800), context())
    assert outcome.status is StepStatus.APPLIED
    assert (
        outcome.document.to_bytes()
        == b'{"model": "gpt-4o", "seed": 9007199254740993,"max_completion_tokens":300}'
    )
    assert outcome.detail == (("set", 300),)
    assert outcome.added == ("max_completion_tokens",)


def test_null_is_as_good_as_absent() -> None:
    document = Document.parse(b'{"max_tokens" : null}')
    outcome = apply(document, Config(default=300), context(provider="vllm"))
    assert outcome.document.to_bytes() == b'{"max_tokens" : 300}'
    assert outcome.added == ()


def test_a_caller_with_a_cap_gets_no_default() -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        document = body(**{field: 4000})
        assert apply(document, Config(default=300), context()).document is document


def test_a_maximum_alone_never_adds_a_cap() -> None:
    document = body(model="gpt-4o")
    assert apply(document, Config(max=800), context()) == Outcome(document, StepStatus.UNCHANGED)


@pytest.mark.parametrize(
    "fields",
    [{"tools": TOOLS}, {"response_format": {"type": "json_object"}}, {"functions": [{"name": "f"}]}],
)
def test_answers_that_must_parse_get_no_default_unless_wanted(fields: dict[str, object]) -> None:
    document = body(**fields)
    outcome = apply(document, Config(default=300), context())
    assert (outcome.document, outcome.status) == (document, StepStatus.SKIPPED)
    wanted = apply(document, Config(default=300, default_for_structured=True), context())
    assert wanted.document.get("max_completion_tokens") == b"300"


def test_reasoning_models_get_no_default_without_a_floor() -> None:
    document = body(model="o3")
    outcome = apply(document, Config(default=300), context(model="o3"))
    assert (outcome.document, outcome.status) == (document, StepStatus.SKIPPED)
    assert "floor_reasoning" in outcome.reason
    floored = apply(document, Config(default=300, floor_reasoning=4000), context(model="o3"))
    assert floored.document.get("max_completion_tokens") == b"4000"
    assert floored.detail == (("set", 4000),)
    off = body(model="gpt-5", reasoning_effort="minimal")
    assert apply(off, Config(default=300), context(model="gpt-5")).detail == (("set", 300),)


def test_prediction_gets_no_default() -> None:
    document = body(prediction={"type": "content", "content": "x"})
    outcome = apply(document, Config(default=300), context())
    assert (outcome.document, outcome.reason) == (document, "prediction allows no cap")


def test_the_policy_may_name_the_field_that_a_deployments_name_hides() -> None:
    config = Config(default=300, parameter="max_completion_tokens")
    assert capped(b'{"model":"prod-1"}', config, provider="generic") == (
        b'{"model":"prod-1","max_completion_tokens":300}'
    )
    assert capped(b"{}", Config(default=300, parameter="max_tokens")) == b'{"max_tokens":300}'
    assert apply(body(), config, context(RESPONSES)).added == ("max_output_tokens",)


def test_a_refused_field_is_replaced_by_the_other_or_left_out() -> None:
    refused = frozenset({"max_completion_tokens"})
    outcome = apply(body(), Config(default=300), context(refused=refused))
    assert outcome.added == ("max_tokens",)
    both = apply(body(), Config(default=300), context(refused=refused | {"max_tokens"}))
    assert both.status is StepStatus.SKIPPED


def test_each_api_has_its_own_field() -> None:
    config = Config(default=300)
    assert apply(body(), config, context(RESPONSES)).added == ("max_output_tokens",)
    assert apply(body(), config, context(COMPLETIONS)).added == ("max_tokens",)
    assert apply(body(), config, context(MESSAGES)).added == ("max_tokens",)
    outcome = apply(body(), config, context(EMBEDDINGS))
    assert outcome.status is StepStatus.SKIPPED


# --- maximum -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b"101", b"100"),
        (b"100", b"100"),
        (b"1e2", b"1e2"),
        (b"1E3", b"100"),
        (b"100.5", b"100"),
        (b"1e400", b"100"),
        (b"9" * 5000, b"100"),
        (b"0", b"0"),
        (b"-1", b"-1"),
        (b'"100"', b'"100"'),
        (b'"5000"', b"100"),
        (b"true", b"true"),
        (b"null", b"null"),
        (b"[5000]", b"[5000]"),
        (b"NaN", b"100"),
        (b"Infinity", b"100"),
    ],
)
def test_only_numbers_above_the_maximum_are_lowered(given: bytes, sent: bytes) -> None:
    raw = b'{"max_tokens":%s,"x":1E2}' % given
    outcome = apply(Document.parse(raw), Config(max=100), context())
    assert outcome.document.to_bytes() == b'{"max_tokens":%s,"x":1E2}' % sent
    assert (outcome.document.to_bytes() is raw) == (given == sent)


def test_the_callers_own_field_is_lowered_and_no_other_added() -> None:
    assert (
        capped(b'{"max_completion_tokens": 4000}', Config(default=10, max=1000))
        == b'{"max_completion_tokens": 1000}'
    )
    assert capped(b'{"max_tokens": 4000}', Config(max=1000), model="o3") == b'{"max_tokens": 1000}'


def test_both_fields_are_lowered_when_the_caller_sent_both() -> None:
    raw = b'{"max_tokens":5000,"max_completion_tokens":6000}'
    assert capped(raw, Config(max=800)) == b'{"max_tokens":800,"max_completion_tokens":800}'


@pytest.mark.parametrize(
    ("raw", "sent"),
    [
        (b'{"max_tokens":10,"max_tokens":99999}', b'{"max_tokens":800,"max_tokens":800}'),
        (b'{"max_tokens":99999,"max_tokens":10}', b'{"max_tokens":10,"max_tokens":10}'),
        (b'{"max_tokens":99999,"max_tokens":null}', b'{"max_tokens":800,"max_tokens":800}'),
        (b'{"max_tokens":10,"max\\u005ftokens":99999}', b'{"max_tokens":800,"max\\u005ftokens":800}'),
    ],
)
def test_a_duplicated_key_cannot_dodge_the_maximum(raw: bytes, sent: bytes) -> None:
    assert capped(raw, Config(default=5, max=800)) == sent


def test_a_lowered_cap_says_what_was_asked() -> None:
    outcome = apply(body(max_tokens=4000), Config(max=800), context())
    assert outcome.detail == (("capped", 800), ("asked", 4000))
    assert outcome.added == ()


def test_the_floor_raises_the_maximum_of_reasoning_models_only() -> None:
    config = Config(max=800, floor_reasoning=4000)
    assert apply(body(max_completion_tokens=9000), config, context(model="o3")).detail[0] == ("capped", 4000)
    assert apply(body(max_completion_tokens=3000), config, context(model="o3")).status is StepStatus.UNCHANGED
    assert apply(body(max_completion_tokens=3000), config, context(model="gpt-4o")).detail[0] == (
        "capped",
        800,
    )


def test_exceeding_may_be_refused() -> None:
    config = Config(max=800, on_exceed="reject")
    with pytest.raises(Rejected, match="800") as caught:
        apply(body(max_tokens=801), config, context())
    assert caught.value.param == "max_tokens"
    assert apply(body(max_tokens=800), config, context()).status is StepStatus.UNCHANGED


# --- configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "default or max"),
        ({"default": 0}, "default must"),
        ({"max": -1}, "max must"),
        ({"max": 5, "floor_reasoning": 0}, "floor_reasoning must"),
        ({"default": 6, "max": 5}, "default must not be above max"),
        ({"default": 6, "on_exceed": "reject"}, "on_exceed needs max"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**options)  # type: ignore[arg-type]


def test_a_maximum_enforces_and_a_default_does_not() -> None:
    assert STEP.enforces(Config(max=5))
    assert not STEP.enforces(Config(default=5))


# --- other names, and no end at all ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "raw", "sent"),
    [
        ("llamacpp", b'{"max_tokens":10,"n_predict":9000}', b'{"max_tokens":10,"n_predict":800}'),
        ("llamacpp", b'{"n_predict":9000}', b'{"n_predict":800}'),
        ("llamacpp", b'{"n_predict":-1}', b'{"n_predict":800}'),
        ("llamacpp", b'{"n_predict":0}', b'{"n_predict":0}'),
        ("llamacpp", b'{"max_tokens":-1}', b'{"max_tokens":800}'),
        (
            "llamacpp",
            b'{"n\\u005fpredict":9000,"n_predict":null}',
            b'{"n\\u005fpredict":800,"n_predict":800}',
        ),
        ("generic", b'{"max_tokens":0}', b'{"max_tokens":0}'),
        ("generic", b'{"max_tokens":5,"num_predict":-2}', b'{"max_tokens":5,"num_predict":800}'),
        (
            "generic",
            b'{"max_tokens":5,"options":{"num_predict":9000}}',
            b'{"max_tokens":5,"options":{"num_predict":800}}',
        ),
        ("generic", b'{"max_tokens":5,"max_new_tokens":9000}', b'{"max_tokens":5,"max_new_tokens":800}'),
        ("vllm", b'{"max_completion_tokens":0}', b'{"max_completion_tokens":800}'),
        ("vllm", b'{"max_tokens":5,"n_predict":9000}', b'{"max_tokens":5,"n_predict":9000}'),
        ("openai", b'{"max_tokens":5,"n_predict":9000}', b'{"max_tokens":5,"n_predict":9000}'),
        ("azure", b'{"max_tokens":-1}', b'{"max_tokens":-1}'),
        ("anthropic", b'{"max_tokens":0}', b'{"max_tokens":0}'),
    ],
)
def test_a_maximum_holds_for_every_name_and_value_that_the_provider_reads(
    provider: str, raw: bytes, sent: bytes
) -> None:
    assert capped(raw, Config(default=300, max=800), provider=provider) == sent
    if sent != raw:
        with pytest.raises(Rejected):
            capped(raw, Config(max=800, on_exceed="reject"), provider=provider)


def test_another_name_is_a_cap_only_where_it_is_known_to_be_read() -> None:
    raw = b'{"n_predict":5}'
    assert capped(raw, Config(default=300), provider="llamacpp") == raw
    assert capped(raw, Config(default=300), provider="generic") == b'{"n_predict":5,"max_tokens":300}'
    both = apply(body(n_predict=9000), Config(default=300, max=800), context(provider="generic"))
    assert both.document.to_bytes() == b'{"n_predict": 800,"max_tokens":300}'
    assert both.detail == (("capped", 800), ("asked", 9000), ("set", 300))
    assert both.added == ("max_tokens",)


@pytest.mark.parametrize(
    ("provider", "raw"),
    [
        ("llamacpp", b'{"N_PREDICT":9000}'),
        ("llamacpp", b'{"nPredict":9000}'),
        ("generic", b'{"options":{"Num_Predict":9000}}'),
    ],
)
def test_another_name_cannot_be_disguised(provider: str, raw: bytes) -> None:
    with pytest.raises(Rejected):
        capped(raw, Config(max=800), provider=provider)


def test_nothing_is_written_below_what_the_api_takes() -> None:
    config = Config(default=5, max=8)
    assert apply(body(), config, context(RESPONSES)).document.to_bytes() == b'{"max_output_tokens":16}'
    lowered = apply(body(max_output_tokens=100), config, context(RESPONSES))
    assert lowered.detail == (("capped", 16), ("asked", 100))
    own = body(max_output_tokens=10)
    assert apply(own, config, context(RESPONSES)).document is own
    assert apply(body(), config, context(CHAT)).detail == (("set", 5),)


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": ""},
        {"grammar": " "},
        {"json_schema": 1},
        {"json_schema": None},
        {"guided_choice": []},
        {"guided_regex": False},
        {"structured_outputs": {}},
        {"response_format": {}},
        {"response_format": {"type": ["json_object"]}},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tools": [[]]},
        {"tools": [1]},
        {"functions": "f"},
        {"thinking": {"type": "x"}},
        {"thinking": {"type": ["enabled"]}},
        {"reasoning_effort": "low"},
        {"reasoning_effort": ["low"]},
        {"reasoning": {"effort": "high"}},
        {"prediction": {}},
        {"prediction": 1},
    ],
)
def test_what_means_nothing_keeps_no_default_away(fields: dict[str, object]) -> None:
    assert apply(body(**fields), Config(default=300), context()).detail == (("set", 300),)


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": "root ::= [a-z]+"},
        {"guided_json": {}},
        {"json_schema": {"type": "object"}},
        {"guided_choice": ["a"]},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function"}]},
    ],
)
def test_what_must_parse_gets_no_default(fields: dict[str, object]) -> None:
    assert apply(body(**fields), Config(default=300), context()).status is StepStatus.SKIPPED


def test_a_word_about_reasoning_counts_where_the_model_may_reason() -> None:
    document = body(reasoning_effort="low")
    assert apply(document, Config(default=300), context(model="house")).status is StepStatus.SKIPPED
    assert apply(document, Config(default=300), context(model="gpt-5-chat-latest")).detail == (("set", 300),)


def test_a_prediction_counts_where_somebody_reads_it() -> None:
    document = body(prediction={"type": "content", "content": "x"})
    for provider, status in (("azure", StepStatus.SKIPPED), ("vllm", StepStatus.APPLIED)):
        assert apply(document, Config(default=300), context(provider=provider)).status is status


def test_caps_are_bounded_on_an_api_of_unknown_shape_and_never_added() -> None:
    config = Config(default=300, max=800)
    outcome = apply(body(max_output_tokens=9000), config, context(UNKNOWN))
    assert outcome.document.to_bytes() == b'{"max_output_tokens": 800}'
    assert apply(body(size="1024x1024"), config, context(UNKNOWN)).reason == "unknown API shape"
