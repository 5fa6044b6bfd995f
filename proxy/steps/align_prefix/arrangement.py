"""Which lines of the system text go behind which: what changes behind what does not.

Owns the order of lines. Whole paragraphs are moved and nothing else: no line is changed, added or dropped but
for the blank line that keeps a paragraph apart, so that the stable part is the same bytes whatever the others
say. Every line keeps the end that it was written with.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.steps.align_prefix.structure import free_lines, whole_paragraphs
from proxy.steps.align_prefix.volatile import Change, changes_of


class SystemText(msgspec.Struct, frozen=True):
    """One text of the system text; `can_go` tells whether it can be left out once nothing is in it."""

    text: str
    can_go: bool


class Arrangement(msgspec.Struct, frozen=True):
    """The order of a system text.

    texts         what becomes of the texts, by number: `None` for one that is empty now
    stable_texts  what does not change, by text
    last          the last text with something that does not change; -1 if there is none
    stable_chars  how much of that text, as it is then, does not change
    moved         how many lines were moved
    change        how often the most volatile of the lines changes
    is_aligned    nothing volatile stands before something stable any more
    """

    texts: dict[int, str | None]
    stable_texts: tuple[str, ...]
    last: int
    stable_chars: int
    moved: int
    change: Change
    is_aligned: bool


class _Line(msgspec.Struct, frozen=True):
    """A line, how it ends (the last of a text does not), how often it changes and whether it may be moved."""

    text: str
    end: str
    change: Change = Change.NEVER
    can_move: bool = False

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()

    @property
    def is_stable(self) -> bool:
        return not self.change and not self.is_blank


def arrange(texts: Sequence[SystemText], declared: Sequence[str]) -> Arrangement:
    """Return the order in which paragraphs that change stand behind all that do not."""
    split = _read([each.text for each in texts], declared)
    last = max((number for number, lines in enumerate(split) if _end(lines)), default=-1)
    edits: dict[int, str | None] = {}
    moved: list[_Line] = []
    is_aligned = True
    for number in range(last):
        kept, taken = _parted(split[number])
        if taken and all(line.is_blank for line in kept) and not texts[number].can_go:
            is_aligned = False
        elif taken:
            edits[number] = None if all(line.is_blank for line in kept) else _joined(kept)
            moved += taken
        is_aligned &= not any(line.change and not line.can_move for line in split[number])
    stable_chars = 0
    if last >= 0:
        lines = split[last]
        end = _end(lines)
        # What is part of a paragraph with something stable in it stays with that.
        border = next((index for index in range(end, len(lines)) if lines[index].is_blank), len(lines))
        kept, taken = _parted(lines[:border], is_whole=False)
        moved += taken
        stable = kept[: len(kept) - (border - end)]
        stable_chars = len(_joined(stable))
        is_aligned &= not any(line.change and not line.can_move for line in lines[:end])
        if moved:
            edits[last] = _joined([*kept, *moved, *lines[border:]])
    return Arrangement(
        edits,
        tuple(_joined([line for line in lines if not line.change]).strip("\r\n") for lines in split),
        last,
        stable_chars,
        sum(not line.is_blank for line in moved),
        max((line.change for lines in split for line in lines), default=Change.NEVER),
        is_aligned,
    )


def _read(texts: Sequence[str], declared: Sequence[str]) -> list[list[_Line]]:
    if not declared:
        return [_lines(text) for text in texts]
    split = [_lines(text) for text in texts]
    free = free_lines([[line.text for line in lines] for lines in split])
    read: list[list[_Line]] = []
    for lines, is_free in zip(split, free, strict=True):
        words = [line.text for line in lines]
        changes = [
            change if may else Change.NEVER
            for change, may in zip(changes_of(words, declared), is_free, strict=True)
        ]
        going = whole_paragraphs(words, list(map(bool, changes)))
        read.append(
            [
                _Line(line.text, line.end, change, can)
                for line, change, can in zip(lines, changes, going, strict=True)
            ]
        )
    return read


def _lines(text: str) -> list[_Line]:
    pieces = text.split("\n")
    lines = [
        _Line(piece[:-1], "\r\n") if piece.endswith("\r") else _Line(piece, "\n") for piece in pieces[:-1]
    ]
    return [*lines, _Line(pieces[-1], "")]


def _joined(lines: Sequence[_Line]) -> str:
    """Return lines as a text: the last loses its end, one that had none gets that of its neighbour."""
    if not lines:
        return ""
    pieces: list[str] = []
    for index, line in enumerate(lines[:-1]):
        pieces += (
            line.text,
            line.end or (lines[index - 1].end if index else "") or lines[index + 1].end or "\n",
        )
    return "".join(pieces) + lines[-1].text


def _end(lines: Sequence[_Line]) -> int:
    """Return the number of lines up to the last that does not change and is not blank."""
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].is_stable:
            return index + 1
    return 0


def _parted(lines: Sequence[_Line], *, is_whole: bool = True) -> tuple[list[_Line], list[_Line]]:
    """Return which lines stay and which go behind, every paragraph of these with a blank line before it.

    `is_whole` says that the text ends with them.
    """
    kept: list[_Line] = []
    taken: list[_Line] = []
    index = 0
    while index < len(lines):
        if not lines[index].can_move:
            kept.append(lines[index])
            index += 1
            continue
        run = index
        while run < len(lines) and lines[run].can_move:
            run += 1
        if run < len(lines):
            taken.append(lines[run])
        elif is_whole and kept and kept[-1].is_blank:
            taken.append(kept.pop())
        else:
            taken.append(_Line("", lines[index].end or "\n"))
        taken += lines[index:run]
        index = run + 1
    return kept, taken
