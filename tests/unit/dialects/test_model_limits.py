from __future__ import annotations

from typing import Any

import pytest

from proxy.dialects.model_limits import refused_parameter
from tests.unit.steps.contexts import body


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"max_tokens": 5}, "max_tokens"),
        ({"stop": "END"}, "stop"),
        ({"temperature": 0}, "temperature"),
        ({"logprobs": True}, "logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"temperature": 1, "top_p": 1.0, "presence_penalty": 0, "logprobs": False, "logit_bias": {}}, None),
        ({"max_completion_tokens": 5, "stop": None, "n": 2}, None),
        ({"temperature": 0.2, "reasoning_effort": "none"}, None),
    ],
)
def test_reasoning_models_refuse_sampling(fields: dict[str, Any], refused: str | None) -> None:
    for model in ("o3", "openai/gpt-5-mini"):
        assert refused_parameter(body(**fields), "chat", model) == refused


@pytest.mark.parametrize(
    ("name", "fields", "refused"),
    [
        ("chat", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("chat", {"verbosity": "low"}, "verbosity"),
        ("responses", {"reasoning": {"effort": "low"}}, "reasoning"),
        ("responses", {"text": {"verbosity": "low"}}, "text.verbosity"),
        ("responses", {"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ("responses", {"input": "reasoning", "text": {}, "reasoning": None}, None),
        ("chat", {"temperature": 0}, None),
    ],
)
def test_plain_models_refuse_reasoning(name: str, fields: dict[str, Any], refused: str | None) -> None:
    assert refused_parameter(body(**fields), name, "gpt-4o-mini") == refused


def test_responses_takes_its_own_cap_on_reasoning_models() -> None:
    assert refused_parameter(body(max_output_tokens=5, stop="x"), "responses", "o3") is None
    assert refused_parameter(body(temperature=0), "responses", "o3") == "temperature"


@pytest.mark.parametrize("model", ["llama-3.1-8b", "claude-sonnet-5", "gpt-oss-120b", ""])
def test_of_other_models_nothing_is_known(model: str) -> None:
    assert refused_parameter(body(stop="x", reasoning_effort="low", temperature=0), "chat", model) is None


def test_other_apis_are_not_judged() -> None:
    assert refused_parameter(body(stop="x"), "completions", "o3") is None
