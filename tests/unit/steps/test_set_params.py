from __future__ import annotations

from typing import Any

import pytest

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects.unknown import UNKNOWN
from proxy.steps.set_params import STEP, Config, Rule, apply
from proxy.steps.step import Outcome, Rejected, StepContext
from tests.unit.steps.contexts import body, context


def run(document: Document, known: StepContext | None = None, **rules: Any) -> Outcome:
    """Apply rules given by keyword, with `__` for the dot of a path."""
    config = Config({path.replace("__", "."): Rule(**rule) for path, rule in rules.items()})
    return apply(document, config, known or context())


def sent(raw: bytes, **rules: Any) -> bytes:
    return run(Document.parse(raw), **rules).document.to_bytes()


def test_a_default_is_given_only_where_there_is_none() -> None:
    outcome = run(body(model="m"), verbosity={"default": "low"})
    assert outcome.document.to_bytes() == b'{"model": "m","verbosity":"low"}'
    assert (outcome.detail, outcome.added) == ((("verbosity", "default"),), ("verbosity",))
    assert sent(b'{"verbosity":null}', verbosity={"default": "low"}) == b'{"verbosity":"low"}'
    document = body(verbosity="high")
    assert run(document, verbosity={"default": "low"}) == Outcome(document, StepStatus.UNCHANGED)


def test_a_set_value_replaces_every_occurrence_and_keeps_the_rest() -> None:
    raw = b'{"store":true, "x":1E2, "store" : 1}'
    assert sent(raw, store={"set": False}) == b'{"store":false, "x":1E2, "store" : false}'
    assert sent(b"{}", metadata={"set": {"team": "é"}}) == '{"metadata":{"team":"é"}}'.encode()
    assert sent(b'{"user":"x"}', user={"set": None}) == b'{"user":null}'


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (b"1.7", b"1"),
        (b"1", b"1"),
        (b"0.50", b"0.50"),
        (b"-3", b"0"),
        (b"1e400", b"1"),
        (b"true", b"true"),
        (b'"high"', b'"high"'),
        (b'"1.5"', b"1"),
        (b"null", b"null"),
    ],
)
def test_numbers_are_kept_between_min_and_max(given: bytes, left: bytes) -> None:
    raw = b'{"temperature":%s}' % given
    assert sent(raw, temperature={"min": 0, "max": 1}) == b'{"temperature":%s}' % left


def test_bounds_add_nothing() -> None:
    document = body(model="m")
    assert run(document, n={"max": 1}, top_p={"min": 0.1}).document is document


def test_a_duplicated_key_cannot_dodge_a_bound() -> None:
    assert sent(b'{"n":1,"n":50}', n={"max": 2}) == b'{"n":2,"n":2}'
    assert sent(b'{"n":50,"n":1}', n={"max": 2}) == b'{"n":1,"n":1}'
    nested = b'{"reasoning":{"max_tokens":9000,"max_tokens":10}}'
    assert (
        sent(nested, reasoning__max_tokens={"max": 100}) == b'{"reasoning":{"max_tokens":10,"max_tokens":10}}'
    )


def test_paths_reach_into_objects_and_lists() -> None:
    raw = b'{"reasoning": {"effort" : "high"}, "tools":[{"type":"a"}, {"type":"b"}],"logit_bias":{"50256":1}}'
    assert sent(raw, reasoning__effort={"set": "low"}).startswith(
        b'{"reasoning": {"effort" : "low"}, "tools"'
    )
    assert b'{"type":"c"}],' in sent(raw, tools__1__type={"set": "c"})
    assert b'"50256":-100' in sent(raw, logit_bias__50256={"set": -100})
    assert sent(b"{}", reasoning__effort={"default": "low"}) == b'{"reasoning":{"effort":"low"}}'


def test_a_path_through_something_else_is_left_alone_with_a_reason() -> None:
    document = body(reasoning="deep")
    outcome = run(document, reasoning__effort={"set": "low"})
    assert (outcome.document, outcome.status) == (document, StepStatus.SKIPPED)
    assert "reasoning.effort" in outcome.reason


def test_lists_get_what_they_lack() -> None:
    raw = b'{"include":[ "a" ]}'
    assert sent(raw, include={"add": ["b", "a"]}) == b'{"include":[ "a" ,"b"]}'
    assert sent(b'{"include":[]}', include={"add": ["b"]}) == b'{"include":["b"]}'
    assert sent(b'{"include":null}', include={"add": ["b"]}) == b'{"include":["b"]}'
    assert sent(b"{}", include={"add": [1, True]}) == b'{"include":[1,true]}'
    assert sent(b'{"include":[1]}', include={"add": [True]}) == b'{"include":[1,true]}'
    for document in (body(include=["b"]), body(include="b")):
        assert run(document, include={"add": ["b"]}).document is document


