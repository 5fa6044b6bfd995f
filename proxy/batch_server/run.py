"""One batch, from its claim to its end or until it is given back: check, order, run, finalize.

    validating ──► in_progress ──► finalizing ──► completed | expired | cancelled
        └──► failed

Owns what ends the running of lines: all are done, the window is over, the caller or this process wants an
end, the upstream is gone. Lines that run are given time where there is some; what has no answer is told so in
the error file. A lost lease ends everything at once, without a word in the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from proxy.batch_server.arrangement import arranged
from proxy.batch_server.credential import open_caller
from proxy.batch_server.input_file import InputFile, InputGone
from proxy.batch_server.kit import Kit
from proxy.batch_server.line_run import LineRuns
from proxy.batch_server.line_values import Sender
from proxy.batch_server.lines import CheckedInput, InputLine
from proxy.batch_server.model import (
    BatchLease,
    BatchStatus,
    FilePurpose,
    LineProblem,
    ServedBatch,
    StoredFile,
)
from proxy.batch_server.objects import told
from proxy.batch_server.recording import Recording, Result
from proxy.batch_server.result_lines import NotRun, not_run_line
from proxy.jobs.sealing import SealError
from proxy.jobs.store import LeaseLost, StoreUnavailable

_log = logging.getLogger("weir")
_BEATS_PER_LEASE = 3
_CHECKS_PER_STAY = 10.0
"""Whoever takes a batch up again checks its input again, which is to be a small part of the work."""
_WRITTEN_OFF_AT_ONCE = 500
_NOT_RUN = {BatchStatus.EXPIRED: NotRun.EXPIRED, BatchStatus.CANCELLED: NotRun.CANCELLED}


class Ending(Enum):
    """Why no more lines are started."""

    DONE = "done"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    GONE = "gone"


_ENDED_AS = {
    Ending.DONE: BatchStatus.COMPLETED,
    Ending.EXPIRED: BatchStatus.EXPIRED,
    Ending.CANCELLED: BatchStatus.CANCELLED,
}


class BatchRun:
    """The work on one claimed batch. Not started twice."""

    def __init__(self, kit: Kit, batch: ServedBatch, lease: BatchLease) -> None:
        self._kit = kit
        self._batch = batch
        self._lease = lease
        self._ending: Ending | None = None
        self._grace_seconds = 0.0
        self._is_cut_short = False
        self._asked = asyncio.Event()
        self._lines: LineRuns | None = None
        self._check_seconds = 0.0
        self._recording = Recording(kit, lease, batch.progress, self._count)

    def stop(self, grace_seconds: float) -> None:
        """Start nothing more, and give the batch back once lines that run are done or the time is over."""
        self._end(Ending.STOPPED, grace_seconds)

    def is_stuck(self) -> bool:
        """Tell whether lines have come to nothing for a while: this place is better given to others."""
        if self._ending is not None or self._lines is None:
            return False
        least_seconds = self._kit.settings.lease_seconds
        return self._lines.is_stuck(max(least_seconds, _CHECKS_PER_STAY * self._check_seconds))

    async def work(self) -> Ending | None:
        """Work on the batch; `None` once it has ended, else why it has to be given back.

        Raises `LeaseLost`, `SealError` where others may have the key, and `StoreError` or whatever else went
        wrong, alone.
        """
        try:
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(self._keep(), name=f"lease of {self._batch.id}")
                writing = group.create_task(self._recording.run(), name=f"results of {self._batch.id}")
                try:
                    return await self._work()
                finally:
                    keeping.cancel()
                    writing.cancel()
        except BaseExceptionGroup as problems:
            # Which of the tasks met it first does not matter to whoever waits.
            raise _first(problems) from None

    async def _work(self) -> Ending | None:
        kit, batch = self._kit, self._batch
        self._look(batch)
        if self._ending in (Ending.GONE, Ending.STOPPED):
            return self._ending
        file = await kit.insist(lambda: kit.store.file(batch.input_file_id))
        try:
            if file is None:
                raise InputGone(f"the input file {batch.input_file_id} is not there any more")
            source = InputFile(kit, file)
            began_at = kit.monotonic()
            checked = await source.check(batch.endpoint, self._may_check)
            self._check_seconds = kit.monotonic() - began_at
            sender = Sender(
                batch.id, batch.endpoint, batch.headers + open_caller(kit.vault, batch), batch.owner
            )
        except (InputGone, SealError) as problem:
            if isinstance(problem, SealError) and self._ending not in _ENDED_AS:
                raise
            await self._fail((LineProblem("input_file_unreadable", f"{problem}."),))
            return None
        if checked is None:
            return await self._stop_checking()
        if batch.progress.status is BatchStatus.VALIDATING:
            if checked.problems:
                await self._fail(checked.problems)
                return None
            await self._begin(checked)
        done = await kit.insist(lambda: kit.store.recorded_lines(batch.id))
        left = await kit.in_thread(arranged, checked.lines, done)
        if self._recording.progress.status is BatchStatus.IN_PROGRESS and left:
            left = await self._run(left, source, sender)
        return await self._finalize(left)

    # ---- what others want of the batch

    async def _keep(self) -> None:
        """Keep the lease, and look once in a while at what has become of the batch's prospects."""
        kit, settings = self._kit, self._kit.settings
        renewed_at = kit.monotonic()
        while True:
            beat = settings.lease_seconds / _BEATS_PER_LEASE
            left = max(0.05, self._batch.expires - kit.now())
            await asyncio.sleep(min(settings.idle_seconds, beat, left))
            self._look(self._batch)
            try:
                if kit.monotonic() - renewed_at >= beat:
                    renewed_at = kit.monotonic()
                    await kit.store.renew(self._lease, settings.lease_seconds)
                batch = await kit.store.batch(self._batch.id)
            except StoreUnavailable:
                continue  # nobody else can take it over either
            if batch is None:
                raise LeaseLost("the batch was deleted")
            self._look(batch)

    def _look(self, batch: ServedBatch) -> None:
        kit = self._kit
        if batch.cancelling_at is not None:
            self._end(Ending.CANCELLED, kit.settings.grace_seconds)
        elif kit.now() >= batch.expires:
            self._end(Ending.EXPIRED, 0.0)
        elif not kit.has_upstream(batch.upstream):
            self._end(Ending.GONE, max(0.0, batch.expires - kit.now()))

    def _end(self, ending: Ending, grace_seconds: float) -> None:
        if self._ending is None:
            self._ending = ending
            self._grace_seconds = min(grace_seconds, max(0.0, self._batch.expires - self._kit.now()))
            self._asked.set()

    def _may_check(self) -> bool:
        """Whether the check of the input goes on: once lines have run, their ids are needed to the end."""
        return self._ending is None or self._batch.progress.status is not BatchStatus.VALIDATING

    # ---- stages

    async def _stop_checking(self) -> Ending | None:
        ending = self._ending
        assert ending is not None
        if ending in _ENDED_AS:
            await self._finish(_ENDED_AS[ending])
            return None
        return ending

    async def _fail(self, problems: tuple[LineProblem, ...]) -> None:
        self._recording.progress = replace(self._recording.progress, problems=problems)
        await self._finish(BatchStatus.FAILED)

    async def _begin(self, checked: CheckedInput) -> None:
        kit = self._kit
        progress = replace(
            self._recording.progress,
            status=BatchStatus.IN_PROGRESS,
            total=len(checked.lines),
            model=checked.model,
            in_progress_at=kit.now(),
        )
        self._look(await kit.insist(lambda: kit.store.save(self._lease, progress)))
        self._recording.progress = progress

    async def _run(self, left: list[InputLine], source: InputFile, sender: Sender) -> list[InputLine]:
        """Run lines until all are done or something else ends that; return those without a result."""
        runs = self._lines = LineRuns(self._kit, self._batch, sender, source, self._recording)
        loop = asyncio.get_running_loop()
        ending = loop.create_task(self._asked.wait(), name=f"end of {self._batch.id}")
        running = loop.create_task(runs.run(left), name=f"lines of {self._batch.id}")
        try:
            await asyncio.wait({ending, running}, return_when=asyncio.FIRST_COMPLETED)
            if self._ending is None:
                self._ending = Ending.DONE
            elif not running.done():
                self._is_cut_short = bool(runs.left)
                await runs.wind_up(self._grace_seconds, keeps_last=self._ending is Ending.EXPIRED)
            await running
        finally:
            ending.cancel()
            running.cancel()
            await asyncio.gather(ending, running, return_exceptions=True)
        await self._recording.settled()
        return runs.left

    async def _finalize(self, left: list[InputLine]) -> Ending | None:
        kit = self._kit
        ended_as = self._status(left)
        if ended_as is None:
            return self._ending
        progress = self._recording.progress
        if progress.status is not BatchStatus.FINALIZING:
            progress = replace(progress, status=BatchStatus.FINALIZING, finalizing_at=kit.now())
            await kit.insist(lambda: kit.store.save(self._lease, progress))
            self._recording.progress = progress
        if left:
            await self._write_off(left, ended_as)
        await self._finish(ended_as)
        return None

    def _status(self, left: list[InputLine]) -> BatchStatus | None:
        """Return how the batch ends, `None` where it does not end here.

        One that somebody else has begun to finalize ends as was meant then, which its times tell.
        """
        progress, batch = self._recording.progress, self._batch
        if self._ending is Ending.CANCELLED or batch.cancelling_at is not None:
            return BatchStatus.CANCELLED
        if progress.finalizing_at is not None:
            is_late = bool(left) or progress.finalizing_at >= batch.expires
            return BatchStatus.EXPIRED if is_late else BatchStatus.COMPLETED
        if self._ending is Ending.EXPIRED and (left or self._is_cut_short):
            return BatchStatus.EXPIRED
        return None if left else BatchStatus.COMPLETED

    async def _write_off(self, left: list[InputLine], ended_as: BatchStatus) -> None:
        """Say in the error file of every line that is left why it has no answer."""
        why = _NOT_RUN[ended_as]
        for start in range(0, len(left), _WRITTEN_OFF_AT_ONCE):
            for line in left[start : start + _WRITTEN_OFF_AT_ONCE]:
                told = not_run_line(self._batch.id, line.number, line.custom_id, why)
                self._recording.add(Result(line.number, told, ended_as.value))
            await self._recording.settled()

    async def _finish(self, status: BatchStatus) -> None:
        kit, batch = self._kit, self._batch
        now = kit.now()
        progress = replace(self._recording.progress, status=status, ended_at=now)
        files = tuple(self._files(now))
        notice_due = now if batch.webhook else None
        ended = await kit.insist(lambda: kit.store.finish(self._lease, progress, files, notice_due))
        kit.watch.batch_ended(ended)
        _log.info("batch %s %s: %s", batch.id, status.value, told(progress))

    def _files(self, now: float) -> Iterable[StoredFile]:
        batch, progress = self._batch, self._recording.progress
        for file_id, kind, size, chunks in (
            (batch.output_file_id, "output", progress.output_bytes, progress.output_chunks),
            (batch.error_file_id, "error", progress.error_bytes, progress.error_chunks),
        ):
            if chunks:
                yield StoredFile(
                    id=file_id,
                    owner=batch.owner,
                    purpose=FilePurpose.BATCH_OUTPUT,
                    filename=f"{batch.id}_{kind}.jsonl",
                    created=now,
                    expires=now + batch.output_seconds,
                    size_bytes=size,
                    chunk_count=chunks,
                    is_complete=True,
                )

    def _count(self, outcomes: dict[str, int]) -> None:
        for outcome, count in outcomes.items():
            self._kit.watch.lines_recorded(self._batch.upstream, outcome, count)


def _first(problems: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first of some exceptions; a lost lease comes before all others."""
    lost = problems.subgroup(LeaseLost)
    found: BaseException = problems if lost is None else lost
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
