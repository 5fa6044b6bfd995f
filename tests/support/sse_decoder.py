"""A decoder of event streams that is as strict as the official SDKs: what a caller would be handed.

Written from the HTML standard, section 9.2.6, with the SDKs' one difference: a blank line hands over an event
as soon as any field was set, and the last id stays set.
"""

from __future__ import annotations

import re

_LINES = re.compile(rb"\r\n|\n|\r")


def dispatched(stream: bytes) -> list[tuple[bytes, bytes]]:
    """Return name and data of every event that a caller would be handed, empty ones included."""
    events: list[tuple[bytes, bytes]] = []
    name, last_id, retry = b"", b"", b""
    data: list[bytes] = []
    *lines, _unfinished = _LINES.split(stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if name or data or last_id or retry:
                events.append((name, b"\n".join(data)))
            name, retry, data = b"", b"", []
        elif field == b"event":
            name = value
        elif field == b"data":
            data.append(value)
        elif field == b"id" and b"\0" not in value:
            last_id = value
        elif field == b"retry" and value.isdigit():
            retry = value
    return events
