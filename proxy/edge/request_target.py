"""Which request targets are accepted, and the path that routes are matched against.

The target goes out character for character. What a server behind could read as another path (dot segments
in any encoding, double slashes, backslashes) is refused, so that the path matched is the path served. What
only some servers read as a known path (parameters of a segment, escapes of escapes) is matched as that one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from proxy.core.errors import BAD_TARGET, ProxyError

_PLAIN = re.compile(rb"(?:/[A-Za-z0-9_~:@!$&'()*+,=-][A-Za-z0-9._~:@!$&'()*+,=-]*)+/?|/")
_ROUTED_PREFIX = b"/v1"
_MAX_DECODINGS = 4
"""The last of them changes nothing: up to three layers are understood."""
_MAX_REMEMBERED_BYTES = 256


def matched_path(target: bytes) -> str:
    """Return the path of a request target: decoded, without query, segment parameters and trailing slash.

    Raises ProxyError (400) for a target that could leave its path, or that writes `/v1` in another way.
    """
    path = target.split(b"?", 1)[0]
    return _remembered(path) if len(path) <= _MAX_REMEMBERED_BYTES else _matched(path)


def below_v1(target: bytes, base: str) -> bytes:
    """Return a request target that lies below the base path `base` (lower case) as one below `/v1`.

    Raises ProxyError (400) where the base path is written so that it cannot be taken off.
    """
    path = target.split(b"?", 1)[0]
    end = 0
    for _ in range(base.count("/")):
        end = path.find(b"/", end + 1)
        if end < 0:
            end = len(path)
    if end and _matched(path[:end]).lower() != base:
        raise _refused("it leads to the API in a way of its own: ask for /v1 instead")
    return _ROUTED_PREFIX + target[end:]


def _matched(path: bytes) -> str:
    plain = path if _PLAIN.fullmatch(path) is not None else _decoded(path)
    # Only what is written so stands for a base path; anything else goes to the origin as it is.
    if _is_routed(plain[:3].lower() + plain[3:4]) and not _is_routed(path):
        raise _refused("it writes /v1 in another way")
    return plain.decode("utf-8", "replace").rstrip("/") or "/"


def _is_routed(path: bytes) -> bool:
    return path.startswith(_ROUTED_PREFIX) and path[3:4] in (b"", b"/")


_remembered = lru_cache(maxsize=1024)(_matched)


def _decoded(path: bytes) -> bytes:
    """Return a path as the most lenient server reads it. Raises ProxyError for one that leads elsewhere."""
    if not path.startswith(b"/"):
        raise _refused("it must begin with a slash: this is not a forward proxy")
    if b"#" in path:
        raise _refused("it contains a fragment")
    for _ in range(_MAX_DECODINGS):
        _check_segments(path)
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return b"/".join(segment.split(b";", 1)[0] for segment in path.split(b"/"))
        if decoded.count(b"/") != path.count(b"/") and b"//" in decoded:
            raise _refused("it contains an encoded double slash")
        path = decoded
    raise _refused("it is encoded too often")


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
        if not name and index < len(segments) - 1:
            raise _refused("it contains an empty segment")


def _refused(reason: str) -> ProxyError:
    return ProxyError(BAD_TARGET, f"This request path is not accepted: {reason}.")
