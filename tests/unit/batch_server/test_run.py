"""One executor over a real store: leases, a store that is away, the order of lines, ends of all kinds."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor as Threads
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import orjson

from proxy.batch_server.executor import Executor
from proxy.batch_server.gate import Gates
from proxy.batch_server.kit import ExecutorSettings, Kit
from proxy.batch_server.line_values import Elsewhere, LineAnswer, Sender
from proxy.batch_server.lines import InputLine
from proxy.batch_server.load import Load
from proxy.batch_server.model import BatchStatus, FilePurpose, ServedBatch, StoredFile
from proxy.batch_server.sqlite_store import SqliteBatchStore
from proxy.batch_server.store import BatchStore
from proxy.core.clock import ManualClock, SystemClock
from proxy.core.upstream import ServedBatchApi, Upstream
from proxy.core.usage import Usage
from proxy.edge.decision_threads import DecisionThreads
from proxy.jobs.sealing import PlainVault
from proxy.jobs.store import StoreUnavailable

CHAT = "/v1/chat/completions"
SETTINGS = ExecutorSettings(
    "worker-a",
    lease_seconds=0.6,
    idle_seconds=0.02,
    grace_seconds=0.2,
    backoff_seconds=0.01,
    backoff_most_seconds=0.05,
)
Answering = Callable[[str], Awaitable[bytes]]


async def at_once(text: str) -> bytes:
    return orjson.dumps({"said": text})


@dataclass
class Upstreams:
    """A `Caller`: notes what it is asked, and answers as `how` does."""

    how: Answering = at_once
    asked: list[str] = field(default_factory=list)

    async def call(
        self, sender: Sender, line: InputLine, body: bytes, expected: str
    ) -> LineAnswer | Elsewhere:
        """Answer with what was said."""
        text = json.loads(body)["messages"][-1]["content"]
        self.asked.append(text)
        answer = await self.how(text)
        return LineAnswer(expected, 200, "req", answer, 0.01, usage=Usage(1, 2))


class Away:
    """A store that is away, or whose answers get lost, as often as it is told."""

    def __init__(self, store: BatchStore) -> None:
        self._store = store
        self.failing = 0
        self.losing = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            if self.failing and name != "close":
                self.failing -= 1
                raise StoreUnavailable("it is away")
            done = await method(*arguments, **named)
            if self.losing and name in ("record", "finish", "save"):
                self.losing -= 1
                raise StoreUnavailable("its answer got lost")
            return done

        return call


@dataclass
class Bench:
    """A store with one executor at work over it."""

    store: BatchStore
    away: Away
    caller: Upstreams
    executor: Executor
    kit: Kit
    threads: Threads

    async def batch(self, texts: Sequence[str], **more: Any) -> ServedBatch:
        """Keep a file and a batch of its lines."""
        clock = self.kit.now
        count = len(await self.store.list_batches("owner", 100, None) or ())
        lines = [
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": CHAT,
                "body": {"model": "m", "messages": [{"role": "user", "content": text}]},
            }
            for number, text in enumerate(texts)
        ]
        content = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        file = StoredFile(
            f"file-{count:032x}", "owner", FilePurpose.BATCH, "in.jsonl", clock(), clock() + 1000
        )
        await self.store.create_file(file)
        # Cut anywhere: lines go over the edges of chunks.
        pieces = [content[start : start + 1000] for start in range(0, len(content), 1000)]
        for index, piece in enumerate(pieces):
            await self.store.append_chunk(file.id, index, piece)
        await self.store.complete_file(
            replace(file, size_bytes=len(content), chunk_count=len(pieces), is_complete=True)
        )
        batch = ServedBatch(
            id=f"batch_{count:032x}",
            owner="owner",
            upstream="local",
            endpoint=CHAT,
            input_file_id=file.id,
            window="24h",
            created=clock(),
            expires=clock() + 1000,
            output_file_id=f"file-out-{count}",
            error_file_id=f"file-err-{count}",
            output_seconds=1000,
            purge_at=clock() + 5000,
            due=clock(),
        )
        batch = replace(batch, **more)
        await self.store.create_batch(batch)
        return batch

    async def ended(self, batch: ServedBatch) -> ServedBatch:
        """Wait for a batch's end."""
        for _ in range(2000):
            known = await self.store.batch(batch.id)
            if known is not None and not known.is_live:
                return known
            await asyncio.sleep(0.01)
        raise AssertionError("it has not ended")

    async def said(self, batch: ServedBatch) -> list[str]:
        """Return what the output file of an ended batch says, in its order."""
        chunks = [
            await self.store.chunk(batch.output_file_id, n) for n in range(batch.progress.output_chunks)
        ]
        lines = b"".join(chunk or b"" for chunk in chunks).splitlines()
        return [json.loads(line)["response"]["body"]["said"] for line in lines]


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come to that")


