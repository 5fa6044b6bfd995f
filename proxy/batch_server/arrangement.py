"""The order in which the lines of a batch run: what begins alike lies together. Pure.

An engine keeps the prompts that it saw last. Lines of one model follow each other, among them those with the
longest common beginnings; what has nothing in common stays in the order of the file. The order follows from
the whole file, so that it is the same after a restart, for what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from proxy.batch_server.beginnings import LEVEL_BYTES
from proxy.batch_server.lines import InputLine


def arranged(lines: Sequence[InputLine], done: Collection[int] = ()) -> list[InputLine]:
    """Return the lines in the order to run them, without those whose numbers are `done`."""
    by_model: dict[str, list[InputLine]] = {}
    for line in lines:
        by_model.setdefault(line.model, []).append(line)
    finished = frozenset(done)
    ordered = (line for group in by_model.values() for line in _grouped(group, 0))
    return [line for line in ordered if line.number not in finished]


def _grouped(lines: list[InputLine], level: int) -> Iterator[InputLine]:
    """Yield lines that are alike up to `level`, those that are alike beyond it next to each other."""
    if len(lines) < 3:
        yield from lines
        return
    start = level * LEVEL_BYTES
    groups: dict[bytes, list[InputLine]] = {}
    for line in lines:
        groups.setdefault(line.beginning[start : start + LEVEL_BYTES], []).append(line)
    for key, group in groups.items():
        if key:
            yield from _grouped(group, level + 1)
        else:
            yield from group