@pytest.mark.parametrize(
    "raw",
    [
        b'{"logprobs":true}',
        b'{"logprobs":false}',
        b'{"logprobs":null,"logprobs":1}',
        b'{"logprobs":1,"logprobs":null}',
    ],
)
def test_what_is_forbidden_is_refused(raw: bytes) -> None:
    with pytest.raises(Rejected, match="logprobs") as caught:
        run(Document.parse(raw), logprobs={"forbid": True})
    assert caught.value.param == "logprobs"


@pytest.mark.parametrize("raw", [b"{}", b'{"logprobs":null}'])
def test_what_is_not_there_is_not_refused(raw: bytes) -> None:
    assert run(Document.parse(raw), logprobs={"forbid": True}).status is StepStatus.UNCHANGED


def test_single_values_may_be_forbidden() -> None:
    rule = {"forbid": ["priority", 1]}
    value: object
    for value in ("priority", 1, 1.0):
        with pytest.raises(Rejected, match="service_tier"):
            run(body(service_tier=value), service_tier=rule)
    for value in ("flex", True, None, 2):
        assert run(body(service_tier=value), service_tier=rule).status is StepStatus.UNCHANGED


def test_forbidden_values_are_found_behind_duplicates_at_any_level() -> None:
    document = Document.parse(b'{"a":{"b":"bad","b":"good"},"a":{"b":"good"}}')
    with pytest.raises(Rejected) as caught:
        run(document, a__b={"forbid": ["bad"]})
    assert caught.value.param == "a.b"


def test_forbidden_values_are_judged_as_the_caller_sent_them() -> None:
    with pytest.raises(Rejected):
        run(body(x="bad"), x={"set": "good", "forbid": ["bad"]})
    assert run(body(x="odd"), x={"set": "good", "forbid": ["bad"]}).document.value("x") == "good"


def test_a_refused_parameter_is_not_added() -> None:
    known = context(refused=frozenset({"verbosity"}))
    outcome = run(body(), known, verbosity={"default": "low"})
    assert (outcome.status, outcome.reason) == (StepStatus.SKIPPED, "the upstream refuses verbosity")
    assert run(body(verbosity="high"), known, verbosity={"set": "low"}).document.value("verbosity") == "low"


def test_stream_options_are_not_added_to_what_is_no_stream() -> None:
    rule = {"default": False}
    outcome = run(body(), stream_options__include_obfuscation=rule)
    assert outcome.status is StepStatus.SKIPPED
    outcome = run(body(stream=True), stream_options__include_obfuscation=rule)
    assert outcome.document.value("stream_options") == {"include_obfuscation": False}


def test_a_second_cap_is_not_added() -> None:
    document = body(max_completion_tokens=5)
    assert run(document, max_tokens={"default": 3}).document is document
    assert run(body(), max_tokens={"default": 3}).added == ("max_tokens",)


def test_rules_apply_in_order_and_report_each() -> None:
    outcome = run(body(n=5), n={"max": 1}, user={"default": "weir"}, seed={"max": 3})
    assert outcome.detail == (("n", "max"), ("user", "default"))
    assert outcome.added == ("user",)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "must be given"),
        ({"max": "high"}, "max must be a number"),
        ({"min": True}, "min must be a number"),
        ({"min": 2, "max": 1}, "min must not be above max"),
        ({"set": 1, "max": 2}, "set leaves nothing"),
        ({"add": "x"}, "add must be a list"),
        ({"add": []}, "add must be a list"),
        ({"add": [1], "default": [2]}, "add goes together"),
        ({"forbid": False}, "forbid must be"),
        ({"forbid": "x"}, "forbid must be"),
        ({"default": 5, "max": 1}, "default must lie"),
        ({"default": "5", "max": 1}, "default must lie"),
        ({"set": {1}}, "set cannot be written"),
        ({"set": "\ud800"}, "set cannot be written"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**rule)


