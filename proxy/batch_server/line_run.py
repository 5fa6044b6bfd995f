"""The lines of one batch on their way: some of them open at a time, each until it has its result.

    run       all of them, in the order given
    wind_up   start nothing more, let those that were sent end for a while, then cut them off

Owns trying again. `left` are the lines without a result, for whoever goes on with them or writes them off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from proxy.batch_server.capacity import LineEnd
from proxy.batch_server.gate import Turn
from proxy.batch_server.input_file import InputFile, InputGone
from proxy.batch_server.kit import Kit
from proxy.batch_server.line_call import GAVE_WAY
from proxy.batch_server.line_values import Elsewhere, LineAnswer, Sender
from proxy.batch_server.lines import InputLine
from proxy.batch_server.model import ServedBatch
from proxy.batch_server.recording import Recording, Result
from proxy.batch_server.result_lines import ResultLine, answered_line, unanswered_line
from proxy.batch_server.verdicts import Again, reason, verdict
from proxy.jobs.sealing import SealError

_log = logging.getLogger("weir")
_MOST_RETRY_AFTER_SECONDS = 600.0
_SMOOTHING = 0.2
_MOST_RESTING = 500
_MOST_CUTS = 3
"""A line that was cut off so often for callers' requests runs to its end the next time."""

_QUICK_BYTES = 256 * 1024
"""A longer answer is looked through in a thread: that takes about a millisecond per MiB and copies it."""


class _Open:
    """A line that is being worked on. `answer` is the one to keep, `last` its latest that was none."""

    __slots__ = ("answer", "cuts", "failures", "is_resting", "is_sent", "last", "line", "tries")

    def __init__(self, line: InputLine) -> None:
        self.line = line
        self.is_sent = False
        self.is_resting = False
        self.cuts = 0
        self.failures = 0
        self.tries = 0
        self.answer: LineAnswer | None = None
        self.last: LineAnswer | None = None


