"""What the redis batch store says and does when its server freezes, dies, forgets or refuses."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest

from proxy.batch_server.redis_store import RedisBatchStore
from proxy.jobs.store import StoreUnavailable
from tests.support.batch_stores import Bench, claimed, created, held, new_file, results, stored
from tests.support.redis_server import RedisServer, running


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of one's own, to be mistreated."""
    with running("valkey") as one:
        yield one


def on(server: RedisServer, test: Callable[[Bench], Awaitable[None]], answer_seconds: float = 10.0) -> None:
    async def run() -> None:
        bench = Bench("valkey", server.socket_path.parent, server)
        await bench.another(answer_seconds=answer_seconds)
        try:
            await test(bench)
        finally:
            await bench.close()

    asyncio.run(run())


def test_a_frozen_server_is_not_waited_for(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        batch = await created(bench)
        server.signal(signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match="the batch store"):
            await bench.store.batch(batch.id)
        server.signal(signal.SIGCONT)
        assert await bench.store.batch(batch.id) == batch

    on(server, test, answer_seconds=0.5)


def test_what_was_acknowledged_survives_the_death_of_the_server(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        file = await stored(bench, b"x")
        batch = await claimed(bench)
        after = await bench.store.record(held(batch), results(batch.progress, (0,), b"first\n"))
        server.kill()
        with pytest.raises(StoreUnavailable):
            await bench.store.file(file.id)
        server.start()
        assert await bench.store.file(file.id) == file
        assert await bench.store.chunk(file.id, 0) == b"x"
        assert await bench.store.batch(batch.id) == after
        assert await bench.store.chunk(batch.output_file_id, 0) == b"first\n"

    on(server, test)


def test_scripts_that_the_server_forgot_are_sent_again(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        await stored(bench, b"x")
        server.command("SCRIPT FLUSH")
        await stored(bench, b"y")

    on(server, test)


def test_a_full_server_keeps_what_it_has_and_says_so(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        file, begun = await stored(bench, b"x"), new_file(bench)
        await bench.store.create_file(begun)
        server.command("CONFIG SET maxmemory 1")
        with pytest.raises(StoreUnavailable, match="OutOfMemory"):
            await bench.store.append_chunk(begun.id, 0, b"y")
        assert await bench.store.chunk(file.id, 0) == b"x"
        server.command("CONFIG SET maxmemory 0")
        await bench.store.append_chunk(begun.id, 0, b"y")

    on(server, test)


def keys_of(server: RedisServer) -> list[str]:
    return sorted(line for line in server.command("KEYS *").split("\r\n") if line.startswith("weir:"))


def test_chunks_and_nothing_else_expire_by_themselves(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        await stored(bench, b"x")
        batch = await claimed(bench)
        await bench.store.record(held(batch), results(batch.progress, (0,), b"first\n", b"second\n"))
        keys = keys_of(server)
        chunks = [key for key in keys if ":chunk:{file-" in key]
        assert len(chunks) == 3
        for key in keys:
            seconds = int(server.command(f"TTL {key}").strip(":\r\n"))
            assert (seconds > 86_400) if key in chunks else seconds == -1, key

    on(server, test)


def test_nothing_is_left_of_what_is_deleted_purged_or_replaced(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        file = new_file(bench)
        await bench.store.create_file(file)
        await bench.store.append_chunk(file.id, 0, b"torn")
        await bench.store.append_chunk(file.id, 0, b"whole")
        await bench.store.complete_file(file)
        await bench.store.delete_file(file.id)
        assert keys_of(server) == []
        batch = await claimed(bench)
        await bench.store.record(held(batch), results(batch.progress, (0,), b"first\n", b"second\n"))
        await bench.store.purge(batch.purge_at)
        assert keys_of(server) in ([], [f"weir:{{{bench.name}}}:served:waiting"])

    on(server, test)


def test_nobody_listening_is_told_where_and_no_password_is_shown() -> None:
    async def run() -> None:
        store = RedisBatchStore("redis://user:geheim@127.0.0.1:1/0")
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
            await store.open()
        assert "geheim" not in str(caught.value) + repr(store)
        await store.close()

    asyncio.run(run())
