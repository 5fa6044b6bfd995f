"""What every batch store does with batches, for callers and for workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.batch_server.model import (
    BatchStatus,
    FilePurpose,
    LineProblem,
    Progress,
    ServedBatch,
    StoredFile,
    TokenSums,
)
from proxy.batch_server.store import FileQuery
from proxy.jobs.store import Conflict, LeaseLost
from tests.support.batch_stores import (
    DAY_SECONDS,
    Bench,
    claimed,
    created,
    held,
    new_batch,
    new_file,
    on_every_store,
    results,
)


def full_progress(bench: Bench) -> Progress:
    return Progress(
        status=BatchStatus.IN_PROGRESS,
        total=10,
        completed=3,
        failed=2,
        model="llama",
        problems=(LineProblem("invalid_json_line", "no JSON — ü", 3), LineProblem("x", "y", None, "url")),
        tokens=TokenSums(1, 2, 3, 4),
        in_progress_at=bench.now + 0.125,
    )


async def ended(bench: Bench, batch: ServedBatch, notice_due: float | None = None) -> ServedBatch:
    progress = replace(batch.progress, status=BatchStatus.COMPLETED, ended_at=bench.now)
    return await bench.store.finish(held(batch), progress, (), notice_due)


@on_every_store
async def test_a_batch_is_read_back_as_it_was(bench: Bench) -> None:
    batch = await created(bench, credential=b"\x00\xffsealed", webhook="night")
    plain = await created(bench, metadata=None, headers=())
    assert await bench.store.batch(batch.id) == batch
    assert await bench.store.batch(plain.id) == plain
    assert await bench.store.batch("batch_unknown") is None


@on_every_store
async def test_creating_a_batch_again_does_not_begin_it_again(bench: Bench) -> None:
    batch = await claimed(bench)
    saved = await bench.store.save(held(batch), full_progress(bench))
    await bench.store.create_batch(replace(batch, lease=None))
    assert await bench.store.batch(batch.id) == saved


@on_every_store
async def test_batches_are_listed_newest_first_in_pages(bench: Bench) -> None:
    ids = []
    for number in range(5):
        ids.append((await created(bench)).id)
        # Some are as old as each other.
        bench.clock.advance(float(number % 2))
    await created(bench, owner="owner-b")
    whole = await bench.store.list_batches("owner-a", 100, None)
    assert whole is not None
    assert {batch.id for batch in whole} == set(ids)
    assert [batch.created for batch in whole] == sorted((batch.created for batch in whole), reverse=True)
    first = await bench.store.list_batches("owner-a", 2, None)
    assert first == whole[:2]
    assert await bench.store.list_batches("owner-a", 2, first[-1].id) == whole[2:4]
    assert await bench.store.list_batches("owner-a", 2, whole[-1].id) == ()


@on_every_store
async def test_a_page_after_a_batch_of_somebody_else_is_refused(bench: Bench) -> None:
    batch = await created(bench, owner="owner-b")
    assert await bench.store.list_batches("owner-a", 2, batch.id) is None
    assert await bench.store.list_batches("owner-a", 2, "batch_unknown") is None


@on_every_store
async def test_a_wish_to_cancel_is_noted_once_and_makes_the_batch_due(bench: Bench) -> None:
    batch = await created(bench, due=bench.now + 500.0)
    asked_at = bench.now
    wished = await bench.store.ask_to_cancel(batch.id, asked_at)
    assert wished == replace(batch, cancelling_at=asked_at, due=asked_at)
    bench.clock.advance(5.0)
    assert await bench.store.ask_to_cancel(batch.id, bench.now) == wished
    (found,) = await bench.store.claim("w1", 60.0, 1)
    assert found.cancelling_at == asked_at


@on_every_store
async def test_whoever_works_on_a_batch_hears_of_the_wish_to_cancel(bench: Bench) -> None:
    batch = await claimed(bench)
    asked_at = bench.now
    wished = await bench.store.ask_to_cancel(batch.id, asked_at)
    assert wished.lease == batch.lease
    assert await bench.store.claim("w2", 60.0, 1) == ()
    saved = await bench.store.save(held(batch), Progress(BatchStatus.IN_PROGRESS, total=2))
    assert saved.cancelling_at == asked_at
    recorded = await bench.store.record(held(batch), results(saved.progress, (0,), b"{}\n"))
    assert recorded.cancelling_at == asked_at


@on_every_store
async def test_a_batch_that_ended_or_is_unknown_cannot_be_cancelled(bench: Bench) -> None:
    batch = await ended(bench, await claimed(bench))
    with pytest.raises(Conflict, match="completed"):
        await bench.store.ask_to_cancel(batch.id, bench.now)
    with pytest.raises(Conflict, match="no batch"):
        await bench.store.ask_to_cancel("batch_unknown", bench.now)


@on_every_store
async def test_batches_are_claimed_longest_due_first_and_by_one_worker(bench: Bench) -> None:
    late = await created(bench, due=bench.now - 10.0)
    later = await created(bench, due=bench.now - 20.0)
    await created(bench, due=bench.now + 0.5)
    other = await bench.another()
    (first,) = await bench.store.claim("w1", 60.0, 1)
    (second,) = await other.claim("w2", 60.0, 9)
    assert [first.id, second.id] == [later.id, late.id]
    assert held(first).worker == "w1"
    assert held(first).until == bench.now + 60.0
    assert replace(first, lease=None) == later
    assert await bench.store.batch(first.id) == first


@on_every_store
async def test_many_claims_at_once_give_each_batch_to_one(bench: Bench) -> None:
    other = await bench.another()
    ids = {(await created(bench)).id for _ in range(12)}
    stores = (bench.store, other) * 6
    found = await asyncio.gather(*(store.claim(f"w{n}", 60.0, 2) for n, store in enumerate(stores)))
    claimed_ids = [batch.id for batches in found for batch in batches]
    assert sorted(claimed_ids) == sorted(ids)


@on_every_store
async def test_a_lease_that_ran_out_is_taken_over_and_fences_the_former_holder(bench: Bench) -> None:
    batch = await claimed(bench)
    old = held(batch)
    bench.clock.advance(60.0)
    saved = await bench.store.save(old, Progress(BatchStatus.IN_PROGRESS, total=3))
    (again,) = await bench.store.claim("w2", 60.0, 1)
    assert held(again).token > old.token
    assert again.progress == saved.progress
    with pytest.raises(LeaseLost):
        await bench.store.save(old, Progress())
    with pytest.raises(LeaseLost):
        await bench.store.renew(old, 60.0)
    with pytest.raises(LeaseLost):
        await bench.store.record(old, results(saved.progress, (0,), b"late\n"))
    with pytest.raises(LeaseLost):
        await bench.store.finish(old, replace(saved.progress, status=BatchStatus.COMPLETED), (), None)
    with pytest.raises(LeaseLost):
        await bench.store.noted(old, None)
    await bench.store.release(old, bench.now)
    assert await bench.store.batch(batch.id) == again
    assert await bench.store.recorded_lines(batch.id) in ((), [])
    assert await bench.store.chunk(batch.output_file_id, 0) is None


@on_every_store
async def test_a_renewed_lease_lasts_longer(bench: Bench) -> None:
    batch = await claimed(bench)
    bench.clock.advance(59.0)
    longer = await bench.store.renew(held(batch), 60.0)
    assert longer == replace(held(batch), until=bench.now + 60.0)
    bench.clock.advance(59.0)
    assert await bench.store.claim("w2", 60.0, 1) == ()
    # Whoever still writes under the lease of before its renewal is the same holder.
    await bench.store.save(held(batch), Progress(BatchStatus.IN_PROGRESS))
    assert await bench.store.claim("w2", 60.0, 1) == ()


@on_every_store
async def test_a_lease_that_was_given_back_is_good_for_nothing(bench: Bench) -> None:
    batch = await claimed(bench)
    await bench.store.release(held(batch), bench.now + 30.0)
    found = await bench.store.batch(batch.id)
    assert found == replace(batch, lease=None, due=bench.now + 30.0)
    with pytest.raises(LeaseLost):
        await bench.store.save(held(batch), Progress())
    assert await bench.store.claim("w1", 60.0, 1) == ()
    bench.clock.advance(30.0)
    (again,) = await bench.store.claim("w1", 60.0, 1)
    assert held(again).token > held(batch).token


@on_every_store
async def test_progress_is_read_back_as_it_was_saved(bench: Bench) -> None:
    batch = await claimed(bench)
    progress = full_progress(bench)
    saved = await bench.store.save(held(batch), progress)
    assert saved == replace(batch, progress=progress)
    assert await bench.store.batch(batch.id) == saved


@on_every_store
async def test_results_become_chunks_and_their_lines_are_known(bench: Bench) -> None:
    batch = await claimed(bench)
    saved = await bench.store.save(held(batch), Progress(BatchStatus.IN_PROGRESS, total=9))
    one = results(saved.progress, (7, 0), b'{"a":1}\n{"b":2}\n')
    two = results(one.progress, (3,), b"", b'{"c":3}\n')
    three = results(two.progress, (4, 8), b'{"d":4}\n', b'{"e":5}\n')
    for recorded in (one, two, three):
        after = await bench.store.record(held(batch), recorded)
        assert after == replace(batch, progress=recorded.progress)
    assert sorted(await bench.store.recorded_lines(batch.id)) == [0, 3, 4, 7, 8]
    store = bench.store
    output = [await store.chunk(batch.output_file_id, index) for index in range(3)]
    assert output == [b'{"a":1}\n{"b":2}\n', b'{"d":4}\n', None]
    errors = [await store.chunk(batch.error_file_id, index) for index in range(3)]
    assert errors == [b'{"c":3}\n', b'{"e":5}\n', None]


@on_every_store
async def test_results_that_are_recorded_already_are_not_added_again(bench: Bench) -> None:
    batch = await claimed(bench)
    recorded = results(batch.progress, (1, 2), b"first\n")
    after = await bench.store.record(held(batch), recorded)
    assert await bench.store.record(held(batch), recorded) == after
    assert await bench.store.chunk(batch.output_file_id, 0) == b"first\n"
    assert await bench.store.chunk(batch.output_file_id, 1) is None


@on_every_store
async def test_a_progress_that_does_not_count_the_results_is_refused(bench: Bench) -> None:
    batch = await claimed(bench)
    recorded = results(batch.progress, (1,), b"first\n")
    for wrong in (
        replace(recorded, progress=batch.progress),
        replace(recorded, progress=replace(recorded.progress, output_chunks=2)),
        replace(recorded, errors=b"more\n"),
    ):
        with pytest.raises(ValueError, match="chunk"):
            await bench.store.record(held(batch), wrong)
    assert list(await bench.store.recorded_lines(batch.id)) == []
    assert await bench.store.batch(batch.id) == batch


@on_every_store
async def test_results_of_a_former_holder_do_not_touch_those_of_the_present_one(bench: Bench) -> None:
    batch = await claimed(bench)
    bench.clock.advance(61.0)
    (again,) = await bench.store.claim("w2", 60.0, 1)
    await bench.store.record(held(again), results(batch.progress, (1,), b"present\n"))
    with pytest.raises(LeaseLost):
        await bench.store.record(held(batch), results(batch.progress, (2,), b"former\n"))
    assert await bench.store.chunk(batch.output_file_id, 0) == b"present\n"
    assert list(await bench.store.recorded_lines(batch.id)) == [1]


def output_of(batch: ServedBatch, bench: Bench) -> StoredFile:
    return new_file(
        bench,
        id=batch.output_file_id,
        purpose=FilePurpose.BATCH_OUTPUT,
        filename="output.jsonl",
        size_bytes=6,
        chunk_count=1,
        is_complete=True,
        expires=batch.created + batch.output_seconds,
    )


@on_every_store
async def test_the_end_shows_the_files_and_leaves_no_credential_and_no_lease(bench: Bench) -> None:
    batch = await claimed(bench, credential=b"sealed")
    assert batch.credential == b"sealed"
    recorded = await bench.store.record(held(batch), results(batch.progress, (0,), b"first\n"))
    assert await bench.store.file(batch.output_file_id) is None
    assert not await bench.store.delete_file(batch.output_file_id)
    progress = replace(recorded.progress, status=BatchStatus.COMPLETED, ended_at=bench.now)
    file = output_of(batch, bench)
    after = await bench.store.finish(held(batch), progress, (file,), None)
    assert after == replace(batch, progress=progress, credential=None, lease=None)
    assert await bench.store.batch(batch.id) == after
    assert await bench.store.file(file.id) == file
    assert await bench.store.chunk(file.id, 0) == b"first\n"
    assert await bench.store.list_files(FileQuery("owner-a", FilePurpose.BATCH_OUTPUT)) == (file,)
    bench.clock.advance(100.0)
    assert await bench.store.claim("w2", 60.0, 9) == ()


@on_every_store
async def test_an_end_that_was_told_twice_is_no_harm(bench: Bench) -> None:
    batch = await claimed(bench)
    progress = Progress(BatchStatus.FAILED, ended_at=bench.now)
    once = await bench.store.finish(held(batch), progress, (), bench.now + 5.0)
    assert await bench.store.finish(held(batch), progress, (), bench.now + 5.0) == once
    with pytest.raises(LeaseLost):
        await bench.store.finish(held(batch), replace(progress, total=1), (), None)


@on_every_store
async def test_a_notice_is_claimed_when_it_is_due_until_it_was_told(bench: Bench) -> None:
    batch = await ended(bench, await claimed(bench, webhook="night"), notice_due=bench.now + 5.0)
    assert await bench.store.claim("w1", 60.0, 1) == ()
    bench.clock.advance(5.0)
    (first,) = await bench.store.claim("w1", 60.0, 1)
    assert first.id == batch.id
    await bench.store.noted(held(first), bench.now + 30.0)
    assert await bench.store.claim("w1", 60.0, 1) == ()
    bench.clock.advance(30.0)
    (second,) = await bench.store.claim("w1", 60.0, 1)
    assert (second.notice_tries, second.notice_due) == (1, bench.now)
    await bench.store.release(held(second), bench.now + 500.0)
    (third,) = await bench.store.claim("w1", 60.0, 1)
    await bench.store.noted(held(third), None)
    bench.clock.advance(DAY_SECONDS)
    assert await bench.store.claim("w1", 60.0, 1) == ()
    found = await bench.store.batch(batch.id)
    assert found == replace(batch, notice_due=None, notice_tries=1)


@on_every_store
async def test_notices_can_be_claimed_apart_from_work(bench: Bench) -> None:
    told = await ended(bench, await claimed(bench, webhook="night"), notice_due=bench.now)
    await created(bench, due=bench.now - 500.0)
    (notice,) = await bench.store.claim("w1", 60.0, 9, only_ends=True)
    assert notice.id == told.id
    assert await bench.store.claim("w2", 60.0, 9, only_ends=True) == ()
    bench.clock.advance(61.0)
    (again,) = await bench.store.claim("w2", 60.0, 9, only_ends=True)
    assert again.id == told.id
    await bench.store.noted(held(again), None)
    bench.clock.advance(600.0)
    assert await bench.store.claim("w3", 60.0, 9, only_ends=True) == ()
    (work,) = await bench.store.claim("w3", 60.0, 9)
    assert work.is_live


@on_every_store
async def test_what_was_cancelled_or_is_late_can_be_claimed_apart_from_work(bench: Bench) -> None:
    cancelled = await created(bench)
    late = await created(bench, expires=bench.now + 5.0, due=bench.now + 900.0)
    await created(bench)
    assert await bench.store.claim("w1", 60.0, 9, only_ends=True) == ()
    await bench.store.ask_to_cancel(cancelled.id, bench.now)
    (first,) = await bench.store.claim("w1", 60.0, 9, only_ends=True)
    assert (first.id, first.cancelling_at) == (cancelled.id, bench.now)
    bench.clock.advance(5.0)
    (second,) = await bench.store.claim("w1", 60.0, 9, only_ends=True)
    assert second.id == late.id
    await bench.store.release(held(second), bench.now + 900.0)
    (again,) = await bench.store.claim("w2", 60.0, 9, only_ends=True)
    await ended(bench, again, notice_due=None)
    await ended(bench, first, notice_due=None)
    bench.clock.advance(61.0)
    assert await bench.store.claim("w2", 60.0, 9, only_ends=True) == ()


@on_every_store
async def test_the_census_counts_batches_and_waiting_lines(bench: Bench) -> None:
    assert (await bench.store.census()).batches == {}
    await created(bench, due=bench.now + 50.0)
    running = await claimed(bench)
    await bench.store.save(held(running), Progress(BatchStatus.IN_PROGRESS, total=10, completed=3, failed=2))
    over = await claimed(bench)
    await bench.store.save(held(over), Progress(BatchStatus.IN_PROGRESS, total=7))
    progress = Progress(BatchStatus.CANCELLED, total=7, completed=1)
    await bench.store.finish(held(over), progress, (), None)
    census = await bench.store.census()
    assert census.batches == {"validating": 1, "in_progress": 1, "cancelled": 1}
    assert census.waiting_lines == 5
    await bench.store.purge(bench.now + 3 * DAY_SECONDS)
    census = await bench.store.census()
    assert (census.batches, census.waiting_lines) == ({}, 0)


@on_every_store
async def test_purge_deletes_every_trace_of_a_batch(bench: Bench) -> None:
    batch = await claimed(bench)
    await bench.store.record(held(batch), results(batch.progress, (0,), b"first\n", b"other\n"))
    lasting = await created(bench, purge_at=bench.now + 9 * DAY_SECONDS)
    later = bench.now + 3 * DAY_SECONDS
    assert await bench.store.purge(later - 1.0) == 0
    assert await bench.store.purge(later) == 1
    assert await bench.store.batch(batch.id) is None
    assert list(await bench.store.recorded_lines(batch.id)) == []
    assert await bench.store.chunk(batch.output_file_id, 0) is None
    assert await bench.store.chunk(batch.error_file_id, 0) is None
    assert await bench.store.list_batches("owner-a", 9, None) == (lasting,)
    with pytest.raises(LeaseLost):
        await bench.store.save(held(batch), Progress())
    with pytest.raises(LeaseLost):
        await bench.store.renew(held(batch), 60.0)
    await bench.store.release(held(batch), bench.now)
    assert await bench.store.batch(batch.id) is None
    bench.clock.advance(2 * DAY_SECONDS)
    assert [one.id for one in await bench.store.claim("w1", 60.0, 9)] == [lasting.id]


@on_every_store
async def test_purge_counts_files_and_batches_up_to_its_limit(bench: Bench) -> None:
    for _ in range(2):
        await bench.store.create_file(new_file(bench))
    for _ in range(10):
        await bench.store.create_batch(new_batch(bench))
    later = bench.now + 3 * DAY_SECONDS
    assert [await bench.store.purge(later, 5) for _ in range(4)] == [5, 5, 2, 0]