def kit_over(
    store: BatchStore, caller: Upstreams, threads: Threads, settings: ExecutorSettings = SETTINGS
) -> Kit:
    upstreams = {"local": Upstream("local", "http://local", batch_api=ServedBatchApi(max_in_flight=4))}
    clock = SystemClock()
    gates = Gates(Load(), asyncio.get_running_loop(), clock, upstreams.get)
    vault = PlainVault()
    return Kit(store, clock, settings, caller, gates, vault, upstreams.__contains__, lambda: 0.5, threads)


@asynccontextmanager
async def bench(folder: Path, how: Answering = at_once) -> AsyncIterator[Bench]:
    """Work on batches until the block ends."""
    store = SqliteBatchStore(folder / "jobs.db.batches", SystemClock())
    await store.open()
    away, caller, threads = Away(store), Upstreams(how), DecisionThreads(1)
    kit = kit_over(cast(BatchStore, away), caller, threads)
    executor = Executor(kit)
    working = asyncio.get_running_loop().create_task(executor.run(), name="executor under test")
    try:
        yield Bench(store, away, caller, executor, kit, threads)
    finally:
        await executor.stop()
        await working
        threads.shutdown()
        await store.close()


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scene()

    asyncio.run(run())


def test_lines_over_the_edges_of_chunks_are_whole(tmp_path: Path) -> None:
    async def scene() -> None:
        texts = [f"{number} " + "word " * 100 for number in range(30)]
        async with bench(tmp_path) as b:
            ended = await b.ended(await b.batch(texts))
            assert ended.progress.status is BatchStatus.COMPLETED
            assert sorted(await b.said(ended)) == sorted(texts)
            assert ended.progress.tokens.output == 60

    play(scene)


def test_shared_beginnings_run_next_to_each_other(tmp_path: Path) -> None:
    async def scene() -> None:
        beginnings = ["The first of two long instructions. " * 20, "Another one, as long as that. " * 20]
        texts = [beginnings[number % 2] + str(number) for number in range(20)]
        async with bench(tmp_path) as b:
            await b.ended(await b.batch(texts))
            kinds = [text[:5] for text in b.caller.asked]
        changes = sum(one != other for one, other in pairwise(kinds))
        # Four run at once, and may overtake each other where one kind follows the other.
        assert changes <= 5

    play(scene)


def test_a_store_that_is_away_loses_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with bench(tmp_path) as b:
            begun = asyncio.Event()

            async def answer(text: str) -> bytes:
                if text == "text 5":
                    b.away.failing, b.away.losing = 4, 2
                    begun.set()
                return await at_once(text)

            b.caller.how = answer
            texts = [f"text {number}" for number in range(40)]
            ended = await b.ended(await b.batch(texts))
            assert begun.is_set()
            assert sorted(await b.said(ended)) == sorted(texts)
            assert sorted(b.caller.asked) == sorted(texts)
            assert ended.progress.completed == 40

    play(scene)


def test_a_lost_lease_ends_the_work_without_a_word(tmp_path: Path) -> None:
    async def scene() -> None:
        free = asyncio.Event()

        async def answer(text: str) -> bytes:
            await free.wait()
            return await at_once(text)

        async with bench(tmp_path, answer) as b:
            batch = await b.batch([f"text {number}" for number in range(10)])
            await until(lambda: bool(b.caller.asked))
            # To somebody whose clock is ahead the lease is over.
            other = SqliteBatchStore(tmp_path / "jobs.db.batches", ManualClock(b.kit.now() + 10))
            await other.open()
            (stolen,) = await other.claim("worker-b", 60.0, 1)
            await until(lambda: all(batch.id not in task.get_name() for task in asyncio.all_tasks()))
            free.set()
            assert await b.store.recorded_lines(batch.id) == ()
            known = await b.store.batch(batch.id)
            assert known is not None
            assert known.lease == stolen.lease
            # Whoever has taken it over does it all.
            assert stolen.lease is not None
            await other.release(stolen.lease, 0.0)
            await other.close()
            ended = await b.ended(batch)
            assert len(await b.said(ended)) == 10

    play(scene)


