"""What upstreams were seen to refuse: parameters that a model answers 400 to, remembered for a while.

A policy that caps or stops must not break a model that does not take the parameter; the first refusal costs
one more call, later ones none.
"""

from __future__ import annotations

import json
from typing import Any

from proxy.core.clock import Clock

KEEP_SECONDS = 3600.0
_MAX_ENTRIES = 10_000


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
    """Return which of `candidates` a 400's body names, in `error.param` or quoted in its message.

    OpenAI fills `param`; compatible servers often only quote the field in the text.
    """
    try:
        error: Any = json.loads(body).get("error")
    except (ValueError, AttributeError, RecursionError):
        return None
    if not isinstance(error, dict):
        return None
    param = error.get("param")
    if isinstance(param, str) and param:
        top_level = param.split(".")[0].split("[")[0]
        return top_level if top_level in candidates else None
    message = error.get("message")
    if not isinstance(message, str):
        return None
    for candidate in sorted(candidates):
        if any(f"{quote}{candidate}{quote}" in message for quote in ("'", '"', "`")):
            return candidate
    return None
