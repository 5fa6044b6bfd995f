"""A batch's result files to its jobs.

Owns reading with bounded memory: answers are committed in small groups as they come; what is none is kept
(a sentence each, errors with their bodies) until every line has been seen, because a later line may be the
answer. Any order, both files, both error shapes, duplicates and strangers. Read again after a crash, it
writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from proxy.jobs.booking import book, book_failure, book_unknown, read_bill
from proxy.jobs.changes import BatchMove, JobChange
from proxy.jobs.model import (
    LIVE_JOB_STATES,
    Answer,
    Batch,
    Booking,
    BookingKind,
    Job,
    JobError,
    JobTier,
    Lease,
)
from proxy.jobs.transitions import BatchEvent, JobEvent, job_target
from proxy.jobs.unpacking import MISSING, LineOutcome, OutcomeKind, read_line
from proxy.jobs.verdicts import requeue
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import Trouble
from proxy.upstream.providers.batch_api import BatchApi, NotFound, RemoteBatch, RemoteState, Unavailable

_LINES_AT_ONCE = 200
_BYTES_AT_ONCE = 4 * 1024 * 1024
READINGS = 3
"""How often files that say nothing about any job are read again before their lines count as missing."""


async def settle(kit: Kit, lease: Lease, batch: Batch, api: BatchApi) -> Batch:
    """Give every job of an ended batch what its lines say. Raises `BatchApiError`."""
    settling = _Settling(kit, lease, batch)
    members = await kit.insist(lambda: kit.store.batch_job_ids(batch.id))
    rest = dict.fromkeys(members)
    try:
        async for raw in api.results(_remote(batch)):
            await settling.take(raw, rest)
    except NotFound:
        kit.watch.trouble(Trouble.GONE, batch.group.upstream)
    if rest and settling.has_read_nothing and batch.attempts < READINGS and _names_files(batch):
        # A page of a gateway, an empty file: what was paid for is worth another look.
        raise Unavailable("the result files say nothing about any job", may_have_happened=False)
    await settling.flush()
    return await settling.finish(tuple(rest))


def _names_files(batch: Batch) -> bool:
    return batch.output_file_id is not None or batch.error_file_id is not None


def _remote(batch: Batch) -> RemoteBatch:
    return RemoteBatch(
        batch.provider_id or "",
        RemoteState.COMPLETED,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created=batch.submitted,
        endpoint=batch.group.endpoint,
    )


class _Settling:
    """One reading of a batch's files."""

    def __init__(self, kit: Kit, lease: Lease, batch: Batch) -> None:
        self._kit = kit
        self._lease = lease
        self._batch = batch
        self._source = f"batch:{batch.id}"
        self._answers: dict[str, Answer] = {}
        self._bytes = 0
        self._others: dict[str, LineOutcome] = {}
        self._answered: set[str] = set()

    @property
    def has_read_nothing(self) -> bool:
        """No line was about a job of the batch."""
        return not self._answered and not self._others

    async def take(self, raw: bytes, rest: dict[str, None]) -> None:
        """Read one line; the id of a job that has its answer leaves `rest`."""
        text = raw.removeprefix(b"\xef\xbb\xbf").strip()
        if not text:
            return
        line = read_line(text, self._source)
        if line is None or (line[0] not in rest and line[0] not in self._answered):
            self._trouble(Trouble.UNKNOWN_LINE)
            return
        job_id, outcome = line
        if job_id in self._answered or job_id in self._others:
            self._trouble(Trouble.DUPLICATE_LINE)
        if job_id in self._answered:
            return
        if outcome.kind is not OutcomeKind.ANSWER or outcome.answer is None:
            self._others.setdefault(job_id, _slim(outcome))
            return
        del rest[job_id]
        self._others.pop(job_id, None)
        self._answered.add(job_id)
        self._answers[job_id] = outcome.answer
        self._bytes += len(outcome.answer.body)
        if len(self._answers) >= _LINES_AT_ONCE or self._bytes >= _BYTES_AT_ONCE:
            await self.flush()

    async def flush(self) -> None:
        """Commit the answers that were read."""
        answers, self._answers, self._bytes = self._answers, {}, 0
        if not answers:
            return
        jobs = await self._jobs(answers)
        changes = [self._success(job, answers[job.id]) for job in jobs]
        await self._commit(None, changes, jobs)

    def _success(self, job: Job, answer: Answer) -> JobChange:
        bill = read_bill(job.endpoint, answer.body)
        price = self._kit.price(job.upstream, job.model)
        booking = book(job, self._source, BookingKind.ANSWER, JobTier.BATCH, bill, price)
        answer = replace(answer, tier=booking.tier)
        return JobChange(JobEvent.SUCCEED, (job.id,), answer=answer, booking=booking)

    async def finish(self, rest: Sequence[str]) -> Batch:
        """Send on the jobs without an answer, and let go of the batch."""
        kit = self._kit
        p95 = await kit.p95_seconds(self._batch.group.upstream, self._batch.group.model)
        open_ids = set(await kit.insist(lambda: kit.store.batch_job_ids(self._batch.id, only_open=True)))
        left = [job_id for job_id in rest if job_id in open_ids]
        # A job that is open although it was answered was taken out of this batch and put back: not ours.
        for start in range(0, len(left), _LINES_AT_ONCE):
            jobs = await self._jobs(left[start : start + _LINES_AT_ONCE])
            changes = [self._without_answer(job, self._others.get(job.id, MISSING), p95) for job in jobs]
            await self._commit(None, changes, jobs)
        done = await kit.commit_batch(self._lease, BatchMove(BatchEvent.SETTLE, attempts=0))
        return done.batch

    def _without_answer(self, job: Job, outcome: LineOutcome, p95: dict[JobTier, float]) -> JobChange:
        kit = self._kit
        error = outcome.error or JobError("no_answer", "the batch gave no answer")
        if outcome.kind is OutcomeKind.FAILED:
            booking = None
            if outcome.answer is not None:
                bill = read_bill(job.endpoint, outcome.answer.body)
                price = kit.price(job.upstream, job.model)
                booking = book_failure(job, self._source, JobTier.BATCH, bill, price)
            if booking is None and outcome.may_have_run:
                booking = book_unknown(job, self._source)
            return JobChange(JobEvent.FAIL, (job.id,), answer=outcome.answer, error=error, booking=booking)
        lost = book_unknown(job, self._source) if outcome.may_have_run else None
        if outcome.kind is OutcomeKind.MISSING:
            self._trouble(Trouble.MISSING_LINE)
        wait = kit.backoff(job.attempts) if outcome.kind is OutcomeKind.RETRY else 0.0
        return again(kit, job, p95, wait, error, booking=lost)

    async def _commit(
        self, move: BatchMove | None, changes: Sequence[JobChange], jobs: Iterable[Job]
    ) -> None:
        kit = self._kit
        done = await kit.commit_batch(self._lease, move, changes)
        known, applied = {job.id: job for job in jobs}, set(done.applied)
        for change in changes:
            job = known[change.job_ids[0]]
            if job.id in applied:
                kit.told(as_committed(job, change, kit.now()), change)
            elif job.id in done.refused and change.booking is not None:
                await kit.book(job, replace(change.booking, kind=BookingKind.LOSER))

    async def _jobs(self, job_ids: Iterable[str]) -> tuple[Job, ...]:
        ids = tuple(job_ids)
        return await self._kit.insist(lambda: self._kit.store.jobs(ids)) if ids else ()

    def _trouble(self, kind: Trouble) -> None:
        self._kit.watch.trouble(kind, self._batch.group.upstream)


