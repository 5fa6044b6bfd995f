"""Which request targets are accepted, and the path that routes are matched against.

The target goes out character for character. What a server behind could read as another path (dot segments
in any encoding, double slashes, backslashes) is refused, so that the path matched is the path served.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from proxy.core.errors import BAD_TARGET, ProxyError

_PLAIN = re.compile(rb"(?:/[A-Za-z0-9_~:@!$&'()*+,=-][A-Za-z0-9._~:@!$&'()*+,=-]*)+/?|/")
_MAX_DECODINGS = 3
_MAX_REMEMBERED_BYTES = 256


def matched_path(target: bytes) -> str:
    """Return the decoded path of a request target, without query and trailing slash.

    Raises ProxyError (400) for a target that could leave its path.
    """
    path = target.split(b"?", 1)[0]
    return _remembered(path) if len(path) <= _MAX_REMEMBERED_BYTES else _matched(path)


def _matched(path: bytes) -> str:
    if _PLAIN.fullmatch(path) is None:
        _check(path)
    decoded = unquote_to_bytes(path).decode("utf-8", "replace")
    return decoded.rstrip("/") or "/"


_remembered = lru_cache(maxsize=1024)(_matched)


def _check(path: bytes) -> None:
    if not path.startswith(b"/"):
        raise _refused("it must begin with a slash: this is not a forward proxy")
    if b"#" in path:
        raise _refused("it contains a fragment")
    for _ in range(_MAX_DECODINGS):
        _check_segments(path)
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return
        if decoded.count(b"/") != path.count(b"/") and b"//" in decoded:
            raise _refused("it contains an encoded double slash")
        path = decoded
    _check_segments(path)


def _check_segments(path: bytes) -> None:
    if b"\\" in path:
        raise _refused("it contains a backslash")
    if any(byte < 0x20 or byte == 0x7F for byte in path):
        raise _refused("it contains a control character")
    segments = path.split(b"/")[1:]
    for index, segment in enumerate(segments):
        name = segment.split(b";", 1)[0]
        if name in (b".", b".."):
            raise _refused("it contains a dot segment")
        if not segment and index < len(segments) - 1:
            raise _refused("it contains an empty segment")


def _refused(reason: str) -> ProxyError:
    return ProxyError(BAD_TARGET, f"This request path is not accepted: {reason}.")
