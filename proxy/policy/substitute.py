"""Owns `${NAME}` and `${file:/path}` in values: replaced once, after parsing, never expanded again.

Working on parsed nodes means that a secret may contain anything that YAML cares about, and that a `$` inside
it stays a `$`. `$$` is a literal `$`; a `$` before anything but `{` or `$` is itself. Keys are not
substituted. Of a file's content one trailing line break is dropped, as editors and mounted secrets add it.
A finding names the key path and the variable or file, never a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from proxy.policy.findings import Broken
from proxy.policy.kinds import Place
from proxy.policy.nodes import ListNode, MapNode, Node, ScalarNode

_REFERENCE = re.compile(r"\$\$|\$\{([^}]*)\}|\$\{")
_BARE_NAME = re.compile(r"\$[A-Z_][A-Z0-9_]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "file:"

ReadText = Callable[[str], str]
"""Return a file's text; raises `OSError`, or `ValueError` for what is no text."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """Where values come from."""

    env: Mapping[str, str]
    read_text: ReadText
    allow_missing: bool = False
    """Whether a missing variable or file is only worth a warning, and its value left unknown."""

    def apply(self, node: Node, place: Place) -> Node:
        """Return the tree with every reference replaced; reports and marks the ones that cannot be."""
        match node:
            case MapNode():
                entries = tuple((key, self.apply(value, place.key(key.text))) for key, value in node.entries)
                return replace(node, entries=entries)
            case ListNode():
                items = tuple(self.apply(item, place.item(index)) for index, item in enumerate(node.items))
                return replace(node, items=items)
            case ScalarNode():
                return self._scalar(node, place) if "$" in node.text else node

    def _scalar(self, node: ScalarNode, place: Place) -> ScalarNode:
        if _BARE_NAME.fullmatch(node.text):
            hint = "did you mean ${NAME}? A literal $ is written $$"
            place.findings.warn(node.mark, place.path, "the $ is taken as it is: nothing is replaced", hint)
            return node
        pieces: list[str] = []
        at = 0
        references = 0
        unknown = False
        try:
            for found in _REFERENCE.finditer(node.text):
                pieces.append(node.text[at : found.start()])
                at = found.end()
                if found[0] == "$$":
                    pieces.append("$")
                    continue
                references += 1
                value = self._value(found[1], node, place)
                unknown = unknown or value is None
                pieces.append("placeholder" if value is None else value)
        except Broken:
            return replace(node, broken=True)
        text = "".join(pieces) + node.text[at:]
        if not references:
            return replace(node, text=text)
        return replace(node, text=text, plain=False, substituted=True, unknown=unknown)

    def _value(self, reference: str | None, node: ScalarNode, place: Place) -> str | None:
        if reference is None:
            raise place.refused(node, "${ without its }", "write $${ for the characters themselves")
        if reference.startswith(_FILE):
            return self._file(reference.removeprefix(_FILE), node, place)
        if _NAME.fullmatch(reference) is None:
            raise place.refused(
                node, "${…} takes NAME or file:/path", "write $${ for the characters themselves"
            )
        value = self.env.get(reference)
        if value is None:
            self._missing(f"environment variable {reference} is not set", node, place)
        return value

    def _missing(self, problem: str, node: ScalarNode, place: Place) -> None:
        if not self.allow_missing:
            raise place.refused(node, problem)
        place.findings.warn(node.mark, place.path, f"{problem}; a placeholder stands for it")

    def _file(self, path: str, node: ScalarNode, place: Place) -> str | None:
        if not path.startswith("/"):
            raise place.refused(node, "${file:…} takes an absolute path")
        try:
            text = self.read_text(path)
        except OSError as error:
            self._missing(f"file {path} cannot be read: {error.strerror or 'error'}", node, place)
            return None
        except ValueError:
            raise place.refused(node, f"file {path} is not a small UTF-8 text") from None
        return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")
