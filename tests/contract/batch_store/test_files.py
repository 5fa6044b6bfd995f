"""What every batch store does with files."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from proxy.batch_server.model import FilePurpose
from proxy.batch_server.store import FileQuery
from proxy.core.upstream import Secret
from proxy.jobs.sealing import SealError, SecretVault
from proxy.jobs.store import Conflict
from tests.support.batch_stores import DAY_SECONDS, Bench, new_file, on_every_store, stored

MEBIBYTE = 1024 * 1024


@on_every_store
async def test_a_file_is_read_back_chunk_by_chunk(bench: Bench) -> None:
    chunks = (os.urandom(MEBIBYTE), b"\x00\xff\n", b"{}\n")
    file = await stored(bench, *chunks, filename="a ü.jsonl")
    assert await bench.store.file(file.id) == file
    assert [await bench.store.chunk(file.id, index) for index in range(4)] == [*chunks, None]


@on_every_store
async def test_another_process_sees_a_complete_file(bench: Bench) -> None:
    other = await bench.another()
    file = await stored(bench, b"x")
    assert await other.file(file.id) == file
    assert await other.chunk(file.id, 0) == b"x"


@on_every_store
async def test_nobody_sees_a_file_before_its_completion(bench: Bench) -> None:
    file = new_file(bench)
    await bench.store.create_file(file)
    await bench.store.append_chunk(file.id, 0, b"x")
    assert await bench.store.file(file.id) is None
    assert await bench.store.list_files(FileQuery("owner-a")) == ()
    assert await bench.store.list_files(FileQuery("owner-a", after=file.id)) is None


@on_every_store
async def test_steps_of_an_upload_may_be_repeated(bench: Bench) -> None:
    file = new_file(bench)
    for _ in range(2):
        await bench.store.create_file(file)
    await bench.store.append_chunk(file.id, 0, b"torn")
    await bench.store.create_file(file)
    await bench.store.append_chunk(file.id, 0, b"whole")
    whole = replace(file, size_bytes=5, chunk_count=1, is_complete=True)
    for _ in range(2):
        await bench.store.complete_file(whole)
    assert await bench.store.chunk(file.id, 0) == b"whole"
    assert await bench.store.file(file.id) == whole
    assert await bench.store.list_files(FileQuery("owner-a")) == (whole,)


@on_every_store
async def test_a_file_is_complete_though_its_description_forgot_to_say_so(bench: Bench) -> None:
    file = new_file(bench)
    await bench.store.create_file(file)
    await bench.store.complete_file(file)
    assert await bench.store.file(file.id) == replace(file, is_complete=True)


@on_every_store
async def test_nothing_is_added_to_a_file_that_is_complete_or_was_never_begun(bench: Bench) -> None:
    file = await stored(bench, b"x")
    with pytest.raises(Conflict, match="complete"):
        await bench.store.append_chunk(file.id, 0, b"y")
    assert await bench.store.chunk(file.id, 0) == b"x"
    unknown = new_file(bench)
    with pytest.raises(Conflict, match="gone"):
        await bench.store.append_chunk(unknown.id, 0, b"y")
    with pytest.raises(Conflict, match="gone"):
        await bench.store.complete_file(unknown)
    assert await bench.store.chunk(unknown.id, 0) is None


@on_every_store
async def test_a_deleted_file_is_gone_with_its_chunks(bench: Bench) -> None:
    file, other = await stored(bench, b"x", b"y"), await stored(bench, b"z")
    assert await bench.store.delete_file(file.id)
    assert not await bench.store.delete_file(file.id)
    assert await bench.store.file(file.id) is None
    assert [await bench.store.chunk(file.id, index) for index in range(2)] == [None, None]
    assert await bench.store.list_files(FileQuery("owner-a")) == (other,)
    assert await bench.store.chunk(other.id, 0) == b"z"


@on_every_store
async def test_an_upload_that_was_broken_off_can_be_deleted(bench: Bench) -> None:
    file = new_file(bench)
    await bench.store.create_file(file)
    await bench.store.append_chunk(file.id, 0, b"x")
    assert await bench.store.delete_file(file.id)
    assert await bench.store.chunk(file.id, 0) is None


@on_every_store
async def test_an_expired_file_is_not_there_even_before_it_is_purged(bench: Bench) -> None:
    file = await stored(bench, b"x")
    bench.clock.advance(DAY_SECONDS)
    assert await bench.store.file(file.id) is None
    assert await bench.store.list_files(FileQuery("owner-a")) == ()
    assert await bench.store.list_files(FileQuery("owner-a", purpose=FilePurpose.BATCH)) == ()


@on_every_store
async def test_files_are_listed_by_owner_and_purpose(bench: Bench) -> None:
    lines = await stored(bench, b"x")
    bench.clock.advance(1.0)
    output = await stored(bench, b"y", purpose=FilePurpose.BATCH_OUTPUT)
    await stored(bench, b"z", owner="owner-b")
    store = bench.store
    assert await store.list_files(FileQuery("owner-a")) == (output, lines)
    assert await store.list_files(FileQuery("owner-a", is_newest_first=False)) == (lines, output)
    assert await store.list_files(FileQuery("owner-a", purpose=FilePurpose.BATCH)) == (lines,)
    assert await store.list_files(FileQuery("owner-a", purpose=FilePurpose.BATCH_OUTPUT)) == (output,)
    assert await store.list_files(FileQuery("owner-c")) == ()


@on_every_store
async def test_pages_go_on_where_they_ended_though_files_are_as_old_as_each_other(bench: Bench) -> None:
    files = {(await stored(bench, b"")).id for _ in range(7)}
    for is_newest_first in (False, True):
        seen: list[str] = []
        while True:
            after = seen[-1] if seen else None
            query = FileQuery("owner-a", None, 3, after, is_newest_first)
            page = await bench.store.list_files(query)
            assert page is not None
            seen += [file.id for file in page]
            if len(page) < 3:
                break
        assert len(seen) == 7
        assert set(seen) == files


@on_every_store
async def test_a_page_after_a_file_of_somebody_else_is_refused(bench: Bench) -> None:
    file = await stored(bench, b"x", owner="owner-b")
    assert await bench.store.list_files(FileQuery("owner-a", after=file.id)) is None
    assert await bench.store.list_files(FileQuery("owner-a", after="file-unknown")) is None


@on_every_store
async def test_expired_files_do_not_shorten_a_page(bench: Bench) -> None:
    lasting = [await stored(bench, b"") for _ in range(3)]
    bench.clock.advance(1.0)
    for _ in range(5):
        await stored(bench, b"", expires=bench.now + 10.0)
    bench.clock.advance(10.0)
    page = await bench.store.list_files(FileQuery("owner-a", limit=3))
    assert page is not None
    assert {file.id for file in page} == {file.id for file in lasting}


@on_every_store
async def test_purge_deletes_what_expired_and_what_was_never_completed(bench: Bench) -> None:
    begun = new_file(bench)
    await bench.store.create_file(begun)
    await bench.store.append_chunk(begun.id, 0, b"x")
    short = await stored(bench, b"y", expires=bench.now + 60.0)
    lasting = await stored(bench, b"z")
    assert await bench.store.purge(bench.now + 59.0) == 0
    assert await bench.store.purge(bench.now + 60.0) == 1
    assert await bench.store.chunk(short.id, 0) is None
    assert await bench.store.purge(bench.now + 3599.0) == 0
    assert await bench.store.purge(bench.now + 3601.0) == 1
    assert await bench.store.chunk(begun.id, 0) is None
    with pytest.raises(Conflict, match="gone"):
        await bench.store.append_chunk(begun.id, 1, b"x")
    assert await bench.store.chunk(lasting.id, 0) == b"z"


@on_every_store
async def test_purge_stops_at_its_limit(bench: Bench) -> None:
    for _ in range(5):
        await stored(bench, b"x")
    later = bench.now + DAY_SECONDS
    assert [await bench.store.purge(later, 2) for _ in range(4)] == [2, 2, 1, 0]


@on_every_store
async def test_a_chunk_opens_only_with_the_key_that_sealed_it(bench: Bench) -> None:
    sealing = await bench.another(vault=SecretVault([Secret("k" * 40)]))
    file = new_file(bench)
    await sealing.create_file(file)
    await sealing.append_chunk(file.id, 0, b"the-secret-line")
    assert await sealing.chunk(file.id, 0) == b"the-secret-line"
    with pytest.raises(SealError):
        await bench.store.chunk(file.id, 0)
