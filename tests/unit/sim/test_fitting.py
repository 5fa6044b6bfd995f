from __future__ import annotations

import jsonschema
import pytest

from proxy.sim.fitting import fitting_value
from proxy.sim.text import seeded

SCHEMAS: dict[str, object] = {
    "nested object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 4},
            "inner": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
        },
        "required": ["name", "tags", "inner"],
        "additionalProperties": False,
    },
    "enum, const, null": {
        "type": "object",
        "properties": {"a": {"enum": [1, "x", None]}, "b": {"const": {"k": 1}}, "c": {"type": "null"}},
        "required": ["a", "b", "c"],
    },
    "integer bounds": {"type": "integer", "minimum": 5, "exclusiveMaximum": 7},
    "integer multiples": {"type": "integer", "multipleOf": 7, "minimum": 50},
    "number bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    "number below": {"type": "number", "maximum": -3.5},
    "string length": {"type": "string", "minLength": 40, "maxLength": 45},
    "format": {"type": "string", "format": "date-time"},
    "nullable type list": {"type": ["integer", "null"]},
    "any of": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["x"]}]},
    "one of beside properties": {
        "type": "object",
        "properties": {"kind": {"type": "string"}},
        "required": ["kind"],
        "oneOf": [{"properties": {"kind": {"const": "a"}}}],
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]},
        ]
    },
    "definitions": {
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/point"},
        "minItems": 1,
    },
    "recursion": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "tree": {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["children"],
        "additionalProperties": False,
    },
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "maxItems": 2},
    "unique": {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
    "anything": {},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_fits_the_schema(name: str) -> None:
    schema = SCHEMAS[name]
    for seed in range(20):
        value = fitting_value(schema, seeded(name, str(seed)))
        jsonschema.Draft202012Validator(schema).validate(value)  # type: ignore[arg-type]  # any schema of the table


def test_is_repeatable() -> None:
    schema = SCHEMAS["nested object"]
    assert fitting_value(schema, seeded("a")) == fitting_value(schema, seeded("a"))


def test_stops_at_a_schema_that_refers_to_itself() -> None:
    assert fitting_value({"$ref": "#"}, seeded("a")) is not None


def test_gives_some_value_for_a_schema_that_nothing_fits() -> None:
    assert isinstance(fitting_value({"type": "integer", "minimum": 5, "maximum": 4}, seeded("a")), int)
