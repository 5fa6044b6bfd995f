"""Chunks in Redis: one key each, a hash tag per file, and a time to live.

Owns their keys. A key is new for every try to write a chunk: the script that follows names the one that
counts, so that whoever lost a lease overwrites nothing, and whatever a crash left behind expires.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from proxy.batch_server.records import chunk_context
from proxy.jobs.remote.client import RedisClient
from proxy.jobs.sealing import Vault

SLACK_SECONDS = 86_400.0
"""How much longer than its file a chunk stays at most."""

_DROPPED_TOGETHER = 500


class Chunks:
    """The chunks of one namespace."""

    def __init__(self, client: RedisClient, namespace: str, vault: Vault) -> None:
        self._client = client
        self._namespace = namespace
        self._vault = vault

    def _key(self, file_id: str, index: int, attempt: str) -> str:
        return f"weir:{self._namespace}:served:chunk:{{{file_id}}}:{index}:{attempt}"

    async def put(self, file_id: str, index: int, data: bytes, seconds: float) -> str:
        """Keep a chunk for at least some seconds and return the last part of its key."""
        attempt = secrets.token_hex(8)
        blob = self._vault.seal(data, chunk_context(file_id, index))
        kept_seconds = max(1, int(seconds + SLACK_SECONDS))
        await self._client.pipeline([("SET", self._key(file_id, index, attempt), blob, "EX", kept_seconds)])
        return attempt

    async def get(self, file_id: str, index: int, attempt: str) -> bytes | None:
        """Return a chunk."""
        (blob,) = await self._client.pipeline([("GET", self._key(file_id, index, attempt))])
        return None if blob is None else self._vault.open(blob, chunk_context(file_id, index))

    async def drop(self, chunks: Sequence[tuple[str, int, str]]) -> None:
        """Delete chunks, each given by file, number and last part of its key."""
        for start in range(0, len(chunks), _DROPPED_TOGETHER):
            keys = [self._key(*chunk) for chunk in chunks[start : start + _DROPPED_TOGETHER]]
            await self._client.pipeline([("UNLINK", key) for key in keys])
