"""Owns the compound kinds: lists, mappings with free or with known keys, and values of any shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from proxy.policy.findings import Broken, did_you_mean
from proxy.policy.kinds import Kind, Place
from proxy.policy.nodes import ListNode, MapNode, Node, ScalarNode, kind_of
from proxy.policy.traps import DECIMAL, INTEGER, quoted, trap

T = TypeVar("T")


def mapping(node: Node, place: Place) -> MapNode:
    """Return the node if it is a mapping."""
    if isinstance(node, MapNode):
        return node
    nothing = isinstance(node, ScalarNode) and node.plain and not node.text
    hint = "write {} for one without keys" if nothing else ""
    raise place.refused(node, f"a mapping is wanted, not {'nothing' if nothing else kind_of(node)}", hint)


@dataclass(frozen=True, slots=True)
class ListOf(Generic[T]):
    """A list. `or_one` accepts a single element without its brackets; elements must be unlike if `unique`."""

    element: Kind[T]
    or_one: bool = False
    may_be_empty: bool = True

    def read(self, node: Node, place: Place) -> tuple[T, ...]:
        """Return the elements."""
        if not isinstance(node, ListNode):
            if self.or_one:
                return (self.element.read(node, place),)
            raise place.refused(node, f"a list is wanted, not {kind_of(node)}", "put it into [ ]")
        if not node.items and not self.may_be_empty:
            raise place.refused(node, "the list is empty: leave the key out")
        read: list[T] = []
        for index, item in enumerate(node.items):
            try:
                read.append(self.element.read(item, place.item(index)))
            except Broken:
                continue
        if len(read) != len(node.items):
            raise Broken
        return tuple(read)

    def schema(self) -> dict[str, Any]:
        """Return the schema of an array, or of one element too."""
        array: dict[str, Any] = {"type": "array", "items": self.element.schema()}
        if not self.may_be_empty:
            array["minItems"] = 1
        return {"anyOf": [self.element.schema(), array]} if self.or_one else array


@dataclass(frozen=True, slots=True)
class MapOf(Generic[T]):
    """A mapping whose keys are the operator's own; `check_key` may refuse or normalise them."""

    value: Kind[T]
    check_key: Callable[[str], str] = str

    def read(self, node: Node, place: Place) -> dict[str, T]:
        """Return the entries in order."""
        read: dict[str, T] = {}
        given = mapping(node, place)
        for key, value in given.entries:
            below = place.key(key.text)
            try:
                name = self._name(key, below)
                if name in read:
                    raise below.refused(key, f"{name} is given twice")
                read[name] = self.value.read(value, below)
            except Broken:
                continue
        if len(read) != len(given.entries):
            raise Broken
        return read

    def _name(self, key: ScalarNode, place: Place) -> str:
        # A key is always text, so that `n:` may stay unquoted although YAML 1.1 has it as a boolean.
        if not key.text:
            raise place.refused(key, "the key is empty")
        try:
            return self.check_key(key.text)
        except ValueError as error:
            raise place.refused(key, str(error)) from None

    def schema(self) -> dict[str, Any]:
        """Return the schema of an object with any keys."""
        return {"type": "object", "additionalProperties": self.value.schema()}


@dataclass(frozen=True, slots=True)
class Key:
    """One known key of a record."""

    kind: Kind[Any]
    help: str
    required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    """A mapping with known keys, made into a value by `build` from the keys that were given.

    `build` may raise `ValueError`: it becomes a finding at the record's own position.
    """

    keys: Mapping[str, Key]
    build: Callable[[dict[str, Any]], T]
    help: str = ""

    def read(self, node: Node, place: Place) -> T:
        """Return what `build` makes of the given keys."""
        given = mapping(node, place)
        values: dict[str, Any] = {}
        broken = False
        for name, value in given.entries:
            below = place.key(name.text)
            try:
                known = self.keys.get(name.text)
                if known is None:
                    raise below.refused(name, f"unknown key {name.text}", did_you_mean(name.text, self.keys))
                values[name.text] = known.kind.read(value, below)
            except Broken:
                broken = True
        for name_wanted, key in self.keys.items():
            if key.required and given.get(name_wanted) is None:
                place.findings.error(given.mark, place.path, f"key {name_wanted} is missing")
                broken = True
        if broken:
            raise Broken
        try:
            return self.build(values)
        except ValueError as error:
            raise place.refused(node, str(error)) from None

    def schema(self) -> dict[str, Any]:
        """Return the schema of an object with just these keys."""
        schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
        if self.help:
            schema["description"] = self.help
        schema["properties"] = {name: _key_schema(key) for name, key in self.keys.items()}
        required = [name for name, key in self.keys.items() if key.required]
        return schema | {"required": required} if required else schema


def _key_schema(key: Key) -> dict[str, Any]:
    schema = {"description": key.help} if key.help else {}
    return schema | key.kind.schema() | ({"default": key.default} if key.default is not None else {})


@dataclass(frozen=True, slots=True)
class Anything:
    """A value of any shape, as JSON has them. Words that YAML versions read differently must be quoted."""

    def read(self, node: Node, place: Place) -> Any:
        """Return `None`, a boolean, a number, text, a list or a dict."""
        match node:
            case ListNode():
                return list(ListOf(self).read(node, place))
            case MapNode():
                return MapOf(self).read(node, place)
            case ScalarNode():
                return self._scalar(node, place)

    def _scalar(self, node: ScalarNode, place: Place) -> Any:
        text = node.text
        if node.broken:
            raise Broken
        if not node.plain or node.substituted:
            return text
        if text in ("true", "false"):
            return text == "true"
        if text == "null":
            return None
        if INTEGER.fullmatch(text):
            return int(text)
        if DECIMAL.fullmatch(text):
            return float(text)
        read_as = trap(text)
        if read_as is not None:
            raise place.refused(node, f"{text or 'nothing'} may be read as {read_as}", quoted(text))
        return text

    def schema(self) -> dict[str, Any]:
        """Return the schema that accepts everything."""
        return {}
