"""Batches as their callers may end them, over a real store that nobody works on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.batch_server.batches import Batches
from proxy.batch_server.files import Caller, Files
from proxy.batch_server.model import BatchStatus, FilePurpose, ServedBatch, StoredFile
from proxy.batch_server.sqlite_store import SqliteBatchStore
from proxy.core.clock import ManualClock
from proxy.core.errors import BATCH_HAS_ENDED, INVALID_VALUE, ProxyError
from proxy.core.upstream import Secret, Upstream
from proxy.http.head import RequestHead
from proxy.lanes.batch.identity import Identity

NOW = 1_800_000_000.0
ALICE = Caller(Identity(((b"authorization", b"a"),)), "alice")
UPSTREAM = Upstream("local", "http://127.0.0.1:9/v1", api_key=Secret("k"))
SALT = b"s" * 32
FILE_ID = f"file-{'1' * 32}"


class _Desk:
    """Batches over a store, with their clock."""

    def __init__(self, store: SqliteBatchStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.wakes = 0
        self.batches = Batches(store, clock, Files(store, clock, 1), None, self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    async def file(self, purpose: FilePurpose = FilePurpose.BATCH) -> str:
        file = StoredFile(FILE_ID, "alice", purpose, "in.jsonl", NOW, NOW + 1e6, 1, 1, True)
        await self.store.create_file(replace(file, is_complete=False))
        await self.store.complete_file(file)
        return file.id

    async def create(self, key: str = "") -> str:
        wish = {"input_file_id": FILE_ID, "endpoint": "/v1/embeddings", "completion_window": "24h"}
        fields = [(b"idempotency-key", b"Idempotency-Key", key.encode())] if key else []
        head = RequestHead(b"POST", b"/v1/batches", "1.1", fields)
        answer = await self.batches.create(ALICE, head, json.dumps(wish).encode(), UPSTREAM, "hook", SALT)
        assert isinstance(answer, tuple)
        return str(json.loads(answer[1])["id"])

    async def end(self, status: BatchStatus) -> ServedBatch:
        (batch,) = await self.store.claim("w", 30.0, 1)
        assert batch.lease is not None
        ended = replace(batch.progress, status=status, ended_at=self.clock.wall())
        return await self.store.finish(batch.lease, ended, (), None)


def _run(path: Path, test: Callable[[_Desk], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = ManualClock(NOW)
        store = SqliteBatchStore(path / "b.db", clock)
        await store.open()
        try:
            await test(_Desk(store, clock))
        finally:
            await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("status", [BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED])
def test_a_batch_that_has_ended_cannot_be_cancelled(tmp_path: Path, status: BatchStatus) -> None:
    async def test(desk: _Desk) -> None:
        await desk.file()
        batch_id = await desk.create()
        await desk.end(status)
        with pytest.raises(ProxyError) as refused:
            await desk.batches.cancel(ALICE, batch_id)
        assert refused.value.kind is BATCH_HAS_ENDED
        assert status.value in refused.value.message

    _run(tmp_path, test)


def test_cancelling_what_is_cancelled_is_no_harm(tmp_path: Path) -> None:
    async def test(desk: _Desk) -> None:
        await desk.file()
        batch_id = await desk.create()
        await desk.batches.cancel(ALICE, batch_id)
        assert desk.wakes == 2
        await desk.end(BatchStatus.CANCELLED)
        answer = await desk.batches.cancel(ALICE, batch_id)
        assert isinstance(answer, tuple)
        assert json.loads(answer[1])["status"] == "cancelled"

    _run(tmp_path, test)


def test_an_idempotency_key_holds_for_a_day(tmp_path: Path) -> None:
    async def test(desk: _Desk) -> None:
        await desk.file()
        first = await desk.create("key")
        desk.clock.advance(23 * 3600.0)
        assert await desk.create("key") == first
        desk.clock.advance(2 * 3600.0)
        second = await desk.create("key")
        assert second != first
        assert await desk.create("key") == second

    _run(tmp_path, test)


def test_results_are_no_input(tmp_path: Path) -> None:
    async def test(desk: _Desk) -> None:
        await desk.file(FilePurpose.BATCH_OUTPUT)
        with pytest.raises(ProxyError) as refused:
            await desk.create()
        assert (refused.value.kind, refused.value.param) == (INVALID_VALUE, "input_file_id")

    _run(tmp_path, test)


def test_a_batch_keeps_what_its_lines_need(tmp_path: Path) -> None:
    async def test(desk: _Desk) -> None:
        await desk.file()
        batch = await desk.store.batch(await desk.create())
        assert batch is not None
        assert (batch.upstream, batch.webhook, batch.credential) == ("local", "hook", None)
        assert (batch.owner, batch.due, batch.expires) == ("alice", NOW, NOW + 24 * 3600)
        assert batch.purge_at >= batch.expires + batch.output_seconds
        assert batch.output_file_id != batch.error_file_id

    _run(tmp_path, test)
