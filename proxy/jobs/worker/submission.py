"""A batch on its way to the provider: upload, look, create.

    intent ── upload ──► uploaded ── create ──► created

Creation is not idempotent anywhere. So its intention is in the store before, our batch's id goes into the
provider's metadata, and whoever comes to a batch that somebody else (or an earlier try) may have submitted
looks for that id first. A file is found again by its name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

from proxy.jobs.changes import BatchMove, JobChange
from proxy.jobs.model import Batch, BatchState, Job, Lease
from proxy.jobs.packing import encode_line, line_bytes
from proxy.jobs.sealing import SealError
from proxy.jobs.transitions import BatchEvent, JobEvent
from proxy.jobs.worker.attempts import unreadable
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import Trouble
from proxy.jobs.worker.settlement import as_committed
from proxy.upstream.providers.batch_api import BatchApi, BatchApiError, BatchInput, RemoteBatch, RemoteState

_BODIES_AT_ONCE = 100
_BYTES_AT_ONCE = 8 * 1024 * 1024


def file_name(batch: Batch) -> str:
    """Return what a batch's file is called at the provider."""
    return f"weir-{batch.id}.jsonl"


async def submit(kit: Kit, lease: Lease, batch: Batch, api: BatchApi, *, is_fresh: bool) -> Batch | None:
    """Take a batch one step towards `created`; `None` once the lease is given back.

    `is_fresh`: this worker has packed it just now, nobody can have submitted it. Raises `BatchApiError`.
    """
    if not is_fresh and batch.state is not BatchState.INTENT:
        # Before an input is noted nobody creates a batch of it.
        members = await kit.insist(lambda: kit.store.batch_job_ids(batch.id))
        found = await api.find(batch.id, batch.input_file_id, batch.created, members)
        if found:
            await adopt(kit, lease, batch, api, found)
            return None
    jobs = await _open_jobs(kit, batch)
    if not jobs:
        done = await kit.commit_batch(lease, BatchMove(BatchEvent.ABANDON))
        return done.batch
    problems: list[SealError] = []
    content = _input(kit, batch, api, jobs, problems)
    try:
        batch, remote = await _sent(kit, lease, batch, api, content, is_fresh=is_fresh)
    except (BatchApiError, SealError):
        if not problems:
            raise
        # The client has made an error of the network of it.
        return await _fail_unreadable(kit, lease, batch, jobs)
    await _created(kit, lease, batch, remote, jobs)
    return None


async def _sent(
    kit: Kit, lease: Lease, batch: Batch, api: BatchApi, content: BatchInput, *, is_fresh: bool
) -> tuple[Batch, RemoteBatch]:
    if batch.state is BatchState.INTENT:
        file_id = None if is_fresh else await _uploaded_before(api, content)
        file_id = file_id or await api.upload(content)
        move = BatchMove(BatchEvent.UPLOAD, input_file_id=file_id, input_bytes=content.size_bytes)
        batch = (await kit.commit_batch(lease, move)).batch
    else:
        await kit.insist(lambda: kit.store.renew(lease, kit.settings.lease_seconds))
    return batch, await api.create(content, batch.input_file_id)


async def _fail_unreadable(kit: Kit, lease: Lease, batch: Batch, jobs: Sequence[Job]) -> Batch:
    """Take jobs whose bodies do not open out of a batch that was not sent: they fail with the reason."""
    changes = []
    for job in jobs:
        try:
            await kit.insist(partial(kit.store.bodies, (job.id,)))
        except SealError as problem:
            changes.append(JobChange(JobEvent.FAIL, (job.id,), error=unreadable(problem)))
    done = await kit.commit_batch(lease, None, changes)
    known = {job.id: job for job in jobs}
    for change in changes:
        if change.job_ids[0] in done.applied:
            kit.told(as_committed(known[change.job_ids[0]], change, kit.now()), change)
    return done.batch


async def adopt(kit: Kit, lease: Lease, batch: Batch, api: BatchApi, found: Sequence[RemoteBatch]) -> None:
    """Go on with a batch that the provider has already; others with the same tag are given up."""
    live = [remote for remote in found if remote.state not in (RemoteState.FAILED, RemoteState.CANCELLED)]
    kept = (live or found)[0]
    for other in found:
        if other.id != kept.id and not other.state.is_final:
            kit.watch.trouble(Trouble.DUPLICATE_BATCH, batch.group.upstream)
            await api.cancel(other.id)
    jobs = await _open_jobs(kit, batch)
    await _created(kit, lease, batch, kept, jobs)


async def _created(kit: Kit, lease: Lease, batch: Batch, remote: RemoteBatch, jobs: Sequence[Job]) -> None:
    move = BatchMove(
        BatchEvent.CREATE,
        due=kit.next_poll(0.0),
        provider_id=remote.id,
        input_file_id=remote.input_file_id,
        submitted=kit.now(),
        provider_expires=remote.expires,
        attempts=0,
    )
    done = await kit.commit_batch(lease, move, await _submissions(kit, jobs))
    kit.watch.batch_sent(done.batch, len(done.applied))


async def _submissions(kit: Kit, jobs: Sequence[Job]) -> list[JobChange]:
    """Return the changes that note jobs as submitted, each with the time of its rescue.

    Whoever rescues a job holds it, and a new time would take it away: where a rescue is near none is given.
    """
    now = kit.now()
    by_due: dict[float | None, list[str]] = {}
    for job in jobs:
        due = None
        if job.due > now + 2 * kit.settings.lease_seconds:
            due = max(now, await kit.rescue_time(job, since=now))
        by_due.setdefault(due, []).append(job.id)
    return [JobChange(JobEvent.SUBMIT, tuple(ids), due=due) for due, ids in by_due.items()]


async def _open_jobs(kit: Kit, batch: Batch) -> tuple[Job, ...]:
    ids = await kit.insist(lambda: kit.store.batch_job_ids(batch.id, only_open=True))
    return await kit.insist(lambda: kit.store.jobs(ids))


def _input(
    kit: Kit, batch: Batch, api: BatchApi, jobs: Sequence[Job], problems: list[SealError]
) -> BatchInput:
    """Return what is sent; a body that does not open ends the sending and goes into `problems`."""
    group = batch.group
    url = api.line_url(group.endpoint)

    async def lines() -> AsyncIterator[bytes]:
        for part in _parts(jobs):
            ids = [job.id for job in part]
            try:
                bodies = await kit.insist(partial(kit.store.bodies, ids))
            except SealError as problem:
                problems.append(problem)
                raise
            yield b"".join(
                encode_line(job.id, bodies[job.id], url, job.method) for job in part if job.id in bodies
            )

    size = sum(line_bytes(job, url) for job in jobs)
    wait = max(job.deadline for job in jobs) - kit.now()
    return BatchInput(batch.id, file_name(batch), group.endpoint, group.model, size, lines, wait)


def _parts(jobs: Sequence[Job]) -> list[list[Job]]:
    """Divide jobs so that the bodies of one part fit into memory."""
    parts: list[list[Job]] = []
    size = _BYTES_AT_ONCE
    for job in jobs:
        if size + job.body_bytes > _BYTES_AT_ONCE or len(parts[-1]) >= _BODIES_AT_ONCE:
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += job.body_bytes
    return parts


async def _uploaded_before(api: BatchApi, content: BatchInput) -> str | None:
    """Return the file that an earlier try has uploaded whole; others of its name are deleted."""
    kept = None
    for file in await api.find_files(content.file_name):
        if kept is None and file.size_bytes == content.size_bytes:
            kept = file.id
        else:
            await api.delete_file(file.id)
    return kept
