"""Owns the version of a policy set: a short hash of what is effective, secrets left out.

The same policy in other words, files or key order of a mapping gives the same hash, so that replicas can be
compared. It stands in a response header, which is why nothing secret may be derivable from it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from proxy.policy.model import BoundStep, Route, Secret, Upstream, Webhook

VERSION_LENGTH = 12


def version_of(
    upstreams: Mapping[str, Upstream],
    default_upstream: str,
    routes: tuple[Route, ...],
    webhooks: Mapping[str, Webhook] | None = None,
) -> str:
    """Return the first 12 hex digits of the SHA-256 of a set's canonical form."""
    content = [_canonical(dict(upstreams)), default_upstream, _canonical(routes)]
    if webhooks:
        content.append(_canonical(dict(webhooks)))
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:VERSION_LENGTH]


def _canonical(value: Any) -> Any:
    match value:
        case Secret():
            return "secret"
        case Enum():
            return value.value
        case BoundStep():
            return [value.step.name, _canonical(value.config)]
        case Upstream():
            return _fields(value) | {"proxy": _without_credentials(value.proxy)}
        case Mapping():
            return {str(key): _canonical(item) for key, item in value.items()}
        case frozenset():
            return sorted(str(_canonical(item)) for item in value)
        case list() | tuple():
            return [_canonical(item) for item in value]
        case _ if dataclasses.is_dataclass(value):
            return _fields(value)
        case str() | int() | float() | None:
            return value
        case _:
            return repr(value)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: _canonical(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _without_credentials(proxy: str) -> str:
    if proxy in ("env", "off"):
        return proxy
    parts = urlsplit(proxy)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
