"""What holds for every step, whatever it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects import DIALECTS
from proxy.steps import (
    STEPS,
    Step,
    add_stop,
    align_prefix,
    cap_output,
    choose_model,
    dedupe_context,
    set_params,
    shape_output,
    step_named,
    trim_history,
)
from proxy.steps.step import Rejected, StepContext
from tests.unit.core.json_texts import VALUES
from tests.unit.steps.contexts import BytesAsTokens

Rule = set_params.Rule

CONFIGS: Mapping[str, tuple[Any, ...]] = {
    "cap_output": (
        cap_output.Config(default=300, max=800),
        cap_output.Config(default=300, floor_reasoning=2000, default_for_structured=True),
        cap_output.Config(max=5, on_exceed="reject"),
        cap_output.Config(default=7, parameter="max_completion_tokens"),
    ),
    "add_stop": (
        add_stop.Config(("\n\nUser:", "a")),
        add_stop.Config(("a", "b", "c", "d", "e"), for_structured=True),
        add_stop.Config(("x",), limit=1, exclude_models=("gpt-*",)),
    ),
    "shape_output": (
        shape_output.Config(schema={"type": "object"}, strict=False, terse="Be brief.", create_system=True),
        shape_output.Config(schema={"type": "object"}, strict=False, schema_with_tools=True),
        shape_output.Config(verbosity="low", terse='é\n"', verbosity_models=("*",)),
    ),
    "choose_model": (
        choose_model.Config((choose_model.Rule(model="o3"),)),
        choose_model.Config((choose_model.Rule(upstream="other", model="gpt-4o"),)),
        choose_model.Config(
            (
                choose_model.Rule(choose_model.When(keywords=("hi",), tools=False), keep=True),
                choose_model.Rule(choose_model.When(choose_model.TokenBounds(min=3)), model="big"),
                choose_model.Rule(choose_model.When(images=True, schema=False), model="gpt-4o-mini"),
            )
        ),
    ),
    "trim_history": (
        trim_history.Config(budget=1),
        trim_history.Config(budget=14, keep_first=1, summary="system"),
        trim_history.Config(budget=14, keep_last=3, min_saving=5, cache="ignore", on_overflow="reject"),
        trim_history.Config(budget=2000, per_message=16, summary="system"),
        trim_history.Config(per_message=16, json="drop", cut="middle", marker="…"),
    ),
    "dedupe_context": (
        dedupe_context.Config(),
        dedupe_context.Config(min_chars=1, similarity=0.5, scope="all"),
        dedupe_context.Config(min_chars=3, top_k=1, min_score=0.5, scope="all"),
        dedupe_context.Config(min_chars=1, markers=("Part *: *", "## *"), similarity=1),
        dedupe_context.Config(min_chars=1, separator="--*", scope="all"),
    ),
    "align_prefix": (
        align_prefix.Config(),
        align_prefix.Config(volatile=("date", "Be *", "a"), one_shot=True),
        align_prefix.Config(volatile=("time", "uuid", "hex"), requests_per_minute=100, breakpoints=False),
        align_prefix.Config(volatile=("*d.*",), cache_key=False),
    ),
    "set_params": (
        set_params.Config({"temperature": Rule(min=0, max=1, default=0.5), "n": Rule(max=1)}),
        set_params.Config({"stop": Rule(add=["a", 1]), "reasoning.effort": Rule(set="low")}),
        set_params.Config({"unknown": Rule(forbid=[1, "a"], set=[]), "stream_options.x": Rule(default=None)}),
        set_params.Config({"max_tokens": Rule(default=5, max=9), "user": Rule(forbid=True)}),
    ),
}
"""Configurations to try of every step; a step without any fails `test_every_step_is_tried`."""

OWN_FIELDS = {
    "cap_output": {"max_tokens", "max_completion_tokens", "max_output_tokens"},
    "add_stop": {"stop", "stop_sequences"},
    "shape_output": {
        "response_format",
        "text",
        "output_config",
        "verbosity",
        "messages",
        "input",
        "instructions",
        "system",
    },
    "choose_model": {"model"},
    "trim_history": {"messages", "input"},
    "dedupe_context": {"messages", "input", "prompt", "system", "instructions"},
    "align_prefix": {
        "messages",
        "input",
        "system",
        "instructions",
        "tools",
        "prompt_cache_key",
        "prompt_cache_options",
    },
    "set_params": {
        "temperature",
        "n",
        "stop",
        "reasoning",
        "unknown",
        "stream_options",
        "max_tokens",
        "user",
    },
}
"""The top-level fields that a step, configured as above, may write."""

_TOOL_LOOP = json.dumps(
    [
        {"role": "summary", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
        {"role": "tool", "tool_call_id": "c", "content": json.dumps(list(range(200)))},
        {"role": "assistant", "content": [], "tool_calls": [{"id": "d"}]},
        {"role": "tool", "tool_call_id": "d", "content": "word " * 100},
    ]
)
_SOURCES = json.dumps(
    [
        {"role": "developer", "content": "Now: 18:05\n\nBe kind.\n" + "Answer from the sources only. " * 150},
        {"role": "user", "content": "[1] a b c d\n[2] a b c d\n[3] a b c e\n\nWhy?"},
        {"role": "assistant", "content": "<doc>a b c d</doc><doc>a b c d</doc>"},
        {"role": "user", "content": "<doc score='0.4'>a b c d</doc>\n<doc score='1'>e f g h</doc> Well?"},
        {
            "role": "user",
            "content": '{"hits": [{"text": "abc", "score": 0.7}, {"text": "abc", "score": 0.9}]}',
        },
        {"role": "user", "content": "x\n---\nPart 1: abc\n---\nPart 2: abc\n---\nx"},
        {
            "role": "user",
            "content": [{"type": "text", "text": text} for text in ("abc", "abc", "Part 1: a", "d")],
        },
    ]
)
FIELDS: dict[str, st.SearchStrategy[str]] = {
    "max_tokens": st.sampled_from(["1", "0", "-1", "4000", "1E2", '"100"', "true", "null", "NaN", "[9]"]),
    "max_completion_tokens": st.sampled_from(["1", "99999", "null", "1e400"]),
    "max_output_tokens": st.sampled_from(["1", "99999", "null"]),
    "stop": st.sampled_from(['"END"', "null", "[]", '[ "a" ]', '["1","2","3","4","5"]', "7", '"\\ud83d"']),
    "stop_sequences": st.sampled_from(['["a"]', '"a"', "{}"]),
    "temperature": st.sampled_from(["0.10", "7", "-1", '"2"', "null"]),
    "reasoning": st.sampled_from(['{"effort":"high"}', "null", '"x"', "[]", '{"effort":["high"]}']),
    "stream": st.sampled_from(["true", "false", '"true"']),
    "tools": st.sampled_from(["[]", '[{"type":"function"}]', "null", '[{"type":["mcp"]},[],1]']),
    "response_format": st.sampled_from(['{"type":"json_object"}', "null", "3", '{"type":["json_object"]}']),
    "prediction": st.sampled_from(["{}", "null"]),
    "messages": st.sampled_from(
        [
            '[{"role":"user","content":"hi"}]',
            '[ {"role":"system","content":"Be kind.\\ud83d"} , {"role":"user","content":NaN}]',
            '[{"role":"developer","content":[]},{"role":"user","content":[{"type":"image_url"}]}]',
            '[{"role":"system","content":7},{"role":"tool"},{"role":"assistant","content":"a"}]',
            '[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]',
            '[{"role":["user"],"content":[{"type":["q"]},{"type":{},"text":[]},{"type":"image_url"}]}]',
            '[{"role":{},"tool_calls":{},"content":[{"type":"tool_result","content":[{"type":[]}]}]}]',
            _TOOL_LOOP,
            _SOURCES,
            "[]",
            '"x"',
            "{}",
            "null",
        ]
    ),
    "input": st.sampled_from(
        [
            '"hi"',
            '[{"role":"developer","content":[{"type":"input_text","text":"a"}]},{"role":"user"}]',
            '[{"type":["reasoning"],"id":{}},{"type":{},"call_id":[],"output":[{"type":[]}]},{"id":[1]}]',
            _SOURCES.replace('"text", "text"', '"input_text", "text"'),
        ]
    ),
    "prompt": st.sampled_from(
        ['"[1] abc\\n[2] abc\\n\\nd"', '["<doc>abc</doc><doc>abc</doc>","[1] abc",[1]]', "7"]
    ),
    "prompt_cache_key": st.sampled_from(['"own"', "null"]),
    "instructions": st.sampled_from(['"Be kind."', "null", '""', "[1]"]),
    "system": st.sampled_from(['[{"type":"text","text":"a","cache_control":{}}]', '"b"', "[]", "{}"]),
    "text": st.sampled_from(["null", "{}", '{"format":{"type":"text"}}', '"x"']),
    "output_config": st.sampled_from(['{"effort":"low"}', "3"]),
    "model": st.sampled_from(['"gpt-4o"', '"o3"', '""', "null", "7", '"\\ud800"']),
    "n": VALUES,
    "user": st.just("null"),
    "unknown": VALUES,
    "other": VALUES,
}


@st.composite
def documents(draw: st.DrawFn) -> Document:
    keys = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=7))
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", " : ")]))
    members = [json.dumps(key) + colon + draw(FIELDS[key]) for key in keys]
    return Document.parse(("{" + comma.join(members) + "}").encode())


CONTEXTS = st.builds(
    StepContext,
    dialect=st.sampled_from(DIALECTS),
    model=st.sampled_from(["gpt-4o", "gpt-5.6", "o3-mini", "gpt-5", "deepseek-r1", "", "\ud800"]),
    provider=st.sampled_from(["openai", "azure", "vllm", "anthropic", "generic"]),
    tokens=st.just(BytesAsTokens()),
    refused=st.sampled_from([frozenset(), frozenset({"max_tokens"}), frozenset({"stop", "temperature"})]),
)
EVERY_STEP = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)


def test_every_step_is_tried() -> None:
    assert set(CONFIGS) == set(OWN_FIELDS) == {step.name for step in STEPS}
    for step in STEPS:
        assert all(isinstance(config, step.config) for config in CONFIGS[step.name])
        assert step_named(step.name) is step
    assert step_named("no_such_step") is None


@EVERY_STEP
@given(document=documents(), context=CONTEXTS, data=st.data())
def test_the_laws_hold(step: Step, document: Document, context: StepContext, data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(CONFIGS[step.name]))
    before = document.to_bytes()
    try:
        outcome = step.apply(document, config, context)
    except Rejected:
        assert step.enforces(config)
        return
    after = outcome.document

    assert document.to_bytes() is before, "the input is not mutated"

    if outcome.status is StepStatus.APPLIED:
        assert after.to_bytes() != before or outcome.upstream is not None
        assert outcome.detail, "a step that changed something says what"
    else:
        assert after is document, "a no-op returns the same object"
        assert bool(outcome.reason) == (outcome.status is StepStatus.SKIPPED)

    again = Document.parse(after.to_bytes())
    for reader in (after, again):
        for key in FIELDS:
            if key not in OWN_FIELDS[step.name]:
                assert reader.every(key) == document.every(key), "other fields are kept byte for byte"
        keys = reader.keys()
        kept = tuple(key for key in keys if document.get(key) is not None)
        assert kept == document.keys(), "order is kept, nothing is removed"

    assert set(outcome.added) == set(after.keys()) - set(document.keys())

    twice = step.apply(after, config, context)
    assert twice.document is after, "applying twice equals once"
    assert step.apply(again, config, context).document is again


@EVERY_STEP
def test_every_field_of_a_configuration_is_explained(step: Step) -> None:
    fields = step.config.__dataclass_fields__.values()
    assert all(field.metadata.get("help", "").endswith(".") for field in fields)
    assert step.shorthand is None or step.shorthand in step.config.__dataclass_fields__


@EVERY_STEP
@given(document=documents(), context=CONTEXTS, data=st.data())
def test_a_step_reads_what_it_says_it_reads(
    step: Step, document: Document, context: StepContext, data: st.DataObject
) -> None:
    config = data.draw(st.sampled_from(CONFIGS[step.name]))
    reads = step.reads(config)
    if reads is None:
        return
    for key in reads | document.duplicates:
        document = document.delete(key)
    document = Document.parse(document.to_bytes())
    bare = step.apply(Document.parse(b"{}"), config, context)
    outcome = step.apply(document, config, context)
    assert (outcome.status, outcome.reason, outcome.detail, outcome.added) == (
        bare.status,
        bare.reason,
        bare.detail,
        bare.added,
    )
    recalled = document.with_appended(bare.document.appended())
    assert outcome.document.to_bytes() == recalled.to_bytes(), "what it does is append, the same each time"
