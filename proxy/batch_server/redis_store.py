"""Files and batches in Redis or Valkey: the store for several machines.

Owns the round trips; what is atomic happens in the scripts of `lua/`. Records and indexes lie under one hash
tag, chunks under one per file, so that a Cluster spreads what is large. A chunk is written before the script
that makes it count: a crash between the two leaves a blob that expires. Durable as far as the server is: what
it lacks is told by the job store, which is on the same one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy.batch_server import redis_reading
from proxy.batch_server.model import (
    BatchLease,
    Progress,
    Recorded,
    ServedBatch,
    StoredFile,
)
from proxy.batch_server.records import check_recorded, decode_file, file_gone_at, lost
from proxy.batch_server.redis_chunks import Chunks
from proxy.batch_server.redis_records import (
    BATCH_SCRIPTS,
    as_hash,
    batch_fields,
    batch_from_hash,
    file_arguments,
    has_all,
    holder,
    moment,
    numbers_of,
    progress_arguments,
)
from proxy.batch_server.store import Census, FileQuery
from proxy.core.clock import Clock, SystemClock
from proxy.jobs.remote.client import RedisClient
from proxy.jobs.sealing import PlainVault, Vault
from proxy.jobs.store import Conflict, StoreUnavailable

_ANSWER_SECONDS = 5.0
"""How long an answer may take: a chunk is a megabyte, on its way and on its way to the disk."""

_DELETED_TOGETHER = 20
"""Files and batches in one script: each may have thousands of chunks, and the server does nothing else."""

_TRIES = 3


class RedisBatchStore:
    """A `BatchStore` in Redis or Valkey. See `BatchStore` for every method.

    url        see `proxy.jobs.remote.client`
    namespace  several deployments may share a server, each under its own name
    vault      what chunks go through
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        namespace: str = "weir",
        vault: Vault | None = None,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        self._clock = clock or SystemClock()
        self._prefix = f"weir:{{{namespace}}}:served:"
        self._client = RedisClient(url, answer_seconds, BATCH_SCRIPTS)
        self._chunks = Chunks(self._client, namespace, vault or PlainVault())

    async def open(self) -> None:
        """See `BatchStore`."""
        await self._client.open()

    async def close(self) -> None:
        """See `BatchStore`."""
        await self._client.close()

    async def _run(self, script: str, *arguments: str | bytes) -> Any:
        return await self._client.run(script, self._prefix, arguments)

    @property
    def _now(self) -> float:
        return self._clock.wall()

    # ---- files

    async def create_file(self, file: StoredFile) -> None:
        """See `BatchStore`."""
        await self._run("begin", file.id, repr(file_gone_at(file)), repr(file.expires))

    async def append_chunk(self, file_id: str, index: int, data: bytes) -> None:
        """See `BatchStore`."""
        key = f"{self._prefix}file:{file_id}"
        ((expires, is_complete),) = await self._client.pipeline([("HMGET", key, "expires", "is_complete")])
        if is_complete != b"0":
            raise _no_upload(file_id, is_complete is None)
        attempt = await self._chunks.put(file_id, index, data, float(expires) - self._now)
        status, *before = await self._run("append", file_id, str(index), attempt)
        if status != b"ok":
            await self._chunks.drop([(file_id, index, attempt)])
            raise _no_upload(file_id, status == b"gone")
        await self._chunks.drop([(file_id, index, raw.decode()) for raw in before if raw])

    async def complete_file(self, file: StoredFile) -> None:
        """See `BatchStore`."""
        if not await self._run("complete", *file_arguments(file)):
            raise Conflict(f"the file {file.id} is gone")

    async def file(self, file_id: str) -> StoredFile | None:
        """See `BatchStore`."""
        (record,) = await self._client.pipeline([("HGET", f"{self._prefix}file:{file_id}", "record")])
        file = None if record is None else decode_file(record)
        return file if file is not None and file.expires > self._now else None

    async def list_files(self, query: FileQuery) -> tuple[StoredFile, ...] | None:
        """See `BatchStore`."""
        return await redis_reading.list_files(self._client, self._prefix, query, self._now)

    async def chunk(self, file_id: str, index: int) -> bytes | None:
        """See `BatchStore`."""
        (attempt,) = await self._client.pipeline([("HGET", f"{self._prefix}chunks:{file_id}", str(index))])
        return None if attempt is None else await self._chunks.get(file_id, index, attempt.decode())

    async def delete_file(self, file_id: str) -> bool:
        """See `BatchStore`."""
        gone, chunks, _ = await self._run("delete", file_id, "", "1")
        await self._drop_chunks(chunks)
        return bool(gone)

    async def _drop_chunks(self, found: Sequence[Any]) -> None:
        chunks = [
            (file_id.decode(), int(number), attempt.decode())
            for file_id, flat in zip(found[::2], found[1::2], strict=True)
            for number, attempt in as_hash(flat).items()
        ]
        await self._chunks.drop(chunks)

    # ---- callers' batches

    async def create_batch(self, batch: ServedBatch) -> None:
        """See `BatchStore`."""
        facts = (batch.id, batch.owner, repr(batch.created), repr(batch.purge_at))
        await self._run("create", *facts, *batch_fields(batch))

    async def batch(self, batch_id: str) -> ServedBatch | None:
        """See `BatchStore`."""
        (found,) = await self._client.pipeline([("HGETALL", f"{self._prefix}batch:{batch_id}")])
        return batch_from_hash(found) if found else None

    async def list_batches(self, owner: str, limit: int, after: str | None) -> tuple[ServedBatch, ...] | None:
        """See `BatchStore`."""
        return await redis_reading.list_batches(self._client, self._prefix, owner, limit, after)

    async def ask_to_cancel(self, batch_id: str, now: float) -> ServedBatch:
        """See `BatchStore`."""
        status, *rest = await self._run("cancel", batch_id, repr(now))
        if status == b"gone":
            raise Conflict(f"there is no batch {batch_id}")
        if status == b"ended":
            raise Conflict(f"the batch is {rest[0].decode()}")
        return batch_from_hash(as_hash(rest[0]))

    # ---- workers

    async def claim(
        self, worker: str, lease_seconds: float, limit: int, *, only_ends: bool = False
    ) -> tuple[ServedBatch, ...]:
        """See `BatchStore`."""
        now, index = self._now, "ends" if only_ends else "wanted"
        found = await self._run("claim", repr(now), repr(now + lease_seconds), worker, str(limit), index)
        return tuple(batch_from_hash(as_hash(flat)) for flat in found)

    async def renew(self, lease: BatchLease, lease_seconds: float) -> BatchLease:
        """See `BatchStore`."""
        longer = replace(lease, until=self._now + lease_seconds)
        if not await self._run("lease", *holder(lease), repr(longer.until), "", "", ""):
            raise lost(lease)
        return longer

    async def release(self, lease: BatchLease, due: float) -> None:
        """See `BatchStore`."""
        await self._run("lease", *holder(lease), "0", repr(due), "", "")

    async def noted(self, lease: BatchLease, notice_due: float | None) -> None:
        """See `BatchStore`."""
        outcome = "told" if notice_due is None else "failed"
        if not await self._run("lease", *holder(lease), "0", "", outcome, moment(notice_due)):
            raise lost(lease)

    async def save(self, lease: BatchLease, progress: Progress) -> ServedBatch:
        """See `BatchStore`."""
        added = json.dumps({"chunks": [], "lines": []})
        status, *rest = await self._run("save", *holder(lease), *progress_arguments(progress), "", added)
        if status != b"ok":
            raise lost(lease)
        return batch_from_hash(as_hash(rest[0]))

    async def record(self, lease: BatchLease, recorded: Recorded) -> ServedBatch:
        """See `BatchStore`."""
        for _ in range(_TRIES):
            batch = await self._record_once(lease, recorded)
            if batch is not None:
                return batch
        raise StoreUnavailable(f"the batch {lease.batch_id} is written to by others all the time")

    async def _record_once(self, lease: BatchLease, recorded: Recorded) -> ServedBatch | None:
        """Record, unless the progress of the batch has changed meanwhile."""
        found, bitmap = await self._client.pipeline(
            [
                ("HGETALL", f"{self._prefix}batch:{lease.batch_id}"),
                ("GET", f"{self._prefix}lines:{lease.batch_id}"),
            ]
        )
        batch = batch_from_hash(found) if found else None
        last = None if batch is None else batch.lease
        if batch is None or last is None or holder(last) != holder(lease):
            raise lost(lease)
        if has_all(bitmap, recorded.lines):
            # Asked again after an answer that got lost.
            return batch
        check_recorded(batch.progress, recorded)
        chunks = await self._put_results(batch, recorded)
        added = json.dumps({"chunks": chunks, "lines": recorded.lines})
        progress = progress_arguments(recorded.progress)
        status, *rest = await self._run("save", *holder(lease), *progress, found[b"progress"], added)
        if status != b"ok":
            await self._chunks.drop(chunks)
        if status == b"lost":
            raise lost(lease)
        return batch_from_hash(as_hash(rest[0])) if rest else None

    async def _put_results(self, batch: ServedBatch, recorded: Recorded) -> list[tuple[str, int, str]]:
        before, seconds = batch.progress, batch.purge_at - self._now
        parts = (
            (batch.output_file_id, before.output_chunks, recorded.output),
            (batch.error_file_id, before.error_chunks, recorded.errors),
        )
        return [
            (file_id, index, await self._chunks.put(file_id, index, data, seconds))
            for file_id, index, data in parts
            if data
        ]

    async def recorded_lines(self, batch_id: str) -> Sequence[int]:
        """See `BatchStore`."""
        (bitmap,) = await self._client.pipeline([("GET", f"{self._prefix}lines:{batch_id}")])
        return numbers_of(bitmap)

    async def finish(
        self, lease: BatchLease, progress: Progress, files: Sequence[StoredFile], notice_due: float | None
    ) -> ServedBatch:
        """See `BatchStore`."""
        text, status, _ = progress_arguments(progress)
        shown = [argument for file in files for argument in file_arguments(file)]
        outcome, *rest = await self._run("finish", *holder(lease), text, status, moment(notice_due), *shown)
        if outcome != b"ok":
            raise lost(lease)
        return batch_from_hash(as_hash(rest[0]))

    # ---- figures

    async def census(self) -> Census:
        """See `BatchStore`."""
        return await redis_reading.census(self._client, self._prefix)

    async def purge(self, now: float, limit: int = 1000) -> int:
        """See `BatchStore`."""
        total = 0
        while total < limit:
            some = min(limit - total, _DELETED_TOGETHER)
            gone, chunks, is_more = await self._run("delete", "", repr(now), str(some))
            await self._drop_chunks(chunks)
            total += gone
            if not is_more:
                break
        return total


def _no_upload(file_id: str, is_gone: bool) -> Conflict:
    return Conflict(f"the file {file_id} is {'gone' if is_gone else 'complete'}")