def again(
    kit: Kit,
    job: Job,
    p95: dict[JobTier, float],
    wait_seconds: float,
    error: JobError | None,
    *,
    may_stay: bool | None = None,
    event: JobEvent = JobEvent.RETRY,
    booking: Booking | None = None,
) -> JobChange:
    """Return the change that puts a batch's job back into the queue, for batches or for the next tier."""
    now = kit.now()
    stays = job.attempts < kit.settings.batch_tries if may_stay is None else may_stay
    to = requeue(job, now, p95, wait_seconds, may_stay=stays)
    is_batch = to.next.tier is JobTier.BATCH
    return JobChange(
        event,
        (job.id,),
        due=None if is_batch else now,
        ready=now + to.wait_seconds,
        tier=to.next.tier,
        tiers=to.next.left,
        error=error,
        booking=booking,
    )


def as_committed(job: Job, change: JobChange, now: float) -> Job:
    """Return a job as it stands after a commit, without asking the store for hundreds of them."""
    state = job_target(change.event, job.state) if job.is_live else job.state
    if state in LIVE_JOB_STATES or not job.is_live:
        return replace(job, state=state)
    return replace(job, state=state, ended_as=state, ended=now, error=change.error)


def _slim(outcome: LineOutcome) -> LineOutcome:
    """Forget a body that nobody will get."""
    return outcome if outcome.kind is OutcomeKind.FAILED else replace(outcome, answer=None)
