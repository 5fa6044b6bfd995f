"""Which lines of a system text are statements of their own, so that they mean the same elsewhere.

Owns what belongs to something else: code, lists, tables, quotes, headings, what stands between tags, lines of
a dialogue, and every paragraph that says more than what changes. Fences are those of CommonMark. In doubt a
line belongs to its neighbours. Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_FENCE = re.compile(r"( *)(`{3,}(?=[^`]*$)|~{3,})")
_FENCE_END = re.compile(r"( *)(`{3,}|~{3,})[ \t]*$")
_MOST_FENCE_INDENT = 3

_TAG = re.compile(r"([<\[])(/?)([A-Za-z][\w:.-]{0,63})[^<>\[\]]{0,400}([>\]])")
_VOID_TAGS = frozenset({"br", "hr", "img", "input", "link", "meta"})

# List items, headings, quotes, table rows, whatever is indented.
_OF_A_STRUCTURE = re.compile(r"\s|[-*+•] |[-*+]$|\d{1,9}[.)] |[A-Za-z][.)] |#{1,6} |>|\|")
_DATE_AFTER_NUMBER = re.compile(r"\d{1,2}\. [A-Za-z]{3,9}\.?,? \d{4}")
_ROLE = re.compile(
    r"\**(?i:user|assistant|human|system|ai|bot|model|agent|customer|q|a|question|answer|input|output|example)"
    r"(?: \d{1,3})?\**:"
)
_INTRODUCES = re.compile(r"[:：,;][*_ ]{0,4}$")
_HEADING = re.compile(r"#{1,6} |\*\*.*\*\*:?$|(?:=+|-{2,})$")


def is_role_line(line: str) -> bool:
    """Tell whether a line begins with who says it."""
    return _ROLE.match(line) is not None


def free_lines(texts: Sequence[Sequence[str]]) -> list[list[bool]]:
    """Return for each line of each text whether it may be moved on its own, its paragraph aside.

    Lines come without their ends. Tags may be opened in one text and closed in another.
    """
    flat = [line.rstrip() for lines in texts for line in lines]
    inside = _in_tags(flat)
    has_dialogue = sum(map(is_role_line, flat)) > 1
    free: list[list[bool]] = []
    number = 0
    before = ""
    for lines in texts:
        fenced = _in_fences(lines)
        found: list[bool] = []
        before = ""
        for index in range(len(lines)):
            line = flat[number]
            found.append(
                not (inside[number] or fenced[index])
                and not is_structural(line)
                and not (has_dialogue and is_role_line(line))
                and not _INTRODUCES.search(line[-8:])
                and not _leads_on(before)
            )
            if line:
                before = line
            number += 1
        free.append(found)
    return free


def is_structural(line: str) -> bool:
    """Tell whether a line is part of a list, a table, a quote or code, or is a heading."""
    if line.endswith("|"):
        return True
    return _OF_A_STRUCTURE.match(line) is not None and _DATE_AFTER_NUMBER.match(line) is None


def whole_paragraphs(lines: Sequence[str], movable: Sequence[bool]) -> list[bool]:
    """Return which of the lines may go: those of paragraphs of which every line may."""
    going = [False] * len(lines)
    start = 0
    while start < len(lines):
        if not lines[start].strip():
            start += 1
            continue
        end = start
        while end < len(lines) and lines[end].strip():
            end += 1
        if all(movable[start:end]):
            going[start:end] = [True] * (end - start)
        start = end
    return going


def _leads_on(line: str) -> bool:
    """Tell whether what follows a line belongs to it: a heading, an introduction."""
    return line.endswith((":", "：")) or (len(line) <= 200 and _HEADING.match(line) is not None)


def _in_fences(lines: Sequence[str]) -> list[bool]:
    """Return which lines stand in code; all of them where nobody can tell code from words."""
    fenced: list[bool] = []
    opened = ""
    for line in map(str.expandtabs, lines):
        if opened:
            fenced.append(True)
            end = _FENCE_END.match(line)
            if end and len(end[1]) <= _MOST_FENCE_INDENT and end[2].startswith(opened):
                opened = ""
            continue
        start = _FENCE.match(line)
        fenced.append(start is not None)
        if start is not None:
            if len(start[1]) > _MOST_FENCE_INDENT:
                # A fence in a list, or one that is shown in indented code.
                return [True] * len(lines)
            opened = start[2]
    return [True] * len(lines) if opened else fenced


def _in_tags(lines: Sequence[str]) -> list[bool]:
    """Return which lines stand between a tag and its end, those of the tags included."""
    depth = [0] * (len(lines) + 1)
    opened: dict[str, list[tuple[int, bool]]] = {}
    for number, line in enumerate(lines):
        if "<" not in line and "[" not in line:
            continue
        for tag in _TAG.finditer(line):
            if (tag[1], tag[4]) not in (("<", ">"), ("[", "]")) or tag[0].endswith(("/>", "/]")):
                continue
            name = tag[1] + tag[3].lower()
            stands_alone = tag[0] == line.strip()
            if not tag[2]:
                if tag[1] == "[" or tag[3].lower() not in _VOID_TAGS:
                    opened.setdefault(name, []).append((number, stands_alone and tag[1] == "<"))
            elif opened.get(name):
                start, _ = opened[name].pop()
                depth[start] += 1
                depth[number + 1] -= 1
            elif stands_alone:
                # Opened where nobody sees it: all before may be inside.
                depth[0] += 1
                depth[number + 1] -= 1
    for number, is_open in (each for tags in opened.values() for each in tags):
        if is_open:
            depth[number] += 1
    inside: list[bool] = []
    level = 0
    for change in depth[:-1]:
        level += change
        inside.append(level > 0)
    return inside