class LineRuns:
    """Runs lines of a batch. Not started twice."""

    def __init__(
        self, kit: Kit, batch: ServedBatch, sender: Sender, source: InputFile, recording: Recording
    ) -> None:
        self._kit = kit
        self._batch = batch
        self._sender = sender
        self._source = source
        self._recording = recording
        self._leads: dict[str, str] = {}
        self._unanswered: dict[int, InputLine] = {}
        self._open: dict[asyncio.Task[None], _Open] = {}
        self._freed = asyncio.Event()
        self._is_winding = False
        self._keeps_last = False
        self._usual_seconds = 0.0
        self._moved_at = kit.monotonic()

    def is_stuck(self, seconds: float) -> bool:
        """Tell whether no line got its result for so long, and all of them wait for better times."""
        if self._kit.monotonic() - self._moved_at < seconds:
            return False
        return not any(each.is_sent or each.tries for each in self._open.values())

    @property
    def left(self) -> list[InputLine]:
        """The lines that have no result, in the order in which they would have run."""
        return list(self._unanswered.values())

    async def run(self, lines: Iterable[InputLine]) -> None:
        """Run lines until all have their results, or until `wind_up` was called and has ended. Cancelled, it
        cuts off what runs.
        """
        self._unanswered = {line.number: line for line in lines}
        try:
            for line in tuple(self._unanswered.values()):
                await self._room()
                if self._is_winding:
                    break
                self._begin(_Open(line))
            while self._open:
                await asyncio.wait(self._open)
        finally:
            await self._cut_off(self._open)

    async def wind_up(self, grace_seconds: float, keeps_last: bool) -> None:
        """Start nothing more; cut off at once what is not on its way, after a while the rest.

        `keeps_last`: the latest answer of a line that was to be tried again becomes its result.
        """
        self._is_winding = True
        self._keeps_last = keeps_last
        self._freed.set()
        await self._cut_off([task for task, each in self._open.items() if not each.is_sent])
        if self._open and grace_seconds > 0:
            await asyncio.wait(self._open, timeout=grace_seconds)
        await self._cut_off(self._open)

    async def _cut_off(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        chosen = tuple(tasks)
        for task in chosen:
            task.cancel()
        if chosen:
            await asyncio.wait(chosen)

    async def _room(self) -> None:
        """Wait until another line may be opened."""
        gate = self._kit.gates.at(self._batch.upstream)
        while not self._is_winding and not self._may_open(gate.most + self._kit.settings.spare_lines):
            self._freed.clear()
            await self._freed.wait()
        await self._recording.room()

    def _may_open(self, most: int) -> bool:
        # Lines that are refused over and over are not in the way of others, maybe of another model.
        resting = sum(each.is_resting for each in self._open.values())
        return len(self._open) - min(resting, _MOST_RESTING) < most

    def _begin(self, opened: _Open) -> None:
        name = f"line {opened.line.number} of {self._batch.id}"
        task = asyncio.get_running_loop().create_task(self._work(opened), name=name)
        self._open[task] = opened
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        opened = self._open.pop(task)
        self._freed.set()
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("a line of the batch %s failed", self._batch.id, exc_info=problem)
            self._tell(opened.line, "internal_error", f"Weir failed on this line ({type(problem).__name__}).")

    # ---- one line

    async def _work(self, opened: _Open) -> None:
        try:
            opened.answer = await self._answer(opened)
            await self._conclude(opened.line, opened.answer)
        except (InputGone, SealError) as problem:
            self._tell(opened.line, "input_file_unreadable", f"This line cannot be read any more: {problem}.")
        except asyncio.CancelledError:
            kept = opened.answer or (opened.last if self._keeps_last else None)
            if kept is not None:
                await self._conclude(opened.line, kept)
            raise

    async def _answer(self, opened: _Open) -> LineAnswer:
        """Send a line until its answer is one to keep."""
        kit, line = self._kit, opened.line
        was_cut = False
        while True:
            expected = self._leads.get(line.model, self._batch.upstream)
            is_protected = opened.cuts >= _MOST_CUTS
            turn = await kit.gates.at(expected).turn(self._batch.id, was_cut, is_protected)
            if kit.now() + self._usual_seconds >= self._batch.expires:
                # It would be cut off before its answer: the time is somebody else's.
                turn.leave()
                await self._wait_for_the_end()
            answer = await self._send(opened, expected, turn)
            was_cut = answer is None
            if answer is None:
                opened.cuts += 1
                kit.watch.line_gave_way(expected)
                continue
            if isinstance(answer, Elsewhere):
                self._leads[line.model] = answer.upstream
                continue
            again, _ = verdict(answer)
            opened.tries += again is Again.SOMETIMES
            if again is Again.NEVER or opened.tries >= kit.settings.tries:
                return answer
            opened.last = answer
            opened.failures += 1
            kit.watch.line_retried(answer.upstream, reason(answer))
            if self._is_winding:
                raise asyncio.CancelledError
            asked_seconds = min(_MOST_RETRY_AFTER_SECONDS, answer.retry_after_seconds or 0.0)
            await self._rest(opened, max(kit.backoff(opened.failures), asked_seconds))

    async def _rest(self, opened: _Open, seconds: float) -> None:
        opened.is_resting = True
        self._freed.set()
        try:
            await asyncio.sleep(seconds)
        finally:
            opened.is_resting = False

    async def _wait_for_the_end(self) -> None:
        """Wait until `wind_up` cuts this line off."""
        await asyncio.get_running_loop().create_future()

    async def _send(self, opened: _Open, expected: str, turn: Turn) -> LineAnswer | Elsewhere | None:
        """Send a line; `None`: it was cut off, as a caller's request came."""
        end, answer = LineEnd.OTHER, None
        try:
            body = await self._source.body(opened.line)
            opened.is_sent = True
            answer = await self._call(body, opened.line, expected, turn)
            if isinstance(answer, LineAnswer):
                end = verdict(answer)[1]
                if end is LineEnd.ANSWERED:
                    known = self._usual_seconds or answer.seconds
                    self._usual_seconds = known + _SMOOTHING * (answer.seconds - known)
            return answer
        finally:
            opened.is_sent = False
            if isinstance(answer, LineAnswer):
                usage = answer.usage
                turn.leave(end, None if usage is None else usage.output_tokens, answer.retry_after_seconds)
            else:
                turn.leave(end)

    async def _call(
        self, body: bytes, line: InputLine, expected: str, turn: Turn
    ) -> LineAnswer | Elsewhere | None:
        calling = self._kit.caller.call(self._sender, line, body, expected)
        call = asyncio.get_running_loop().create_task(calling, name="line")
        turn.give_way = partial(call.cancel, GAVE_WAY)
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if turn.has_given_way and task is not None and not task.cancelling():
                return None
            raise

    async def _conclude(self, line: InputLine, answer: LineAnswer) -> None:
        facts = (self._batch.id, line.number, line.custom_id, answer.status, answer.request_id, answer.body)
        if len(answer.body) > _QUICK_BYTES:
            told = await self._kit.in_thread(answered_line, *facts)
        else:
            told = answered_line(*facts)
        self._add(line, told, answer)

    def _tell(self, line: InputLine, code: str, message: str) -> None:
        self._add(line, unanswered_line(self._batch.id, line.number, line.custom_id, code, message), None)

    def _add(self, line: InputLine, told: ResultLine, answer: LineAnswer | None) -> None:
        del self._unanswered[line.number]
        self._moved_at = self._kit.monotonic()
        outcome = "completed" if told.is_completed else "failed"
        usage = None if answer is None else answer.usage
        self._recording.add(Result(line.number, told, outcome, usage))
