"""Owns the tree that a YAML file becomes: three frozen kinds of node that remember where they stand.

Nothing is converted here. A plain `no` stays the text "no" plus the fact that it was not quoted; what it may
mean is decided by whoever knows what is wanted at that place.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.policy.findings import Mark


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """One value. `plain` is whether it was written without quotes, tag or block style.

    `substituted` marks text that came from the environment or a file: it is always text, never shown.
    `unknown` marks text of which a part is missing where that is allowed: a placeholder stands for it.
    `broken` marks text whose substitution failed and has been reported: reading it says nothing more.
    """

    mark: Mark
    text: str
    plain: bool
    substituted: bool = False
    broken: bool = False
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class ListNode:
    """A sequence. `weight` counts all nodes below, aliases expanded."""

    mark: Mark
    items: tuple[Node, ...]
    weight: int = 1


@dataclass(frozen=True, slots=True)
class MapNode:
    """A mapping, merges (`<<`) resolved, keys unique. `weight` counts all nodes below, aliases expanded."""

    mark: Mark
    entries: tuple[tuple[ScalarNode, Node], ...]
    weight: int = 1

    def get(self, key: str) -> Node | None:
        """Return the value of a key."""
        for name, value in self.entries:
            if name.text == key:
                return value
        return None


Node = ScalarNode | ListNode | MapNode


def kind_of(node: Node) -> str:
    """Return what a node is, in the words of an error message."""
    match node:
        case MapNode():
            return "a mapping"
        case ListNode():
            return "a list"
        case ScalarNode():
            return "a value"