@pytest.mark.parametrize("path", ["", ".a", "a..b", "a b", "a.", "ä"])
def test_paths_are_keys_joined_by_dots(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        Config({path: Rule(set=1)})


@pytest.mark.parametrize("path", ["model", "stream", "messages", "messages.0.content", "background"])
def test_what_other_parts_rely_on_can_only_be_forbidden(path: str) -> None:
    with pytest.raises(ValueError, match="can only be forbidden"):
        Config({path: Rule(set="x")})
    assert Config({path: Rule(forbid=["x"])}).rules


def test_rules_are_wanted() -> None:
    with pytest.raises(ValueError, match="rules"):
        Config({})


def test_limits_enforce_and_defaults_do_not() -> None:
    assert STEP.shorthand == "rules"
    for rule in ({"forbid": True}, {"max": 1}, {"min": 1}, {"set": 1}):
        assert STEP.enforces(Config({"x": Rule(**rule)}))
    for harmless in (Rule(default=1), Rule(add=[1])):
        assert not STEP.enforces(Config({"x": harmless}))


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b'{"a":{"b":{"c":9},"b":5}}', b'{"a":{"b":{"c":3},"b":5}}'),
        (b'{"a":{"b":{"c":9},"b":{"c":2}}}', b'{"a":{"b":{"c":2},"b":{"c":2}}}'),
        (b'{"a":{"b":{"c":9},"b":{}}}', b'{"a":{"b":{"c":3},"b":{"c":3}}}'),
        (b'{"a":{"b":[],"b":{"c":9,"c":1}}}', b'{"a":{"b":[],"b":{"c":1,"c":1}}}'),
    ],
)
def test_no_duplicate_at_any_level_escapes_a_bound(given: bytes, sent: bytes) -> None:
    outcome = run(Document.parse(given), a__b__c={"max": 3})
    assert outcome.document.to_bytes() == sent
    with pytest.raises(Rejected):
        run(Document.parse(given), a__b__c={"forbid": [9]})


@pytest.mark.parametrize("rule", [{"max": 3}, {"min": 1}, {"set": 2}, {"forbid": True}, {"forbid": [9]}])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        (b'{"reasoning":{"Effort":9}}', "Effort"),
        (b'{"Reasoning":{"effort":9}}', "Reasoning"),
        ('{"reasoning":{"effort":1},"reaſoning":{"effort":9}}'.encode(), "rea\\u017foning"),
    ],
)
def test_what_a_server_could_read_as_a_limited_key_is_refused(
    rule: dict[str, Any], given: bytes, named: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        run(Document.parse(given), reasoning__effort=rule)
    assert refusal.value.param == named


def test_odd_keys_pass_where_nothing_is_limited() -> None:
    document = Document.parse(b'{"SEED":1}')
    assert run(document, seed={"default": 2}).document.to_bytes() == b'{"SEED":1,"seed":2}'


def test_integers_beyond_64_bits_can_be_rules() -> None:
    outcome = run(Document.parse(b'{"seed":%d}' % (1 << 80)), seed={"max": 1 << 70}, n={"set": 1 << 65})
    assert outcome.document.to_bytes() == b'{"seed":%d,"n":%d}' % (1 << 70, 1 << 65)


@pytest.mark.parametrize("raw", [b"{}", b'{"tools":null}', b'{"tools":[]}', b'{"tools":[{"a":null}]}'])
@pytest.mark.parametrize("path", ["tools__0__type", "tools__0__a__1", "tools__0__a__1__b"])
def test_a_number_makes_no_list(raw: bytes, path: str) -> None:
    if raw == b'{"tools":[{"a":null}]}' and path == "tools__0__type":
        assert sent(raw, tools__0__type={"set": "x"}) == b'{"tools":[{"a":null,"type":"x"}]}'
        return
    rules: tuple[dict[str, Any], ...] = ({"set": "x"}, {"default": "x"}, {"add": ["x"]})
    for rule in rules:
        outcome = run(Document.parse(raw), None, **{path: rule})
        assert outcome.document.to_bytes() == raw
        assert (outcome.status, bool(outcome.reason)) == (StepStatus.SKIPPED, True)


def test_tokens_are_keys_of_an_object() -> None:
    assert sent(b"{}", logit_bias__50256={"set": -100}) == b'{"logit_bias":{"50256":-100}}'
    assert sent(b'{"logit_bias":{"1":5}}', logit_bias__1={"max": 0}) == b'{"logit_bias":{"1":0}}'


def test_on_an_api_of_unknown_shape_nothing_is_added_and_everything_bounded() -> None:
    known = context(UNKNOWN)
    outcome = run(body(temperature=2), known, temperature={"max": 1}, store={"set": False})
    assert outcome.document.to_bytes() == b'{"temperature": 1}'
    assert outcome.reason == "unknown API shape"
    with pytest.raises(Rejected):
        run(body(service_tier="priority"), known, service_tier={"forbid": ["priority"]})
