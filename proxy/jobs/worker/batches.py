"""One batch, step by step, until its lease is given back or nothing is left of it.

    intent, uploaded   submission: look, upload, create
    created            poll; cancelled at the provider once nobody wants any of it
    ended              settlement
    settled, refused, abandoned   the provider's files are deleted

Owns what each of the port's errors means at each step. What a refusal of the whole batch calls for stands in
`refusal`.
"""

from __future__ import annotations

from functools import partial

from proxy.jobs.changes import BatchMove
from proxy.jobs.model import Batch, BatchState, JobTier, Lease
from proxy.jobs.transitions import BatchEvent
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import Trouble
from proxy.jobs.worker.refusal import abandoned, gone, refused
from proxy.jobs.worker.settlement import settle
from proxy.jobs.worker.submission import submit
from proxy.upstream.providers.batch_api import (
    BatchApi,
    BatchApiError,
    CredentialsRefused,
    FileRefused,
    InputChanged,
    NotFound,
    RateLimited,
    RefusalKind,
    RemoteBatch,
    RemoteState,
    Unavailable,
    Unsupported,
    refusal_kind,
)

_SUBMITTING = (BatchState.INTENT, BatchState.UPLOADED)


async def advance(kit: Kit, lease: Lease, batch: Batch, *, is_fresh: bool = False) -> None:
    """Take a batch as far as it goes now."""
    current: Batch | None = batch
    while current is not None:
        batch = current
        try:
            current = await _step(kit, lease, batch, is_fresh=is_fresh)
        except BatchApiError as problem:
            seen = await kit.insist(partial(kit.store.batch, lease.subject))
            batch = batch if seen is None else seen
            current = await _deal_with(kit, lease, batch, problem)
            is_fresh = False


async def _step(kit: Kit, lease: Lease, batch: Batch, *, is_fresh: bool) -> Batch | None:
    """Take one step; `None` once the lease is given back. Raises `BatchApiError`."""
    if batch.state is BatchState.CLEANED:
        return None
    api = kit.providers.batch_api(batch)
    match batch.state:
        case BatchState.INTENT | BatchState.UPLOADED:
            return await submit(kit, lease, batch, api, is_fresh=is_fresh)
        case BatchState.CREATED:
            return await _poll(kit, lease, batch, api)
        case BatchState.ENDED:
            return await settle(kit, lease, batch, api)
        case _:
            return await _clean(kit, lease, batch, api)


async def _poll(kit: Kit, lease: Lease, batch: Batch, api: BatchApi) -> Batch | None:
    remote = await api.retrieve(batch.provider_id or "")
    refusal = _refusal(remote)
    if refusal is not None:
        if remote.error_file_id is not None:
            await api.delete_file(remote.error_file_id)
        raise refusal
    if remote.state.is_final:
        return await _ended(kit, lease, batch, remote)
    if remote.state is RemoteState.RUNNING:
        wanted = await kit.insist(lambda: kit.store.batch_job_ids(batch.id, only_open=True))
        if not wanted:
            await api.cancel(remote.id)
    due = kit.next_poll(kit.now() - (batch.submitted or batch.created))
    await kit.commit_batch(lease, BatchMove(BatchEvent.POSTPONE, due=due, attempts=0))
    return None


def _refusal(remote: RemoteBatch) -> FileRefused | None:
    """Return what a batch that failed was refused for; `None` where its files say more about its lines."""
    if remote.state is not RemoteState.FAILED or remote.output_file_id is not None:
        return None
    told = remote.problems[0] if remote.problems else None
    refusal = FileRefused(
        "failed" if told is None else told.code,
        "the provider gave no reason" if told is None else told.message,
        remote.problems,
    )
    if remote.error_file_id is not None and refusal_kind(refusal) is RefusalKind.OTHER:
        return None
    return refusal


async def _ended(kit: Kit, lease: Lease, batch: Batch, remote: RemoteBatch) -> Batch:
    move = BatchMove(
        BatchEvent.END,
        output_file_id=remote.output_file_id,
        error_file_id=remote.error_file_id,
        ending=remote.state.value,
        attempts=0,
    )
    done = await kit.commit_batch(lease, move)
    if batch.submitted is not None and remote.state in (RemoteState.COMPLETED, RemoteState.EXPIRED):
        await kit.observe(batch, JobTier.BATCH, kit.now() - batch.submitted)
    return done.batch


async def _clean(kit: Kit, lease: Lease, batch: Batch, api: BatchApi) -> Batch:
    for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            await api.delete_file(file_id)
    return (await kit.commit_batch(lease, BatchMove(BatchEvent.CLEAN))).batch


async def _deal_with(kit: Kit, lease: Lease, batch: Batch, problem: BatchApiError) -> Batch | None:
    """Do what an error calls for; `None` once the lease is given back."""
    upstream = batch.group.upstream
    if batch.state in (BatchState.SETTLED, BatchState.REFUSED, BatchState.ABANDONED):
        return await _clean_later(kit, lease, batch, problem)
    match problem:
        case FileRefused():
            return await refused(kit, lease, batch, problem)
        case NotFound() if batch.state is BatchState.CREATED:
            return await gone(kit, lease, batch, str(problem))
        case Unsupported() | NotFound() if batch.state in _SUBMITTING:
            kit.watch.trouble(Trouble.REFUSED, upstream)
            return await abandoned(kit, lease, batch, str(problem))
        case CredentialsRefused():
            kit.watch.trouble(Trouble.CREDENTIALS, upstream)
            if batch.is_borrowing and batch.state in _SUBMITTING:
                return await abandoned(kit, lease, batch, str(problem))
        case RateLimited():
            kit.watch.trouble(Trouble.RATE_LIMITED, upstream)
        case InputChanged():
            pass
        case _:
            kit.watch.trouble(Trouble.PROVIDER, upstream)
    await _postpone(kit, lease, batch, problem)
    return None


async def _postpone(kit: Kit, lease: Lease, batch: Batch, problem: BatchApiError) -> None:
    wait = kit.backoff(batch.attempts + 1)
    if isinstance(problem, RateLimited):
        wait = max(wait, problem.retry_after_seconds or 0.0)
    if isinstance(problem, Unavailable) and problem.may_have_happened and batch.state in _SUBMITTING:
        wait = max(wait, kit.settings.uncertain_seconds)
    move = BatchMove(
        BatchEvent.POSTPONE, due=kit.now() + wait, attempts=batch.attempts + 1, note=str(problem)
    )
    await kit.commit_batch(lease, move)


async def _clean_later(kit: Kit, lease: Lease, batch: Batch, problem: BatchApiError) -> Batch | None:
    is_hopeless = isinstance(problem, CredentialsRefused | Unsupported | NotFound)
    if is_hopeless or batch.attempts >= kit.settings.clean_tries:
        # The provider forgets its files by itself after a while.
        await kit.commit_batch(lease, BatchMove(BatchEvent.CLEAN, note=f"files were left: {problem}"))
    else:
        await _postpone(kit, lease, batch, problem)
    return None
