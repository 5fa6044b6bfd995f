"""Owns the step from a config dataclass to the kind of value that a policy may give it.

A step's `Config` is its configuration: the fields' type hints decide what is read, their defaults what may
be left out, their `help` metadata what the schema says. Understood are `str`, `int`, `float`, `bool`, enums,
`Literal` of words, `X | None`, `tuple[X, ...]`, mappings from `str`, nested dataclasses, and `Any`/`object`
for a value of any shape. Another hint is a programming error (`TypeError`).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from proxy.policy.kinds import Choice, Flag, Kind, Real, Text, Whole
from proxy.policy.records import Anything, Key, ListOf, MapOf, Record


def record_of(config: type[Any]) -> Record[Any]:
    """Return the record that reads a mapping into a dataclass."""
    hints = get_type_hints(config)
    keys = {
        field.name: Key(
            kind=kind_of_hint(hints[field.name]),
            help=str(field.metadata.get("help", "")),
            required=_is_required(field),
            default=_json_default(field.default),
        )
        for field in dataclasses.fields(config)
        if field.init
    }
    # Where a parameter may be set, a value without its word most likely wants to be just that.
    advice = (lambda text: f"write {{set: {text}}}") if "set" in keys else (lambda text: "")
    return Record(keys, lambda given: config(**given), advice=advice)


def kind_of_hint(hint: Any) -> Kind[Any]:
    """Return the kind of value that a type hint describes."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(hint, arguments)
    if origin is Literal:
        return Choice.of(arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return ListOf(kind_of_hint(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping) and arguments[0] is str:
        return MapOf(kind_of_hint(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Choice.of_enum(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return record_of(hint)
    raise TypeError(f"a policy cannot fill a field of type {hint}")


_SIMPLE: Mapping[Any, Kind[Any]] = {
    str: Text(),
    int: Whole(),
    float: Real(),
    bool: Flag(),
    object: Anything(),
    Any: Anything(),
}


def _optional(hint: Any, arguments: tuple[Any, ...]) -> Kind[Any]:
    """Absence is how a policy says None, so that only the other alternative is ever read."""
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) == 1:
        return kind_of_hint(others[0])
    if set(others) == {int, float}:
        return Real()
    raise TypeError(f"a policy cannot fill a field of type {hint}")


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _json_default(default: Any) -> Any:
    if isinstance(default, Enum):
        return default.value
    if isinstance(default, tuple) and default:
        return list(default)
    return default if isinstance(default, (str, int, float, bool)) else None
