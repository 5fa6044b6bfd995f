from __future__ import annotations

import json

import pytest

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES
from proxy.steps.add_stop import STEP, Config, apply
from tests.unit.steps.contexts import body, context

HASHES = Config(("###",))


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b'"END"', b'["END","###"]'),
        (b'["END"]', b'["END","###"]'),
        (b'[ "END" , "\\u0041\\/" ]', b'[ "END" , "\\u0041\\/","###" ]'),
        (b"null", b'["###"]'),
        (b"[]", b'["###"]'),
        (b"[ ]", b'["###"]'),
        (b'""', b'["###"]'),
        (b'"\\ud83c"', b'["\\ud83c","###"]'),
        (b'["###"]', b'["###"]'),
        (b'"\\u0023##"', b'"\\u0023##"'),
    ],
)
def test_the_callers_sequences_stay_first_and_as_written(given: bytes, sent: bytes) -> None:
    document = Document.parse(b'{"stop": %s, "x":1E2}' % given)
    edited = apply(document, HASHES, context()).document
    assert edited.to_bytes() == b'{"stop": %s, "x":1E2}' % sent
    assert (edited is document) == (given == sent)


def test_without_a_stop_of_the_caller_ours_are_appended() -> None:
    outcome = apply(body(model="gpt-4o"), Config(("\n\nUser:", "###")), context())
    assert outcome.document.to_bytes() == b'{"model": "gpt-4o","stop":["\\n\\nUser:","###"]}'
    assert outcome.added == ("stop",)
    assert outcome.detail == (("added", 2),)


def test_the_limit_leaves_out_the_least_important_and_says_so() -> None:
    outcome = apply(body(stop=["a", "b", "c"]), Config(("b", "d", "e", "f")), context())
    assert outcome.document.value("stop") == ["a", "b", "c", "d"]
    assert outcome.detail == (("added", 1), ("left_out", 2))
    assert outcome.added == ()


@pytest.mark.parametrize("count", [4, 5])
def test_a_caller_at_or_above_the_limit_passes_as_it_is(count: int) -> None:
    document = body(stop=[str(index) for index in range(count)])
    outcome = apply(document, HASHES, context())
    assert (outcome.document, outcome.status) == (document, StepStatus.SKIPPED)
    assert "limit of 4" in outcome.reason


def test_a_route_may_know_another_limit() -> None:
    document = body(stop=["a", "b", "c", "d"])
    outcome = apply(document, Config(("e", "f"), limit=5), context(provider="vllm"))
    assert outcome.document.value("stop") == ["a", "b", "c", "d", "e"]
    assert apply(body(), Config(("a", "b"), limit=1), context()).document.value("stop") == ["a"]


@pytest.mark.parametrize("sequence", ["\n```", "stop ", "\t", "\\n", "a\nb\n", "무엇을", '"', "\u2028"])
def test_sequences_arrive_to_the_code_point(sequence: str) -> None:
    edited = apply(body(), Config((sequence,)), context()).document
    assert json.loads(edited.to_bytes())["stop"] == [sequence]


@pytest.mark.parametrize("stop", [3, True, {"a": 1}])
def test_a_stop_of_another_type_is_the_upstreams_to_refuse(stop: object) -> None:
    document = body(stop=stop)
    outcome = apply(document, HASHES, context())
    assert (outcome.document, outcome.status) == (document, StepStatus.SKIPPED)


def test_odd_members_are_kept() -> None:
    assert apply(body(stop=[3, None]), HASHES, context()).document.value("stop") == [3, None, "###"]


def test_duplicated_keys_get_the_same_sequences() -> None:
    document = Document.parse(b'{"stop":"a","stop":["b"]}')
    assert (
        apply(document, HASHES, context()).document.to_bytes() == b'{"stop":["b","###"],"stop":["b","###"]}'
    )


@pytest.mark.parametrize("model", ["o3-mini", "gpt-5", "openai/o1", "acme-reasoner-7"])
def test_models_that_refuse_stop_get_none_and_keep_the_callers(model: str) -> None:
    config = Config(("###",), exclude_models=("acme-*", "other"))
    for document in (body(model=model), body(model=model, stop="END")):
        outcome = apply(document, config, context(model=model))
        assert (outcome.document, outcome.status) == (document, StepStatus.SKIPPED)
        assert "model" in outcome.reason


def test_a_remembered_refusal_is_obeyed() -> None:
    outcome = apply(body(), HASHES, context(refused=frozenset({"stop"})))
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, "the upstream refuses stop")


def test_apis_without_stop_are_left_alone() -> None:
    for dialect in (RESPONSES, EMBEDDINGS):
        assert apply(body(), HASHES, context(dialect)).status is StepStatus.SKIPPED


def test_structured_answers_get_none_unless_wanted() -> None:
    document = body(response_format={"type": "json_object"})
    assert apply(document, HASHES, context()).status is StepStatus.SKIPPED
    assert apply(document, Config(("###",), for_structured=True), context()).added == ("stop",)


def test_anthropic_gets_its_own_field_and_no_blank_sequence() -> None:
    outcome = apply(body(), Config(("\n", "###")), context(MESSAGES, model="claude"))
    assert outcome.document.value("stop_sequences") == ["###"]
    assert apply(body(), Config(("\n",)), context(MESSAGES)).status is StepStatus.UNCHANGED
    assert apply(body(), Config(("\n",)), context()).document.value("stop") == ["\n"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequences": ()}, "sequences must name"),
        ({"sequences": ("a", "")}, "sequences must not contain an empty"),
        ({"sequences": ("a", "a")}, "sequences must differ"),
        ({"sequences": ("\ud800",)}, "sequences must be Unicode"),
        ({"sequences": ("a",), "limit": 0}, "limit must"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**options)  # type: ignore[arg-type]


def test_a_list_is_its_short_form_and_nothing_is_enforced() -> None:
    assert STEP.shorthand == "sequences"
    assert not STEP.enforces(HASHES)
