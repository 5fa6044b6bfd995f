"""Reading a configuration mapping into frozen dataclasses, strictly: the dataclass is the schema.

It owns unknown keys, types and ranges and reports each problem with its place. It refuses to guess: nothing
is converted except a whole number where a decimal is due.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml

T = TypeVar("T")


class ScenarioError(ValueError):
    """A scenario that cannot be used; the message is `file:line: path: problem`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: its key path and the lines of all paths of the same file."""

    file: str
    path: str
    lines: Mapping[str, int]

    def at(self, key: str | int) -> Place:
        """Return the place of a member: `.key` of a mapping or `[index]` of a list."""
        suffix = f"[{key}]" if isinstance(key, int) else f".{key}" if self.path else key
        return Place(self.file, self.path + suffix, self.lines)

    def error(self, problem: str) -> ScenarioError:
        """Return the error that says what is wrong here."""
        line = self.lines.get(self.path)
        where = self.file if line is None else f"{self.file}:{line}"
        return ScenarioError(": ".join(part for part in (where, self.path, problem) if part))


def setting(default: Any, help_: str, *, low: float | None = None, high: float | None = None) -> Any:
    """Declare a field of a configuration dataclass with its meaning and its range, both ends included."""
    return field(default=default, metadata={"help": help_, "low": low, "high": high})


def load_mapping(raw: bytes, file: str) -> tuple[dict[str, object], Place]:
    """Parse YAML, or JSON, which is YAML too.

    Raises ScenarioError for bad syntax, keys given twice and anything but a mapping.
    """
    lines: dict[str, int] = {}
    root = Place(file, "", lines)
    try:
        node = yaml.compose(raw, Loader=yaml.SafeLoader)
        value = yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{file}: not valid YAML or JSON: {error}") from None
    if node is None:
        return {}, root
    _note_lines(node, root, lines)
    return _as_mapping(value, root), root


def _note_lines(node: yaml.Node, place: Place, lines: dict[str, int]) -> None:
    lines[place.path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            member = place.at(str(key.value))
            _note_lines(value, member, lines)
            lines[member.path] = key.start_mark.line + 1
            if member.path in seen:
                raise member.error("key given twice")
            seen.add(member.path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_lines(value, place.at(index), lines)


def read_dataclass(kind: type[T], value: object, place: Place) -> T:
    """Return a `kind` from a mapping whose keys are its fields; absent keys keep their defaults."""
    given = _as_mapping(value, place)
    assert is_dataclass(kind)
    known = {item.name: item for item in fields(kind)}
    for key in given:
        if key not in known:
            raise place.at(key).error(_unknown(key, list(known)))
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for name, item in known.items():
        if name in given:
            values[name] = _read(hints[name], given[name], place.at(name))
            _check_range(values[name], item.metadata, place.at(name))
        elif item.default is MISSING and item.default_factory is MISSING:
            raise place.error(f"key '{name}' is missing")
    return cast("T", kind(**values))


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"unknown key (did you mean '{near[0]}'?)" if near else f"unknown key (known: {', '.join(known)})"


def _as_mapping(value: object, place: Place) -> dict[str, object]:
    if not isinstance(value, dict):
        raise place.error(f"expected a mapping, not {_name(value)}")
    for key in value:
        if not isinstance(key, str):
            raise place.error(f"key {key!r} is {_name(key)}, not a string: quote it")
    return cast("dict[str, object]", value)


def _read(hint: Any, value: object, place: Place) -> object:
    if isinstance(hint, UnionType):
        if value is None:
            return None
        return _read(next(arg for arg in get_args(hint) if arg is not type(None)), value, place)
    if is_dataclass(hint):
        return read_dataclass(cast("type[object]", hint), value, place)
    if get_origin(hint) is tuple:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise place.error(f"expected a list, not {_name(value)}")
        return tuple(_read(get_args(hint)[0], item, place.at(index)) for index, item in enumerate(items))
    if get_origin(hint) is not None:
        return {
            key: _read(get_args(hint)[1], item, place.at(key))
            for key, item in _as_mapping(value, place).items()
        }
    return _read_scalar(hint, value, place)


def _read_scalar(kind: type, value: object, place: Place) -> object:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        hint = ": quote it" if kind is str else ""
        raise place.error(f"expected {_KINDS[kind]}, not {_name(value)}{hint}")
    if isinstance(value, float) and not math.isfinite(value):
        raise place.error("must be finite")
    return value


def _check_range(value: object, metadata: Mapping[str, Any], place: Place) -> None:
    if not isinstance(value, int | float):
        return
    low, high = metadata.get("low"), metadata.get("high")
    if low is not None and not value >= low:
        raise place.error(f"must be at least {low:g}, not {value:g}")
    if high is not None and not value <= high:
        raise place.error(f"must be at most {high:g}, not {value:g}")


_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    dict: "a mapping",
    list: "a list",
    type(None): "nothing",
}


def _name(value: object) -> str:
    return _KINDS.get(type(value), f"a {type(value).__name__}")