def test_a_killed_workers_batch_is_taken_over_once_its_lease_is_over(tmp_path: Path) -> None:
    async def scene() -> None:
        async with bench(tmp_path) as b:
            await b.executor.stop()
            batch = await b.batch([f"text {number}" for number in range(10)])
            (dead,) = await b.store.claim("killed", 0.3, 1)
            assert dead.id == batch.id
            other = Executor(kit_over(b.store, b.caller, b.threads, replace(SETTINGS, name="worker-b")))
            working = asyncio.get_running_loop().create_task(other.run(), name="another executor")
            ended = await b.ended(batch)
            assert ended.progress.status is BatchStatus.COMPLETED
            await other.stop()
            await working

    play(scene)


def test_stopping_gives_lines_their_time_and_the_batch_to_others(tmp_path: Path) -> None:
    async def scene() -> None:
        async def answer(text: str) -> bytes:
            await asyncio.sleep(0.1)
            return await at_once(text)

        async with bench(tmp_path, answer) as b:
            batch = await b.batch([f"text {number}" for number in range(50)])
            await until(lambda: len(b.caller.asked) >= 5)
            await b.executor.stop(2.0)
            known = await b.store.batch(batch.id)
            assert known is not None
            assert known.lease is None
            # All that was sent is recorded: nothing is sent twice.
            assert known.progress.completed == len(b.caller.asked)
            assert known.progress.completed < 50

    play(scene)


def test_a_batch_that_is_claimed_after_its_window_ends_as_expired(tmp_path: Path) -> None:
    async def scene() -> None:
        async with bench(tmp_path) as b:
            batch = await b.batch(["one", "two"], expires=b.kit.now() - 1)
            ended = await b.ended(batch)
            assert ended.progress.status is BatchStatus.EXPIRED
            assert not b.caller.asked

    play(scene)


def test_a_cut_off_line_is_given_a_while_after_a_cancellation(tmp_path: Path) -> None:
    async def scene() -> None:
        async def answer(text: str) -> bytes:
            await asyncio.sleep(0.1 if text == "short" else 60)
            return await at_once(text)

        async with bench(tmp_path, answer) as b:
            batch = await b.batch(["short", "long", "longer"])
            await until(lambda: bool(b.caller.asked))
            await b.store.ask_to_cancel(batch.id, b.kit.now())
            ended = await b.ended(batch)
            assert ended.progress.status is BatchStatus.CANCELLED
            assert (ended.progress.completed, ended.progress.failed) == (1, 2)
            assert await b.said(ended) == ["short"]

    play(scene)


def test_an_unexpected_fault_is_that_lines_result(tmp_path: Path) -> None:
    async def scene() -> None:
        async def answer(text: str) -> bytes:
            if text == "bad":
                raise RuntimeError("a fault")
            return await at_once(text)

        async with bench(tmp_path, answer) as b:
            ended = await b.ended(await b.batch(["one", "bad", "two"]))
            assert (ended.progress.completed, ended.progress.failed) == (2, 1)
            errors = await b.store.chunk(ended.error_file_id, 0)
            assert errors is not None
            assert json.loads(errors)["error"]["code"] == "internal_error"

    play(scene)


def test_a_large_answer_is_kept_whole(tmp_path: Path) -> None:
    async def scene() -> None:
        async def answer(text: str) -> bytes:
            return orjson.dumps({"said": text + "x" * 3_000_000})

        async with bench(tmp_path, answer) as b:
            ended = await b.ended(await b.batch(["a", "b", "c"]))
            assert sorted(len(text) for text in await b.said(ended)) == [3_000_001] * 3
            assert ended.progress.output_bytes > 9_000_000

    play(scene)


def test_an_answer_that_has_come_is_kept_when_everything_stops(tmp_path: Path) -> None:
    async def scene() -> None:
        is_free = threading.Event()
        threads: list[Threads] = []

        async def long(text: str) -> bytes:
            # Whatever is made of the answer in a thread waits for this.
            threads[0].submit(is_free.wait, 20.0)
            return orjson.dumps({"said": text * 400_000})

        async with bench(tmp_path, long) as at:
            threads.append(at.threads)
            batch = await at.batch(["x"])
            await until(lambda: at.caller.asked == ["x"])
            await asyncio.sleep(0.05)
            stopping = asyncio.get_running_loop().create_task(at.executor.stop())
            await asyncio.sleep(0.05)
            is_free.set()
            await stopping
            assert await at.store.recorded_lines(batch.id) == (0,)

    play(scene)
