"""Observed completion times in Redis: a short list per upstream, model and tier that forgets itself."""

from __future__ import annotations

import json

from proxy.jobs.model import JobTier
from proxy.jobs.remote.client import RedisClient
from proxy.jobs.store import MAX_COMPLETIONS

_KEPT_SECONDS = 30 * 86_400


def _key(prefix: str, upstream: str, model: str, tier: JobTier) -> str:
    return f"{prefix}times:{json.dumps([upstream, model, tier.value])}"


async def observe(
    client: RedisClient, prefix: str, upstream: str, model: str, tier: JobTier, seconds: float
) -> None:
    """Keep a completion time and forget the oldest beyond the limit."""
    key = _key(prefix, upstream, model, tier)
    await client.pipeline(
        [
            ("LPUSH", key, repr(seconds)),
            ("LTRIM", key, 0, MAX_COMPLETIONS - 1),
            ("EXPIRE", key, _KEPT_SECONDS),
        ]
    )


async def observed(
    client: RedisClient, prefix: str, upstream: str, model: str, tier: JobTier
) -> tuple[float, ...]:
    """Return completion times in seconds, newest first."""
    (found,) = await client.pipeline([("LRANGE", _key(prefix, upstream, model, tier), 0, -1)])
    return tuple(float(raw) for raw in found)
