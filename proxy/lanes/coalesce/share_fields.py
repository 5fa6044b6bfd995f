"""What of a body is not compared when requests share, and what that is worth if the upstream refuses. Pure.

The form of the answer and who asks do not change what is answered. But providers validate these fields, too:
one that is not what its API documents is not shared, and a refusal that may be about one of them is told
only to those who wrote the same.
"""

from __future__ import annotations

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.policy.format import METADATA_FIELDS

FORM_FIELDS = frozenset({"stream", "stream_options"})
UNCOMPARED = FORM_FIELDS.union(METADATA_FIELDS)
"""Members of a body that may differ between requests of one key, unless a policy splits on them."""

_FLAGS = ("store", "stream")
_TEXTS = ("prompt_cache_key", "safety_identifier", "user")
_OPTION_FLAGS = ("include_usage", "include_obfuscation")
_IS_FLAG = (None, b"null", b"true", b"false")
_IS_ABSENT = (None, b"null")

_ABOUT_EVERYBODY = frozenset({401, 402, 404, 405, 407, 408, 425, 426, 429, 451})
"""Client errors that no field of a single body causes: key, money, model, method, pace."""


def is_well_formed(document: Document) -> bool:
    """Tell whether every field that is not compared is of the type that the APIs document."""
    if any(document.get(name) not in _IS_FLAG for name in _FLAGS):
        return False
    if not all(_is_text(document.get(name)) for name in _TEXTS):
        return False
    metadata, options = document.get("metadata"), document.get("stream_options")
    if metadata not in _IS_ABSENT and not isinstance(decode(metadata or b""), dict):
        return False
    return options in _IS_ABSENT or (
        # Options for a stream that is not asked for are refused by some and left unread by others.
        document.get("stream") == b"true" and _are_options(decode(options or b""))
    )


def _is_text(raw: bytes | None) -> bool:
    return raw is None or raw == b"null" or raw[:1] == b'"'


def _are_options(options: object) -> bool:
    if not isinstance(options, dict):
        return False
    return all(options.get(name) is None or isinstance(options[name], bool) for name in _OPTION_FLAGS)


def may_be_about_a_field(status: int) -> bool:
    """Tell whether an answer of this status may be about a field that is not compared.

    A server that does not validate fails on it instead (500); 502 to 504 and 429 speak of the whole upstream.
    """
    return status == 500 or (400 <= status < 500 and status not in _ABOUT_EVERYBODY)


def differ(one: Document, other: Document) -> bool:
    """Tell whether two requests of one key differ in a field that is not compared."""
    return one is not other and any(one.get(name) != other.get(name) for name in UNCOMPARED)
