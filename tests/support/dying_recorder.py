"""A process that uploads and records results until it is killed, and says what was acknowledged.

python -m tests.support.dying_recorder WHERE: WHERE is a path, or NAMESPACE@REDIS-URL. Prints `batch <id>
<output file>`, then `line <number>` and `chunk <file> <index>` after each acknowledgement.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from proxy.batch_server.model import BatchStatus, Progress
from proxy.batch_server.redis_store import RedisBatchStore
from proxy.batch_server.sqlite_store import SqliteBatchStore
from proxy.batch_server.store import BatchStore
from proxy.core.clock import Clock
from tests.support.batch_stores import Bench, claimed, held, new_file, results


def store_at(where: str, clock: Clock) -> BatchStore:
    """Return the store of an address, not open."""
    namespace, at, url = where.partition("@")
    if at:
        return RedisBatchStore(url, clock, namespace=namespace)
    return SqliteBatchStore(Path(where), clock)


def line_of(number: int) -> bytes:
    """Return the result of a line."""
    return b'{"custom_id":"%d"}\n' % number


def chunk_of(index: int) -> bytes:
    """Return a chunk of an upload."""
    return b"%d" % index * 5000


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def _record(bench: Bench) -> None:
    batch = await claimed(bench)
    _say("batch", batch.id, batch.output_file_id)
    progress = Progress(BatchStatus.IN_PROGRESS, total=50_000)
    for number in range(50_000):
        recorded = results(progress, (number,), line_of(number))
        progress = (await bench.store.record(held(batch), recorded)).progress
        _say("line", number)


async def _upload(bench: Bench) -> None:
    file = new_file(bench)
    await bench.store.create_file(file)
    for index in range(50_000):
        await bench.store.append_chunk(file.id, index, chunk_of(index))
        _say("chunk", file.id, index)


async def _live(where: str) -> None:
    bench = Bench("", Path(), None)
    bench.opened.append(store_at(where, bench.clock))
    await bench.store.open()
    await asyncio.gather(_record(bench), _upload(bench), _upload(bench))


if __name__ == "__main__":
    asyncio.run(_live(sys.argv[1]))
