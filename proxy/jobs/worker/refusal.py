"""A provider takes none of a batch: what becomes of its jobs. None of them was executed.

    quota      halves, later; a batch that cannot be halved goes again as it is, later still
    too large  halves, at once; a single job goes another way
    lines      those that are named go another way, the others into a new batch
    other      all go another way

"Another way" is the next tier of each job, at last a direct call, whose answer is the provider's own word to
the caller.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from proxy.jobs.booking import book_unknown
from proxy.jobs.changes import BatchMove
from proxy.jobs.model import Batch, Job, JobError, Lease
from proxy.jobs.packing import halves, line_bytes
from proxy.jobs.transitions import BatchEvent, JobEvent
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import Trouble
from proxy.jobs.worker.settlement import again
from proxy.upstream.providers.batch_api import FileRefused, RefusalKind, refusal_kind

_JOBS_AT_ONCE = 200
_DEEPEST = 16


async def refused(kit: Kit, lease: Lease, batch: Batch, told: FileRefused) -> Batch | None:
    """Act on a refusal of the whole batch; `None` once the lease is given back."""
    kind = refusal_kind(told)
    kit.watch.trouble(Trouble.QUOTA if kind is RefusalKind.QUOTA else Trouble.REFUSED, batch.group.upstream)
    open_ids = await kit.insist(lambda: kit.store.batch_job_ids(batch.id, only_open=True))
    match kind:
        case RefusalKind.QUOTA if open_ids:
            await _split(kit, lease, batch, open_ids, waits=True)
            return None
        case RefusalKind.TOO_LARGE if len(open_ids) > 1:
            await _split(kit, lease, batch, open_ids, waits=False)
            return None
        case RefusalKind.LINES if len(open_ids) > 1 and not await _is_whole(kit, batch, open_ids):
            # Somebody has left since the file was sent: its numbers would point at other jobs.
            await _split(kit, lease, batch, open_ids, waits=False)
            return None
        case RefusalKind.LINES:
            named = {problem.line for problem in told.problems}
            bad = {job_id for line, job_id in enumerate(open_ids, 1) if line in named}
            return await _leave(kit, lease, batch, BatchEvent.REFUSE, told, lambda job: job.id not in bad)
        case _:
            return await _leave(kit, lease, batch, BatchEvent.REFUSE, told, lambda _: False)


async def abandoned(kit: Kit, lease: Lease, batch: Batch, why: str) -> Batch:
    """Give up a batch that the provider never accepted: it takes none of these jobs."""
    told = FileRefused("batch_abandoned", why)
    return await _leave(kit, lease, batch, BatchEvent.ABANDON, told, lambda _: False)


async def gone(kit: Kit, lease: Lease, batch: Batch, why: str) -> Batch:
    """The provider does not know a batch any more: what it did is unknown, its jobs are tried again."""
    kit.watch.trouble(Trouble.GONE, batch.group.upstream)
    open_ids = await kit.insist(lambda: kit.store.batch_job_ids(batch.id, only_open=True))
    for job in await kit.insist(lambda: kit.store.jobs(open_ids)):
        await kit.book(job, book_unknown(job, f"batch:{batch.id}"))
    told = FileRefused("batch_gone", why)
    return await _leave(kit, lease, batch, BatchEvent.REFUSE, told, lambda _: None, JobEvent.RETRY)


async def _is_whole(kit: Kit, batch: Batch, open_ids: Sequence[str]) -> bool:
    """Tell whether the file that was sent holds a line for each of these jobs and no others."""
    if batch.input_bytes is None:
        return len(open_ids) == batch.job_count
    url = kit.providers.batch_api(batch).line_url(batch.group.endpoint)
    jobs = await kit.insist(lambda: kit.store.jobs(open_ids))
    return sum(line_bytes(job, url) for job in jobs) == batch.input_bytes


async def _split(kit: Kit, lease: Lease, batch: Batch, job_ids: Sequence[str], *, waits: bool) -> None:
    """Put a batch's jobs into smaller ones, in one step. Its own files are deleted by whoever takes it up."""
    depth = await _depth(kit, batch)
    is_halved = depth <= kit.settings.splits or not waits
    parts = halves(job_ids) if is_halved else (tuple(job_ids),)
    step = kit.backoff(depth) if waits else 0.0
    made = [
        (
            Batch(
                uuid.uuid4().hex,
                batch.group,
                kit.now(),
                is_borrowing=batch.is_borrowing,
                credential=batch.credential,
                due=kit.now() + step * (index + 1),
                note=f"part of {batch.id}",
            ),
            part,
        )
        for index, part in enumerate(parts)
    ]
    await kit.insist(lambda: kit.store.split(lease, made))


async def _depth(kit: Kit, batch: Batch) -> int:
    """Return how many refusals in a row led to this one, itself included."""
    depth, parent_id = 1, batch.parent_id
    while parent_id is not None and depth < _DEEPEST:
        parent = await kit.insist(partial(kit.store.batch, parent_id))
        depth, parent_id = depth + 1, None if parent is None else parent.parent_id
    return depth


async def _leave(
    kit: Kit,
    lease: Lease,
    batch: Batch,
    event: BatchEvent,
    told: FileRefused,
    may_stay: Callable[[Job], bool | None],
    job_event: JobEvent = JobEvent.RETURN,
) -> Batch:
    """Empty a batch. Jobs that may stay wait for a new batch, the others take their next tier.

    `None` from `may_stay`: as long as a job has not been through too many batches.
    """
    open_ids = await kit.insist(lambda: kit.store.batch_job_ids(batch.id, only_open=True))
    p95 = await kit.p95_seconds(batch.group.upstream, batch.group.model)
    error = JobError(told.code, str(told))
    for part in _parts(open_ids):
        jobs = await kit.insist(partial(kit.store.jobs, part))
        changes = []
        for job in jobs:
            stays = may_stay(job)
            wait = 0.0 if stays is False else kit.backoff(max(1, job.attempts))
            changes.append(again(kit, job, p95, wait, error, may_stay=stays, event=job_event))
        await kit.commit_batch(lease, None, changes)
    return (await kit.commit_batch(lease, BatchMove(event, note=str(told), attempts=0))).batch


def _parts(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(ids), _JOBS_AT_ONCE):
        yield ids[start : start + _JOBS_AT_ONCE]
