"""A JSON value that fits a JSON Schema: what structured outputs and tool arguments are made of.

It owns a simple generator for the keywords that structured outputs use. It refuses to solve schemas:
`pattern`, `not`, `if` and `dependentSchemas` are not looked at, and an unsatisfiable schema gets some value
all the same.
"""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Mapping, Sequence
from typing import cast

from proxy.sim.text import prose

_MAX_DEPTH = 24
_SOFT_DEPTH = 6
_MAX_LISTED = 200

_FORMATS: Mapping[str, str] = {
    "date-time": "2024-05-17T09:30:00Z",
    "date": "2024-05-17",
    "time": "09:30:00Z",
    "duration": "PT15M",
    "email": "someone@example.com",
    "hostname": "host.example.com",
    "ipv4": "192.0.2.7",
    "ipv6": "2001:db8::7",
    "uri": "https://example.com/a",
    "uuid": "3f1c7a52-5d0e-4c3b-9a41-0b6d2f8e7c10",
}


def fitting_value(schema: object, generator: random.Random) -> object:
    """Return a value that fits `schema` (an object, or true for "anything")."""
    return _Fitter(schema, generator).value(schema, 0)


class _Fitter:
    def __init__(self, root: object, generator: random.Random) -> None:
        self._root = root
        self._random = generator

    def value(self, schema: object, depth: int) -> object:
        schema = self._resolved(schema, depth)
        if not schema:
            return self._words(2)
        if "const" in schema:
            return schema["const"]
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            return self._random.choice(choices)
        for word in ("anyOf", "oneOf"):
            options = schema.get(word)
            if isinstance(options, list) and options:
                rest = {key: value for key, value in schema.items() if key != word}
                return self.value(_merged(rest, self._option(options, depth)), depth + 1)
        return self._typed(schema, depth)

    def _option(self, options: Sequence[object], depth: int) -> object:
        """Pick any option, near the depth limit the one that cannot nest further."""
        if depth < _SOFT_DEPTH:
            return self._random.choice(options)
        flat = ("null", "string", "number", "integer", "boolean")
        for option in options:
            if isinstance(option, dict) and (
                option.get("type") in flat or "const" in option or "enum" in option
            ):
                return option
        return options[0]

    def _resolved(self, schema: object, depth: int) -> Mapping[str, object]:
        """Follow references and fold `allOf` in."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return {}
        merged = cast("Mapping[str, object]", schema)
        for _ in range(_MAX_DEPTH):
            reference = merged.get("$ref")
            if not isinstance(reference, str):
                break
            rest = {key: value for key, value in merged.items() if key != "$ref"}
            merged = _merged(rest, self._pointed_at(reference))
        parts = merged.get("allOf")
        if isinstance(parts, list):
            merged = {key: value for key, value in merged.items() if key != "allOf"}
            for part in parts:
                merged = _merged(merged, self._resolved(part, depth + 1))
        return merged

    def _pointed_at(self, reference: str) -> object:
        node: object = self._root
        for raw in reference.removeprefix("#").split("/"):
            key = raw.replace("~1", "/").replace("~0", "~")
            if key:
                node = node.get(key, {}) if isinstance(node, dict) else {}
        return node

    def _typed(self, schema: Mapping[str, object], depth: int) -> object:
        match self._type_of(schema, depth):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number" as kind:
                return self._number(schema, kind == "integer")
            case "boolean":
                return self._random.random() < 0.5
            case "null":
                return None
            case _:
                return self._string(schema)

    def _type_of(self, schema: Mapping[str, object], depth: int) -> str:
        kind = schema.get("type")
        if isinstance(kind, list) and kind:
            if depth >= _SOFT_DEPTH and "null" in kind:
                return "null"
            return str(self._random.choice([item for item in kind if item != "null"] or kind))
        if isinstance(kind, str):
            return kind
        if "properties" in schema or "required" in schema:
            return "object"
        if "items" in schema or "prefixItems" in schema:
            return "array"
        return "number" if {"minimum", "maximum", "multipleOf"} & schema.keys() else "string"

    def _object(self, schema: Mapping[str, object], depth: int) -> dict[str, object]:
        properties = cast("Mapping[str, object]", schema.get("properties") or {})
        required = cast("Sequence[str]", schema.get("required") or ())
        wanted = [name for name in properties if name in required or depth < _SOFT_DEPTH]
        wanted += [name for name in required if name not in properties]
        extra = schema.get("additionalProperties", True)
        value = {
            name: self.value(properties.get(name, extra if isinstance(extra, dict) else {}), depth + 1)
            for name in wanted
        }
        for index in range(_whole(schema, "minProperties", 0) - len(value)):
            value[f"key_{index + 1}"] = self.value(extra, depth + 1)
        return value

    def _array(self, schema: Mapping[str, object], depth: int) -> list[object]:
        first = cast("Sequence[object]", schema.get("prefixItems") or ())
        low = _whole(schema, "minItems", 0)
        preferred = max(low, len(first), 0 if depth >= _SOFT_DEPTH else 2)
        length = min(preferred, _whole(schema, "maxItems", preferred), _MAX_LISTED)
        is_unique = schema.get("uniqueItems") is True
        items: list[object] = []
        for index in range(length):
            item_schema = first[index] if index < len(first) else schema.get("items", {})
            item = self.value(item_schema, depth + 1)
            for _ in range(50):
                if not is_unique or item not in items:
                    break
                item = self.value(item_schema, depth + 1)
            if not is_unique or item not in items:
                items.append(item)
        return items

    def _number(self, schema: Mapping[str, object], is_whole: bool) -> int | float:
        step = _real(schema, "multipleOf", 1.0 if is_whole else 0.01)
        low, high = _real(schema, "minimum", -math.inf), _real(schema, "maximum", math.inf)
        over, under = (
            _real(schema, "exclusiveMinimum", -math.inf),
            _real(schema, "exclusiveMaximum", math.inf),
        )
        edge = step if is_whole or "multipleOf" in schema else (min(under, high) - max(over, low)) / 1e6
        edge = edge if math.isfinite(edge) else step
        low, high = max(low, over + edge), min(high, under - edge)
        if not math.isfinite(low):
            low = min(0.0, high) if math.isfinite(high) else 0.0
        if not math.isfinite(high):
            high = low + 100 * step
        first, last = math.ceil(low / step), math.floor(high / step)
        if first > last:
            return int(low) if is_whole else low
        value = self._random.randint(first, last) * step
        return int(value) if is_whole else round(value, 10)

    def _string(self, schema: Mapping[str, object]) -> str:
        known = _FORMATS.get(str(schema.get("format")))
        if known is not None:
            return known
        if schema.get("contentEncoding") == "base64":
            return base64.b64encode(self._words(3).encode()).decode()
        value = self._words(3)
        low, high = _whole(schema, "minLength", 0), _whole(schema, "maxLength", 1_000_000)
        while len(value) < low:
            value += " " + self._words(3)
        return value[: max(high, 0)]

    def _words(self, count: int) -> str:
        return "".join(prose(self._random, count))


def _merged(base: Mapping[str, object], extra: object) -> Mapping[str, object]:
    """Return both schemas in one: properties and required names united, other keywords from `extra` first."""
    if not isinstance(extra, dict):
        return base
    merged: dict[str, object] = {**base, **extra}
    for word in ("properties", "$defs"):
        if isinstance(base.get(word), dict) and isinstance(extra.get(word), dict):
            merged[word] = {**cast("dict[str, object]", base[word]), **extra[word]}
    if isinstance(base.get("required"), list) and isinstance(extra.get("required"), list):
        merged["required"] = [*cast("list[object]", base["required"]), *extra["required"]]
    return merged


def _whole(schema: Mapping[str, object], word: str, default: int) -> int:
    value = schema.get(word)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _real(schema: Mapping[str, object], word: str, default: float) -> float:
    value = schema.get(word)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
