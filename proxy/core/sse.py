"""Server-sent events as bytes: where one ends, what its data is.

Follows the parsing rules of the HTML standard, section 9.2.6: lines end in CR LF, LF or CR, a blank line ends
an event, `data` lines are joined by LF. Nothing here decodes text, looks into the data or drops a byte.
"""

from __future__ import annotations

import re

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")

# A blank line is a line end right after a line end. A CR that closes it may be half of a CR LF whose LF is
# still to come, so it counts only once the next byte is there. Two bare CRs count at once: a stream that
# writes them is not one that writes CR LF, and its events must not wait for the next one.
_BLANK_LINE = re.compile(rb"\r\r|(?>\r\n|\n)(?:\r\n|\n|\r(?=[^\n]))")
_LONGEST_UNDECIDED_BYTES = 3


def event_data(event: bytes) -> bytes:
    """Return the data of one raw event: its `data` lines joined by LF, `b""` when it has none."""
    # One `data: ...` line, perhaps after one `event: ...` line, is nearly all there is on the wire.
    start = event.find(b"\n") + 1 if event.startswith(b"event: ") else 0
    if _is_last_line(event, start):
        return event[start + 6 : -2]
    return b"\n".join(_field(event, b"data"))


def event_name(event: bytes) -> bytes:
    """Return the value of the last `event` line of one raw event, `b""` when it has none."""
    if _is_last_line(event, 0):
        return b""
    names = _field(event, b"event")
    return names[-1] if names else b""


def _is_last_line(event: bytes, start: int) -> bool:
    """Tell whether a `data: ` line and the blank one are all that stands from `start` on.

    In an event cut short the last byte may be another, which alone is no field and does not count.
    """
    return (
        event.startswith(b"data: ", start)
        and event.find(b"\n", start) == len(event) - 2
        and b"\r" not in event
    )


def _field(event: bytes, name: bytes) -> list[bytes]:
    values: list[bytes] = []
    for line in _LINE_END.split(event.removeprefix(_BOM)):
        found, _, value = line.partition(b":")
        if found == name:
            values.append(value[1:] if value.startswith(b" ") else value)
    return values


def _ends(data: bytes | bytearray, start: int) -> list[int]:
    """Return where events end in `data` from `start` on."""
    if data.find(b"\r", start) >= 0:
        return [blank.end() for blank in _BLANK_LINE.finditer(data, start)]
    # Without CR a blank line is two LF, and looking for these is fifty times faster than matching.
    ends: list[int] = []
    blank = data.find(b"\n\n", start)
    while blank >= 0:
        ends.append(blank + 2)
        blank = data.find(b"\n\n", blank + 2)
    return ends


class EventSplitter:
    """Cuts a byte stream into raw events, terminators included, in time linear in its length.

    The events returned so far plus `carry` are the bytes fed so far, whatever the cuts between chunks; where
    events end does not depend on the cuts.
    """

    __slots__ = ("_carry",)

    def __init__(self) -> None:
        self._carry = bytearray()

    @property
    def carry(self) -> bytes:
        """The bytes after the last complete event."""
        return bytes(self._carry)

    @property
    def carry_bytes(self) -> int:
        """The length of `carry`, which asking does not copy."""
        return len(self._carry)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes of the stream and return the events that they complete."""
        carry = self._carry
        if carry:
            return self._feed_carry(chunk)
        if chunk.find(b"\n\n") == len(chunk) - 2 >= 0 and b"\r" not in chunk:
            return [chunk]
        events: list[bytes] = []
        position = 0
        for end in _ends(chunk, 0):
            events.append(chunk[position:end])
            position = end
        carry += chunk[position:]
        return events

    def _feed_carry(self, chunk: bytes) -> list[bytes]:
        carry = self._carry
        searched = max(0, len(carry) - _LONGEST_UNDECIDED_BYTES)
        carry += chunk
        ends = _ends(carry, searched)
        if not ends:
            return []
        events: list[bytes] = []
        position = 0
        for end in ends:
            events.append(bytes(carry[position:end]))
            position = end
        del carry[:position]
        return events
