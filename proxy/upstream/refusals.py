"""What upstreams were seen to refuse: parameters that a model answers 400 to, remembered for a while.

A policy that caps or stops must not break a model that does not take the parameter; the first refusal costs
one more call, later ones none.
"""

from __future__ import annotations

import json
import re
from typing import Any

from proxy.core.clock import Clock

KEEP_SECONDS = 3600.0
_MAX_ENTRIES = 10_000
_WORD = re.compile(r"\w+")


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
    b"invalid parameter",
    b"not recognized",
    b"no such",
)


class Refusals:
    """Refused parameters by upstream and model."""

    def __init__(self, clock: Clock, keep_seconds: float = KEEP_SECONDS) -> None:
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._until: dict[tuple[str, str], dict[str, float]] = {}

    def known(self, upstream: str, model: str) -> frozenset[str]:
        """Return the top-level parameters that must not be added for `model` at `upstream`."""
        until = self._until.get((upstream, model))
        if until is None:
            return frozenset()
        now = self._clock.monotonic()
        return frozenset(param for param, expiry in until.items() if expiry > now)

    def learn(self, upstream: str, model: str, param: str) -> None:
        """Remember a refusal."""
        if len(self._until) >= _MAX_ENTRIES and (upstream, model) not in self._until:
            self._until.clear()
        entry = self._until.setdefault((upstream, model), {})
        entry[param] = self._clock.monotonic() + self._keep_seconds


def refused_param(body: bytes, candidates: frozenset[str]) -> str | None:
    """Return which of `candidates` a 400's body names, in `error.param` or in its message.

    OpenAI fills `param`, but not for fields that it does not know; compatible servers often only name the
    field in the text, some in a text without `error` around it. A name that could be a plain word (`stop`)
    must stand in quotes.
    """
    try:
        said: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    error = said.get("error", said)
    if not isinstance(error, dict | str):
        return None
    param = error.get("param") if isinstance(error, dict) else None
    if isinstance(param, str) and param:
        top_level = param.split(".")[0].split("[")[0]
        return top_level if top_level in candidates else None
    message = error if isinstance(error, str) else error.get("message", error.get("detail"))
    if not isinstance(message, str):
        return None
    return next((name for name in sorted(candidates) if _names(message, name)), None)


def is_unsupported(body: bytes) -> bool:
    """Tell whether a 400 says that a parameter is not taken at all, rather than that its value is wrong.

    Only the former may be remembered: a cap too large for one prompt is right for the next.
    """
    text = body.lower()
    return any(word in text for word in _UNSUPPORTED)


def _names(message: str, candidate: str) -> bool:
    if any(f"{quote}{candidate}{quote}" in message for quote in ("'", '"', "`")):
        return True
    return "_" in candidate and candidate in _WORD.findall(message)
