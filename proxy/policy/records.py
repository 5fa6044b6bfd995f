"""Owns the compound kinds: lists, mappings with free or with known keys, and values of any shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from proxy.policy.findings import Broken, did_you_mean
from proxy.policy.kinds import Kind, Place
from proxy.policy.nodes import ListNode, MapNode, Node, ScalarNode, kind_of
from proxy.policy.traps import DECIMAL, INTEGER, quoted, trap

T = TypeVar("T")

_WORD = re.compile(r"\w+")


def is_nothing(node: Node) -> bool:
    """Tell whether nothing at all is written at a place."""
    return isinstance(node, ScalarNode) and node.plain and not node.text


def mapping(node: Node, place: Place, advice: Callable[[str], str] = lambda text: "") -> MapNode:
    """Return the node if it is a mapping. `advice` gives a hint where a single value stands there."""
    if isinstance(node, MapNode):
        return node
    nothing = is_nothing(node)
    hint = "write {} for one without keys" if nothing else ""
    if isinstance(node, ScalarNode) and not nothing and not node.substituted:
        hint = advice(node.text)
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
            if is_nothing(node):
                raise place.refused(node, "the list is empty", "leave the key out or add items")
            raise place.refused(node, f"a list is wanted, not {kind_of(node)}", "put it into [ ]")
        if not node.items and not self.may_be_empty:
            raise place.refused(node, "the list is empty: leave the key out")
        read: list[T] = []
        for index, item in enumerate(node.items):
            try:
                if is_nothing(item):
                    raise place.item(index).refused(
                        item, "the list item is empty", "remove its - or its comma"
                    )
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


def first_word(text: str) -> str:
    """Return the word that a message begins with."""
    found = _WORD.match(text)
    return found[0] if found is not None else ""


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

    `build` may raise `ValueError`: it becomes a finding at the key that its first word names, if that was
    given, else at the record's own position. `advice` says what may be meant by a value without its key.
    """

    keys: Mapping[str, Key]
    build: Callable[[dict[str, Any]], T]
    help: str = ""
    advice: Callable[[str], str] = field(default=lambda text: "")

    def read(self, node: Node, place: Place) -> T:
        """Return what `build` makes of the given keys."""
        given = mapping(node, place, self.advice)
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
            self._report(str(error), given, values, place)
            raise Broken from None

    def _report(self, problem: str, given: MapNode, values: dict[str, Any], place: Place) -> None:
        """Report what `build` refuses, and what it goes on to refuse without the value that it named.

        A later problem that speaks of a value left out may only be there because it was: it ends the search.
        """
        marks = {name.text: name.mark for name, _ in given.entries}
        left, left_out = dict(values), set[str]()
        while True:
            name = first_word(problem)
            place.findings.error(marks.get(name, given.mark), place.path, problem)
            if name not in left or self.keys[name].required:
                return
            del left[name]
            left_out.add(name)
            try:
                self.build(left)
            except ValueError as error:
                problem = str(error)
            else:
                return
            if first_word(problem) not in left or left_out.intersection(_WORD.findall(problem)):
                return

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
