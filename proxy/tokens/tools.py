"""What tool definitions cost: function tools as the TypeScript-like listing that OpenAI models are shown.

Owns the rendering (known from public reverse engineering, good to a few per cent) and the plain-JSON
fallback for every other kind of tool and provider. Refuses to claim exactness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from proxy.tokens.messages import compact_json
from proxy.tokens.port import Count

LISTING_TOKENS = 9
"""Framing around the whole listing, once per request."""

_MAX_DEPTH = 16


def measure_tools(value: object, count_text: Callable[[str], Count]) -> Count:
    """Count a decoded `tools` or `functions` array (or one tool); no tools cost nothing."""
    tools = value if isinstance(value, list) else [value]
    listed = [tool for tool in tools if tool]
    if not listed:
        return Count(0, False)
    rendered = [_function(tool) or compact_json(tool) for tool in listed]
    text = "\n\n".join(("namespace functions {", *rendered, "} // namespace functions"))
    return Count(LISTING_TOKENS + count_text(text).tokens, False)


def _function(tool: object) -> str | None:
    """Render a function tool of the chat or Responses shape; None for any other tool."""
    if not isinstance(tool, dict):
        return None
    nested = tool.get("function")
    function = nested if isinstance(nested, dict) else tool
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not isinstance(parameters, dict | None):
        return None
    if parameters is None and (tool.get("type") not in ("function", None) or "input_schema" in tool):
        return None
    fields = _fields(parameters or {}, 0)
    arguments = f"(_: {{\n{fields}\n}})" if fields else "()"
    return f"{_comment(function)}type {name} = {arguments} => any;"


def _fields(schema: Mapping[str, object], depth: int) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return ""
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else ()
    lines = [
        f"{_comment(field)}{name}{'' if name in needed else '?'}: {_type(field, depth + 1)},"
        for name, field in properties.items()
    ]
    return "\n".join(lines)


def _type(schema: object, depth: int) -> str:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return compact_json(schema)
    choices, kind = schema.get("enum"), schema.get("type")
    if isinstance(choices, list):
        return " | ".join(compact_json(choice) for choice in choices)
    union = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(union, list):
        return " | ".join(_type(choice, depth + 1) for choice in union)
    if isinstance(kind, list):
        return " | ".join(str(word) for word in kind)
    match kind:
        case "object":
            fields = _fields(schema, depth)
            return f"{{\n{fields}\n}}" if fields else "object"
        case "array":
            return f"{_type(schema.get('items', {'type': 'any'}), depth + 1)}[]"
        case "integer":
            return "number"
        case str():
            return kind
        case _:
            return compact_json(schema) if schema else "any"


def _comment(described: object) -> str:
    description = described.get("description") if isinstance(described, dict) else None
    return f"// {description}\n" if isinstance(description, str) and description else ""
