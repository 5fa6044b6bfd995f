"""What the redis store says and does when its server freezes, dies, forgets or refuses."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from proxy.jobs.breaker import Breaker, GuardedStore, Pause
from proxy.jobs.model import JobState
from proxy.jobs.redis_store import RedisStore
from proxy.jobs.store import StoreUnavailable
from tests.support.jobs import BODY, Bench, new_job, packed
from tests.support.redis_server import RedisServer, free_ports, running


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


def test_a_frozen_server_is_waited_for_once_and_comes_back_by_itself(server: RedisServer) -> None:
    changes: list[bool] = []

    async def test(bench: Bench) -> None:
        breaker = Breaker(pause=Pause(0.05, 0.1), on_change=lambda is_open, _: changes.append(is_open))
        store = GuardedStore(bench.store, breaker)
        await store.accept(new_job(bench), BODY)
        server.signal(signal.SIGSTOP)
        with pytest.raises(StoreUnavailable):
            await store.accept(new_job(bench), BODY)
        begun = time.perf_counter()
        for _ in range(100):
            with pytest.raises(StoreUnavailable, match="not asked again"):
                await store.accept(new_job(bench), BODY)
            if time.perf_counter() - begun > 0.04:
                break
        assert breaker.refusals > 10
        server.signal(signal.SIGCONT)
        async with asyncio.timeout(5.0):
            while breaker.is_open:
                await asyncio.sleep(0.02)
                try:
                    await store.accept(new_job(bench), BODY)
                except StoreUnavailable:
                    pass
        assert changes == [True, False]

    on(server, test, answer_seconds=0.5)


def test_what_was_acknowledged_survives_the_death_of_the_server(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        batch, ids = await packed(bench, 20)
        server.kill()
        with pytest.raises(StoreUnavailable):
            await bench.store.get(ids[0])
        server.start()
        assert await bench.store.batch(batch.id) == batch
        assert await bench.store.batch_job_ids(batch.id) == ids
        assert {job.state for job in await bench.store.jobs(ids)} == {JobState.PACKED}
        assert len(await bench.store.bodies(ids)) == 20

    on(server, test)


def test_waiters_hear_again_after_the_server_was_started_anew(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        other = await bench.another(answer_seconds=0.2)
        job = (await bench.store.accept(new_job(bench), BODY)).job
        assert await other.wait(job.id, 0.05) == job
        server.kill()
        server.start()
        await bench.store.cancel(job.id)
        found = await asyncio.wait_for(other.wait(job.id, 10.0), 5.0)
        assert found is not None
        assert found.state is JobState.CANCELLED

    on(server, test)


def test_scripts_that_the_server_forgot_are_sent_again(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        await bench.store.accept(new_job(bench), BODY)
        server.command("SCRIPT FLUSH")
        assert (await bench.store.accept(new_job(bench), BODY)).is_new

    on(server, test)


def test_a_server_that_forbids_loading_scripts_still_runs_them(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        server.command("ACL SETUSER default -script")
        assert (await bench.store.accept(new_job(bench), BODY)).is_new

    on(server, test)


def test_a_former_master_refuses_and_is_asked_again_once_it_may_write(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        server.command("REPLICAOF 127.0.0.1 1")
        with pytest.raises(StoreUnavailable, match="ReadOnly"):
            await bench.store.accept(new_job(bench), BODY)
        server.command("REPLICAOF NO ONE")
        assert (await bench.store.accept(new_job(bench), BODY)).is_new

    on(server, test)


def test_a_full_server_keeps_what_it_has_and_says_so(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        job = (await bench.store.accept(new_job(bench), BODY)).job
        server.command("CONFIG SET maxmemory 1")
        with pytest.raises(StoreUnavailable, match="OutOfMemory"):
            await bench.store.accept(new_job(bench), BODY)
        assert await bench.store.get(job.id) == job

    on(server, test)


def test_what_a_server_lacks_for_durability_is_told(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.store.warnings() == ()
        server.command("CONFIG SET appendfsync everysec")
        server.command("CONFIG SET maxmemory 100mb")
        server.command("CONFIG SET maxmemory-policy allkeys-lru")
        told = await bench.store.warnings()
        assert len(told) == 2
        assert any("appendfsync" in one for one in told)
        assert any("evicted" in one for one in told)
        server.command("CONFIG SET appendonly no")
        assert any("appendonly is off" in one for one in await bench.store.warnings())

    on(server, test)


def test_bodies_answers_and_nothing_else_expire(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        job = (await bench.store.accept(new_job(bench), BODY)).job
        body_key = f"weir:{bench.name}:body:{{{job.id}}}"
        left = int(server.command(f"TTL {body_key}").strip(":\r\n"))
        assert 3600 + 3600 < left <= 3600 + 3600 + 86_400
        assert server.command(f"TTL weir:{{{bench.name}}}:job:{job.id}") == ":-1\r\n"

    on(server, test)


def test_nobody_listening_is_told_where() -> None:
    async def run() -> None:
        store = RedisStore("redis://127.0.0.1:1/0")
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
            await store.open()
        await store.close()

    asyncio.run(run())


def test_a_password_is_never_shown() -> None:
    async def run() -> None:
        store = RedisStore("redis://user:geheim@127.0.0.1:1/0")
        with pytest.raises(StoreUnavailable) as caught:
            await store.open()
        assert "geheim" not in str(caught.value) + repr(store)
        await store.close()

    asyncio.run(run())


def test_the_master_that_sentinel_names_is_used() -> None:
    master_port, sentinel_port = free_ports(2)
    with TemporaryDirectory(prefix="weir-s") as one, TemporaryDirectory(prefix="weir-s") as other:
        master, sentinel = RedisServer("valkey", Path(one)), RedisServer("valkey", Path(other))
        try:
            master.start("--port", str(master_port), "--bind", "127.0.0.1")
            sentinel.start_sentinel(sentinel_port, master_port)

            async def run() -> None:
                store = RedisStore(f"redis+sentinel://127.0.0.1:{sentinel_port}/main")
                await store.open()
                job = new_job(Bench("valkey", Path(one), None))
                assert (await store.accept(job, BODY)).is_new
                await store.close()
                unknown = RedisStore(f"redis+sentinel://127.0.0.1:{sentinel_port}/other")
                with pytest.raises(StoreUnavailable, match="other"):
                    await unknown.open()
                await unknown.close()

            asyncio.run(run())
            assert master.command("EXISTS weir:{weir}:all") == ":1\r\n"
        finally:
            sentinel.kill()
            master.kill()
