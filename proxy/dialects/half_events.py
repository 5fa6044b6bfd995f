"""Owns how an event that broke off in the middle is ended, so that no reader fails on it before it hears why.

Half of an event's data has reached the caller and cannot be called back, and SDKs parse all data as JSON. So
it is completed to an object that says itself that the answer failed. Nothing here knows a dialect's events.
"""

from __future__ import annotations

import json
import re

from proxy.core.sse import event_data

MAX_HALF_BYTES = 64 * 1024
"""A longer half is ended as it is."""

_BLANK_LINE = b"\n\n"
_LAST_LINE = re.compile(rb"[^\r\n]*\Z")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+("?)', re.DOTALL)
_HALF_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\(u[0-9a-fA-F]{0,3})?\Z")
_CLOSERS = {ord("{"): b"}", ord("["): b"]"}
_CHARACTER_ENDS = (b"", b"\xbf", b"\x80", b"\xbf\xbf", b"\x80\xbf", b"\xbf\xbf\xbf", b"\x80\xbf\xbf")
_CONTINUATIONS = (
    *(b"", b":null", b"null", b'"_":null'),
    *(b"rue", b"ue", b"e", b"alse", b"lse", b"se", b"ull", b"ll", b"l", b"0"),
)
"""What may follow where a value, a key, a literal or a number broke off."""


def ending(half: bytes, error_event: bytes) -> bytes:
    """Return what to send after `half` so that the event ends. `error_event` is the dialect's, which follows.

    The data becomes an object with the error's own `error` member, where it was to be an object at all; the
    event takes the error event's name, if that has one.
    """
    if not half or len(half) > MAX_HALF_BYTES:
        return _BLANK_LINE
    line = _last_line(half)
    data = event_data(half + b"\n")
    if line == b"data" or line.startswith(b"data:"):
        begin = b":" if line == b"data" else b""
    elif data and not _is_json(data):
        # Its data goes on in a line of its own.
        begin, data = (b"" if not line else b"\n") + b"data: ", data + b"\n"
    else:
        return _BLANK_LINE
    completed = completion(data, _error_member(error_event))
    if completed is None:
        return _BLANK_LINE
    name = b"\nevent: error" if error_event.startswith(b"event: error") else b""
    return begin + completed + name + _BLANK_LINE


def completion(data: bytes, error: bytes) -> bytes | None:
    """Return what makes `data` a JSON object with a last member `error`; `None` where nothing does."""
    begin = data.lstrip(b" \t\r\n")
    if not begin:
        return b'{"error":%b}' % error
    if not begin.startswith(b"{"):
        return None
    rest = _string_end(data)
    stack = _open_containers(data + rest)
    if not stack:
        return b"" if _is_json(data) else None
    inner = b"".join(_CLOSERS[opener] for opener in reversed(stack[1:]))
    for continuation in _CONTINUATIONS:
        found = rest + continuation + inner + b',"error":%b}' % error
        if _is_json(data + found):
            return found
    return None


def _last_line(half: bytes) -> bytes:
    found = _LAST_LINE.search(half)
    return b"" if found is None else found[0]


def _string_end(data: bytes) -> bytes:
    """Return what ends the string in which `data` breaks off, half characters and escapes included."""
    for string in _STRING.finditer(data):
        if not string[1] and string.end() >= len(data.rstrip(b"\\")):
            escape = _HALF_ESCAPE.search(data)
            if escape is not None:
                given = escape[1] or b""
                return (b"0" * (5 - len(given)) if given else b"n") + b'"'
            return _character_end(data) + b'"'
    return b""


def _character_end(data: bytes) -> bytes:
    """Return the bytes that complete a UTF-8 character at the end."""
    for missing in _CHARACTER_ENDS:
        try:
            (data + missing).decode()
        except UnicodeDecodeError:
            continue
        return missing
    return b""


def _open_containers(data: bytes) -> list[int]:
    stack: list[int] = []
    for byte in _STRING.sub(b"", data):
        if byte in _CLOSERS:
            stack.append(byte)
        elif byte in b"}]" and stack:
            stack.pop()
    return stack


def _error_member(error_event: bytes) -> bytes:
    said = json.loads(event_data(error_event))["error"]
    return json.dumps(said, separators=(",", ":")).encode("ascii")


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
