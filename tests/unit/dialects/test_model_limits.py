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


def shown(part: dict[str, Any], field: str = "messages") -> dict[str, Any]:
    return {field: [{"role": "user", "content": [part]}]}


JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("model", "fields", "refused"),
    [
        ("gpt-3.5-turbo", shown({"type": "image_url"}), "images in messages"),
        ("gpt-4", shown({"type": "image_url"}), "images in messages"),
        ("gpt-4-0613", shown({"type": "file", "file": {"file_data": "x"}}), "files in messages"),
        ("o3-mini", shown({"type": "image_url"}), "images in messages"),
        ("gpt-4-turbo", shown({"type": "image_url"}), None),
        ("gpt-4o-mini", shown({"type": "file"}), None),
        ("gpt-4o", shown({"type": "input_audio"}), "audio in messages"),
        ("gpt-5", shown({"type": "input_audio"}), "audio in messages"),
        ("gpt-4o-audio-preview", shown({"type": "input_audio"}), None),
        ("gpt-4o", {"modalities": ["text", "audio"]}, "modalities"),
        ("gpt-4o", {"modalities": ["text"]}, None),
        ("gpt-4o-mini-audio-preview", {"modalities": ["text", "audio"]}, None),
        ("gpt-3.5-turbo", {"response_format": JSON_SCHEMA}, "response_format"),
        ("gpt-4-turbo", {"response_format": JSON_SCHEMA}, "response_format"),
        ("gpt-4o-2024-05-13", {"response_format": JSON_SCHEMA}, "response_format"),
        ("gpt-4o-mini", {"response_format": JSON_SCHEMA}, None),
        ("gpt-3.5-turbo", {"response_format": {"type": "json_object"}}, None),
        ("o3-mini", {"response_format": JSON_SCHEMA}, None),
        ("gpt-4o", {"web_search_options": {}}, "web_search_options"),
        ("gpt-4o-search-preview", {"web_search_options": {}}, None),
        ("chatgpt-4o-latest", {"tools": [FUNCTION]}, "tools"),
        ("o3", {"tools": [FUNCTION], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ("gpt-5", {"tools": [FUNCTION], "parallel_tool_calls": False}, None),
        ("gpt-5", {"prediction": {"type": "content"}}, "prediction"),
        ("gpt-4o", {"prediction": {"type": "content"}}, None),
        ("ft:gpt-3.5-turbo:org::x", shown({"type": "image_url"}), "images in messages"),
        ("llama-3.1-8b", shown({"type": "input_audio"}), None),
    ],
)
def test_inputs_formats_and_tools_that_a_model_lacks(
    model: str, fields: dict[str, Any], refused: str | None
) -> None:
    assert refused_parameter(body(**fields), "chat", model) == refused


def test_hosted_tools_and_formats_of_responses() -> None:
    hosted = body(tools=[{"type": ["odd"]}, {"type": "mcp", "server_label": "a"}])
    assert refused_parameter(hosted, "responses", "gpt-3.5-turbo") == "hosted tools"
    assert refused_parameter(hosted, "responses", "gpt-4.1-mini") is None
    assert refused_parameter(body(tools=[{"type": "function"}]), "responses", "gpt-3.5-turbo") is None
    shaped = body(text={"format": {"type": "json_schema", "name": "a", "schema": {}}})
    assert refused_parameter(shaped, "responses", "gpt-4-turbo") == "text.format"
    seen = body(**shown({"type": "input_file", "file_data": "x"}, "input"))
    assert refused_parameter(seen, "responses", "gpt-4") == "files in input"
