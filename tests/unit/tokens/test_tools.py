from __future__ import annotations

import json

from proxy.tokens.counter import TokenCounter
from proxy.tokens.port import Count
from proxy.tokens.tools import LISTING_TOKENS, measure_tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["c", "f"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "near": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "box": {"type": "object", "properties": {"x": {"type": ["number", "null"]}}},
            },
            "required": ["city"],
        },
    },
}
LISTING = """namespace functions {

// Current weather
type get_weather = (_: {
// Name of the city
city: string,
days?: number,
unit?: "c" | "f",
tags?: string[],
near?: string | null,
box?: {
x?: number | null
},
}) => any;

} // namespace functions"""


def _rendered(value: object) -> str:
    texts: list[str] = []

    def remember(text: str) -> Count:
        texts.append(text)
        return Count(1, True)

    assert measure_tools(value, remember) == Count(LISTING_TOKENS + 1, False)
    (text,) = texts
    return text


def test_renders_a_function_the_way_models_see_it() -> None:
    assert _rendered([WEATHER]).replace("null,\n}", "null\n}") == LISTING


def test_flat_and_legacy_shapes_cost_the_same() -> None:
    function = WEATHER["function"]
    assert isinstance(function, dict)
    assert _rendered([{"type": "function", **function}]) == _rendered([WEATHER])
    assert _rendered([function]) == _rendered([WEATHER])


def test_a_function_without_parameters_takes_none() -> None:
    assert "type now = () => any;" in _rendered([{"type": "function", "function": {"name": "now"}}])


def test_other_tools_are_counted_as_json() -> None:
    for tool in (
        {"name": "read", "input_schema": {"type": "object"}},
        {"type": "web_search", "user_location": {"city": "Genève"}},
        {"type": "custom", "custom": {"name": "sql", "format": {"type": "grammar"}}},
    ):
        assert json.dumps(tool, separators=(",", ":"), ensure_ascii=False) in _rendered([tool])


def test_no_tools_cost_nothing() -> None:
    assert measure_tools([], lambda text: Count(1, True)) == Count(0, False)
    assert measure_tools(None, lambda text: Count(1, True)) == Count(0, False)


def test_strange_schemas_are_survived() -> None:
    for parameters in (
        {"properties": {"a": True, "b": {}, "c": {"type": 5}, "d": {"enum": "x"}, "e": {"type": "array"}}},
        {"properties": ["a"]},
        {"$ref": "#/definitions/a"},
    ):
        assert "type f = (" in _rendered(
            [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        )


def test_deep_schemas_end(counter: TokenCounter) -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema}}
    raw = json.dumps([{"type": "function", "function": {"name": "f", "parameters": schema}}]).encode()
    assert counter.count_tools(raw, "gpt-4o").tokens > 60
    assert counter.fallbacks == 0


def test_endless_tool_lists_are_counted_as_json(counter: TokenCounter) -> None:
    properties = {f"property_{number}": {"type": "string"} for number in range(20_000)}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    raw = json.dumps([{"type": "function", "function": {"name": "f", "parameters": parameters}}]).encode()
    count = counter.count_tools(raw, "gpt-4o")
    assert len(raw) // 5 < count.tokens < len(raw) // 2
    assert not count.exact


def test_more_tools_cost_more(counter: TokenCounter) -> None:
    one, two = (counter.count_tools(json.dumps([WEATHER] * count).encode(), "gpt-4o") for count in (1, 2))
    assert one.tokens < two.tokens < len(json.dumps([WEATHER] * 2))
    assert not one.exact
