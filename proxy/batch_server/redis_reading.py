"""Questions about many files or batches in Redis, in a bounded number of round trips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.batch_server.model import BatchStatus, ServedBatch, StoredFile
from proxy.batch_server.records import decode_file
from proxy.batch_server.redis_records import batch_from_hash
from proxy.batch_server.store import Census, FileQuery
from proxy.jobs.remote.client import RedisClient

_READ_TOGETHER = 500


async def list_files(
    client: RedisClient, prefix: str, query: FileQuery, now: float
) -> tuple[StoredFile, ...] | None:
    """See `BatchStore`."""
    purpose = "all" if query.purpose is None else query.purpose.value
    order = "REV" if query.is_newest_first else ""
    arguments = (f"files:{purpose}:{query.owner}", query.after or "", order, str(query.limit))
    ids = await _page(client, prefix, (*arguments, repr(now), f"files:all:{query.owner}"))
    if ids is None:
        return None
    commands = [("HGET", f"{prefix}file:{file_id}", "record") for file_id in ids]
    return tuple(decode_file(record) for record in await _read(client, commands) if record is not None)


async def list_batches(
    client: RedisClient, prefix: str, owner: str, limit: int, after: str | None
) -> tuple[ServedBatch, ...] | None:
    """See `BatchStore`."""
    index = f"batches:{owner}"
    ids = await _page(client, prefix, (index, after or "", "REV", str(limit), "", index))
    if ids is None:
        return None
    found = await _read(client, [("HGETALL", f"{prefix}batch:{batch_id}") for batch_id in ids])
    return tuple(batch_from_hash(fields) for fields in found if fields)


async def _page(client: RedisClient, prefix: str, arguments: Sequence[str]) -> list[str] | None:
    status, *ids = await client.run("list", prefix, arguments)
    return [raw.decode() for raw in ids] if status == b"ok" else None


async def _read(client: RedisClient, commands: Sequence[tuple[str, ...]]) -> list[Any]:
    found: list[Any] = []
    for start in range(0, len(commands), _READ_TOGETHER):
        found += await client.pipeline(commands[start : start + _READ_TOGETHER])
    return found


async def census(client: RedisClient, prefix: str) -> Census:
    """See `BatchStore`."""
    statuses = tuple(BatchStatus)
    *counts, waiting = await client.pipeline(
        [*(("SCARD", f"{prefix}status:{status.value}") for status in statuses), ("GET", f"{prefix}waiting")]
    )
    found = {status.value: count for status, count in zip(statuses, counts, strict=True) if count}
    return Census(found, int(waiting or 0))
