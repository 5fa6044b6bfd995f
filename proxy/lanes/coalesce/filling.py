"""One JSON object written many times, each with values of its own: spliced once, not once for each. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from proxy.core.document import Document

_MARK = re.compile(rb"\x00(\d+)\x00")
"""Stands where a value will: no JSON text holds such bytes."""


def filled(document: Document, values: Mapping[str, Sequence[bytes]], count: int) -> list[bytes]:
    """Return the document `count` times, with `values[key][n]` as the raw value of each key in the nth.

    A key that the document does not have is appended, as `Document.set` does.
    """
    if b"\x00" in document.to_bytes():
        return [_filled_once(document, values, number) for number in range(count)]
    template = document
    for place, key in enumerate(values):
        template = template.set(key, b"\x00%d\x00" % place)
    fixed = _MARK.split(template.to_bytes())
    columns = list(values.values())
    places = [(position, columns[int(fixed[position])]) for position in range(1, len(fixed), 2)]
    made: list[bytes] = []
    for number in range(count):
        for position, column in places:
            fixed[position] = column[number]
        made.append(b"".join(fixed))
    return made


def _filled_once(document: Document, values: Mapping[str, Sequence[bytes]], number: int) -> bytes:
    for key, column in values.items():
        document = document.set(key, column[number])
    return document.to_bytes()
