"""Lists stay right, and quick enough, with ten thousand records."""

from __future__ import annotations

import asyncio

from proxy.batch_server.model import BatchStatus, FilePurpose, Progress
from proxy.batch_server.store import FileQuery
from tests.support.batch_stores import Bench, claimed, held, new_batch, new_file, on_every_store

MANY = 10_000
BATCHES = 700
OUTPUT = FilePurpose.BATCH_OUTPUT


async def store_many(bench: Bench) -> list[str]:
    """Keep files of which every second one is an output, some as old as each other; oldest first."""
    files = [
        new_file(
            bench,
            id=f"file-{number:032x}",
            purpose=OUTPUT if number % 2 else FilePurpose.BATCH,
            created=bench.now + number // 3,
        )
        for number in range(MANY)
    ]
    batch = await claimed(bench, purge_at=bench.now + 99 * MANY)
    # The end of a batch shows any number of files in one step.
    await bench.store.finish(held(batch), Progress(BatchStatus.COMPLETED), files, None)
    return [file.id for file in files]


@on_every_store
async def test_ten_thousand_files_are_listed_in_one_page_or_in_many(bench: Bench) -> None:
    ids = await store_many(bench)
    whole = await bench.store.list_files(FileQuery("owner-a"))
    assert whole is not None
    assert [file.id for file in whole] == ids[::-1]
    outputs: list[str] = []
    while True:
        after = outputs[-1] if outputs else None
        page = await bench.store.list_files(FileQuery("owner-a", OUTPUT, 777, after, is_newest_first=False))
        assert page is not None
        outputs += [file.id for file in page]
        if len(page) < 777:
            break
    assert outputs == ids[1::2]
    # A page may begin behind a file with another purpose.
    page = await bench.store.list_files(FileQuery("owner-a", OUTPUT, 2, ids[5000]))
    assert page is not None
    assert [file.id for file in page] == [ids[4999], ids[4997]]
    assert await bench.store.purge(bench.now + 86_400.0) == 1000
    rest = await bench.store.list_files(FileQuery("owner-a"))
    assert rest is not None
    assert len(rest) == MANY - 1000


@on_every_store
async def test_the_oldest_of_many_batches_is_found(bench: Bench) -> None:
    batches = [
        new_batch(bench, id=f"batch_{number:032x}", created=bench.now + number // 3)
        for number in range(BATCHES)
    ]
    await asyncio.gather(*(bench.store.create_batch(batch) for batch in batches))
    page = await bench.store.list_batches("owner-a", 100, batches[50].id)
    assert page == tuple(batches[49::-1])
    assert (await bench.store.census()).batches == {"validating": BATCHES}
