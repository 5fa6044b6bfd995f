"""Owns reading one YAML file into nodes with positions. Refuses whatever could mean two things.

PyYAML scans and parses; nothing is resolved or constructed, so `no` is not yet false here and `012` not yet
ten. Refused: duplicate keys, tags other than `!!str`, more than one document, keys that are no text, nesting
beyond 64 levels, and aliases that would grow a file beyond 20,000 nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from proxy.policy.findings import Broken, FindingList, Mark
from proxy.policy.nodes import ListNode, MapNode, Node, ScalarNode

MAX_NODES = 20_000
MAX_DEPTH = 64
Trail = tuple[str | int, ...]
"""Keys and indices from the root to a node."""

_TEXT_TAG = "tag:yaml.org,2002:str"
_MERGE = "<<"


def parse_yaml(file: str, raw: bytes, findings: FindingList) -> Node | None:
    """Return the one document of a file; reports what is wrong with it and returns `None`."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        findings.error(Mark(file, line), "", "the file is not valid UTF-8")
        return None
    try:
        return _Composer(file, text, findings).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        problem = error.problem or error.context or "syntax error"
        findings.error(
            Mark(file, line, column), "", f"not valid YAML: {problem}", _syntax_hint(text, line, problem)
        )
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark_here = Mark(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        findings.error(mark_here, "", "not valid YAML: a character that YAML does not allow")
    except Broken:
        pass
    return None


def _syntax_hint(text: str, line: int, problem: str) -> str:
    shown = text.splitlines()[line - 1] if line <= len(text.splitlines()) else ""
    if "${" in shown and "{" in shown.replace("${", ""):
        return 'quote "${NAME}" between { and }'
    if "alphabetic or numeric" in problem or "undefined alias" in problem:
        return "quote a pattern that begins with *"
    if "tab" in problem or "'\\t'" in problem:
        return "indent with spaces"
    return ""


def key_path(trail: Trail) -> str:
    """Return a trail in the notation of findings, such as `routes[0].name`."""
    path = ""
    for step in trail:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


class _Composer:
    """Builds the tree of one file from PyYAML's events."""

    def __init__(self, file: str, text: str, findings: FindingList) -> None:
        self._file = file
        self._events: Iterator[Event] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self._findings = findings
        self._anchors: dict[str, Node | None] = {}
        self._trail: Trail = ()

    def document(self) -> Node | None:
        """Return the only document."""
        root: Node | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._trail = ()
                    self._fail(
                        event, "a second document in one file", "put each policy into a file of its own"
                    )
                root = self._node(next(self._events), ())
        if root is None or (isinstance(root, ScalarNode) and root.plain and not root.text):
            self._findings.error(Mark(self._file), "", "the file is empty", "a policy begins with version: 1")
            return None
        return root

    def _node(self, event: Event, trail: Trail) -> Node:
        self._trail = trail
        if len(trail) > MAX_DEPTH:
            self._fail(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, AliasEvent):
            return self._alias(event)
        assert isinstance(event, NodeEvent)
        if event.anchor is not None:
            # Known but not finished: an alias to it from within would never end.
            self._anchors[event.anchor] = None
        node: Node
        if isinstance(event, ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, SequenceStartEvent):
            node = self._sequence(event, trail)
        else:
            assert isinstance(event, MappingStartEvent)
            node = self._mapping(event, trail)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: AliasEvent) -> Node:
        name = event.anchor or ""
        if name not in self._anchors:
            self._fail(event, f"undefined alias {name}", "quote a pattern that begins with *")
        node = self._anchors[name]
        if node is None:
            self._fail(event, f"alias {name} stands inside the very thing that it names")
        return node

    def _scalar(self, event: ScalarEvent) -> ScalarNode:
        self._check_tag(event, event.tag)
        return ScalarNode(self._mark(event), event.value, event.style is None and event.tag is None)

    def _sequence(self, start: SequenceStartEvent, trail: Trail) -> ListNode:
        self._check_tag(start, start.tag)
        items: list[Node] = []
        weight = 1
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._node(event, (*trail, len(items))))
            weight += self._weigh(event, items[-1], weight)
        return ListNode(self._mark(start), tuple(items), weight)

    def _mapping(self, start: MappingStartEvent, trail: Trail) -> MapNode:
        self._check_tag(start, start.tag)
        entries: dict[str, tuple[ScalarNode, Node]] = {}
        merged: list[MapNode] = []
        weight = 1
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event, trail)
            value = self._node(next(self._events), (*trail, key.text))
            if key.plain and key.text == _MERGE:
                merged.extend(self._merge_sources(key, value))
            elif key.text in entries:
                first = entries[key.text][0].mark.line
                problem = f"key {key.text} is given twice (first in line {first})"
                self._findings.error(key.mark, key_path((*trail, key.text)), problem)
            else:
                entries[key.text] = (key, value)
            weight += self._weigh(event, value, weight)
        for source in merged:
            for key, value in source.entries:
                entries.setdefault(key.text, (key, value))
        return MapNode(self._mark(start), tuple(entries.values()), weight)

    def _key(self, event: Event, trail: Trail) -> ScalarNode:
        node = self._node(event, (*trail, "?"))
        if not isinstance(node, ScalarNode):
            self._fail(event, "a key must be text")
        return node

    def _merge_sources(self, key: ScalarNode, value: Node) -> list[MapNode]:
        sources = value.items if isinstance(value, ListNode) else (value,)
        found = [source for source in sources if isinstance(source, MapNode)]
        if len(found) != len(sources):
            self._findings.error(key.mark, _MERGE, "a merge takes a mapping or a list of mappings")
        return found

    def _weigh(self, event: Event, node: Node, so_far: int) -> int:
        weight = 1 if isinstance(node, ScalarNode) else node.weight
        if so_far + weight > MAX_NODES:
            self._fail(event, f"larger than {MAX_NODES} nodes once aliases are expanded")
        return weight

    def _check_tag(self, event: Event, tag: str | None) -> None:
        if tag is not None and tag not in ("!", _TEXT_TAG):
            self._fail(event, "tags are not supported", "remove the !")

    def _mark(self, event: Event) -> Mark:
        mark = event.start_mark
        return Mark(self._file, mark.line + 1, mark.column + 1) if mark is not None else Mark(self._file)

    def _fail(self, event: Event, problem: str, hint: str = "") -> NoReturn:
        self._findings.error(self._mark(event), key_path(self._trail), problem, hint)
        raise Broken
