"""What upstreams were seen to refuse: parameters that a model answers 400 to, remembered for a while.

A policy that caps or stops must not break a model that does not take the parameter; the first refusal costs
one more call, later ones none.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.core.clock import Clock

KEEP_SECONDS = 3600.0
_MAX_ENTRIES = 10_000
_MAX_PLAIN_BYTES = 256 * 1024
_WORD = re.compile(r"\w+")
_PATH_MARKS = re.compile(r"[.\[\]]")
_WINDOW_BITS: Mapping[bytes, int] = {
    b"gzip": 16 + zlib.MAX_WBITS,
    b"x-gzip": 16 + zlib.MAX_WBITS,
    b"deflate": zlib.MAX_WBITS,
}

_UNSUPPORTED = (
    b"unsupported",
    b"not supported",
    b"does not support",
    b"not support",
    b"unknown",
    b"unrecognized",
    b"unexpected",
    b"not permitted",
    b"not allowed",
    b"extra_forbidden",
    b"extra inputs",
    b"extra field",
    b"invalid parameter",
    b"not recognized",
    b"no such",
)

_CONDITIONAL = re.compile(
    rb"\b(?:when|if|unless|while|both|together|combin\w*|conjunction|simultaneous\w*|mutually|alongside)\b"
    rb"|\b(?:at the same time|along with)\b"
    rb"|\bwith(?:out)?\s+(?:the\s+|parameters?\s+|options?\s+)*"
    rb"(?:\\?[\"'`]|[a-z]+_[a-z_]+|(?:tools?|stream\w*|functions?|reasoning|thinking|logprobs|json)\b)"
)
"""What is refused in company of something else only, in lower case; `with this model` is no company."""


class Refusals:
    """Refused parameters by upstream and model. May be read in other threads than the one that learns."""

    def __init__(self, clock: Clock, keep_seconds: float = KEEP_SECONDS) -> None:
        self._clock = clock
        self._keep_seconds = keep_seconds
        # Inner mappings are replaced, never changed.
        self._until: OrderedDict[tuple[str, str], dict[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def known(self, upstream: str, model: str) -> frozenset[str]:
        """Return the parameters that must not be added for `model` at `upstream`."""
        until = self._until.get((upstream, model))
        if until is None:
            return frozenset()
        now = self._clock.monotonic()
        return frozenset(param for param, expiry in until.items() if expiry > now)

    def learn(self, upstream: str, model: str, param: str) -> None:
        """Remember a refusal for a while; what was learnt longest ago goes first when there is too much."""
        now = self._clock.monotonic()
        key = (upstream, model)
        known = {name: expiry for name, expiry in self._until.get(key, {}).items() if expiry > now}
        self._until[key] = known | {param: now + self._keep_seconds}
        self._until.move_to_end(key)
        oldest = next(iter(self._until))
        # All are kept equally long, so the expired ones are the oldest.
        while len(self._until) > _MAX_ENTRIES or max(self._until[oldest].values()) <= now:
            del self._until[oldest]
            oldest = next(iter(self._until))


def refused_param(
    body: bytes, added: frozenset[str], inner: frozenset[str] = frozenset(), coding: bytes = b""
) -> str | None:
    """Return which name a refusal's body tells: a top-level parameter of `added`, or one deeper of `inner`.

    OpenAI fills `error.param`, but not for fields that it does not know; compatible servers often only name
    the field in the text, some in a text without `error` around it, those on FastAPI in `loc`. A name that
    could be a plain word (`stop`) must stand in quotes.
    """
    said = _said(body, coding)
    if said is None:
        return None
    error = said.get("error", said)
    if not isinstance(error, dict | str):
        return None
    param = error.get("param") if isinstance(error, dict) else None
    if isinstance(param, str) and param:
        return _of_path([part for part in _PATH_MARKS.split(param) if part], added, inner)
    message = error if isinstance(error, str) else error.get("message", error.get("detail"))
    if isinstance(message, dict):
        message = message.get("detail")
    if isinstance(message, list):
        paths = (each.get("loc") for each in message if isinstance(each, dict))
        found = (_of_path(path[1:], added, inner) for path in paths if isinstance(path, list))
        return next((name for name in found if name is not None), None)
    if not isinstance(message, str):
        return None
    return next((name for name in sorted(added | inner) if _names(message, name)), None)


def is_unsupported(body: bytes, coding: bytes = b"") -> bool:
    """Tell whether a refusal says that a parameter is not taken at all.

    Only that may be remembered: a cap too large for one prompt is right for the next, and what does not go
    together with something else goes alone.
    """
    text = _plain(body, coding).lower()
    return any(word in text for word in _UNSUPPORTED) and _CONDITIONAL.search(text) is None


def _of_path(path: Sequence[object], added: frozenset[str], inner: frozenset[str]) -> str | None:
    """Return the name in a path to a field, such as `messages`, `0`, `prompt_cache_breakpoint`."""
    if path and isinstance(path[0], str) and path[0] in added:
        return path[0]
    return next((part for part in path if isinstance(part, str) and part in inner), None)


def _said(body: bytes, coding: bytes) -> dict[str, Any] | None:
    try:
        said: Any = json.loads(_plain(body, coding))
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _plain(body: bytes, coding: bytes) -> bytes:
    """Return the text of an answer that may be compressed, as SDKs ask for; empty if it cannot be read."""
    window_bits = _WINDOW_BITS.get(coding.strip().lower())
    if window_bits is None:
        return body
    try:
        return zlib.decompressobj(window_bits).decompress(body, _MAX_PLAIN_BYTES)
    except zlib.error:
        return b""


def _names(message: str, candidate: str) -> bool:
    if any(f"{quote}{candidate}{quote}" in message for quote in ("'", '"', "`")):
        return True
    return "_" in candidate and candidate in _WORD.findall(message)
