"""Which lines of the system text go behind which: what changes behind what does not.

Owns the order of lines. Lines are only moved, never changed, added or dropped, so that the stable part is the
same bytes whatever the others say, and no request gets longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

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


def arrange(texts: Sequence[SystemText], declared: Sequence[str]) -> Arrangement:
    """Return the order in which lines that change stand behind all that do not."""
    split = [each.text.split("\n") for each in texts]
    changes = [changes_of(lines, declared) for lines in split]
    last = max((number for number in range(len(split)) if _end(split[number], changes[number])), default=-1)
    edits: dict[int, str | None] = {}
    moved: list[str] = []
    is_aligned = True
    for number in range(last):
        kept, taken = _parted(split[number], changes[number], len(split[number]))
        if not taken:
            continue
        is_empty = not any(map(str.strip, kept))
        if is_empty and not texts[number].can_go:
            is_aligned = False
            continue
        edits[number] = None if is_empty else "\n".join(kept)
        moved += taken
    stable_chars = 0
    if last >= 0:
        end = _end(split[last], changes[last])
        kept, taken = _parted(split[last], changes[last], end)
        moved += taken
        stable = "\n".join(kept)
        stable_chars = len(stable)
        if moved:
            edits[last] = "\n".join([*kept, *moved, *split[last][end:]])
    return Arrangement(
        edits,
        tuple(
            "\n".join(line for line, change in zip(lines, changing, strict=True) if not change)
            for lines, changing in zip(split, changes, strict=True)
        ),
        last,
        stable_chars,
        sum(1 for line in moved if line.strip()),
        max((change for changing in changes for change in changing), default=Change.NEVER),
        is_aligned,
    )


def _end(lines: Sequence[str], changes: Sequence[Change]) -> int:
    """Return the number of lines up to the last that does not change and is not blank."""
    for index in range(len(lines) - 1, -1, -1):
        if not changes[index] and lines[index].strip():
            return index + 1
    return 0


def _parted(lines: Sequence[str], changes: Sequence[Change], end: int) -> tuple[list[str], list[str]]:
    """Return which of the first `end` lines stay and which go behind.

    A run of them between blank lines takes one of these along, which then stands before it.
    """
    kept: list[str] = []
    taken: list[str] = []
    index = 0
    while index < end:
        if not changes[index]:
            kept.append(lines[index])
            index += 1
            continue
        run = index
        while run < end and changes[run]:
            run += 1
        is_apart = not kept or not kept[-1].strip()
        if is_apart and run < end and not lines[run].strip():
            taken.append(lines[run])
            taken += lines[index:run]
            run += 1
        else:
            taken += lines[index:run]
        index = run
    return kept, taken
