"""The provider's work on batches: what is due is done, a few milliseconds at a time.

It owns the order of things: validate, run the lines evenly over the turnaround, write the files. When
something is due stands in the batch; what becomes of a line stands in lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.sim.books import Books
from proxy.sim.deferred import lines
from proxy.sim.deferred.batch import Batch, Status
from proxy.sim.deferred.checking import Breath, Line, check_input, lines_of, read_line
from proxy.sim.deferred.files import StoredFile
from proxy.sim.deferred.rules import LineRule
from proxy.sim.errors import ApiError
from proxy.sim.faults import Faults
from proxy.sim.scenario import Scenario
from proxy.sim.text import seeded
from proxy.sim.work import Bill, Call, Identity

RESULT_SECONDS = 30 * 24 * 3600
_REASONS: Mapping[Status, tuple[str, str]] = {
    Status.EXPIRED: lines.EXPIRED,
    Status.CANCELLED: lines.CANCELLED,
}


class BatchWork:
    """The worker of one provider."""

    def __init__(self, scenario: Scenario, books: Books, runner: lines.LineRunner) -> None:
        self._scenario = scenario
        self._books = books
        self._runner = runner

    async def advance(self) -> None:
        """Do all that is due by now, of all batches in the order of their creation."""
        for batch in self._books.batches.unfinished():
            validated_due = min(batch.validated_due, batch.expires_at)
            if batch.status is Status.VALIDATING and self._now() >= validated_due:
                await self._validate(batch)
            if batch.status is Status.IN_PROGRESS:
                await self._run_due_lines(batch)
            if batch.status is Status.FINALIZING and self._now() >= batch.completed_due:
                await self._end(batch, Status.COMPLETED)
            if batch.status is Status.CANCELLING and self._now() >= batch.cancelled_due:
                await self._end(batch, Status.CANCELLED)

    def _now(self) -> float:
        return self._books.clock.wall()

    async def _validate(self, batch: Batch) -> None:
        checked = await check_input(batch.content, batch.endpoint, self._scenario.batches)
        if batch.status is not Status.VALIDATING:
            return
        batch.model = checked.model
        batch.errors = checked.errors or self._refusal(batch, checked.tokens)
        if batch.errors:
            self._books.batches.move(batch, Status.FAILED)
            return
        batch.spans, batch.total, batch.enqueued_tokens = checked.spans, len(checked.spans), checked.tokens
        self._books.batches.move(batch, Status.IN_PROGRESS)

    def _refusal(self, batch: Batch, tokens: int) -> list[dict[str, object]]:
        """Return why the whole batch cannot be taken on, nothing if it can."""
        code = Faults(**batch.faults).batch_refuse
        limit = self._scenario.batches.enqueued_tokens
        taken = self._books.batches.enqueued_tokens(batch.caller, batch.model or "")
        if code is None and (not limit or taken + tokens <= limit):
            return []
        message = f"The batch was refused with code {code}. (simulated)"
        if code in (None, "token_limit_exceeded"):
            code = "token_limit_exceeded"
            message = (
                f"Enqueued token limit reached for {batch.model} in organization weir-sim. Limit: {limit:,} "
                "enqueued tokens. Please try again once some in_progress batches have been completed."
            )
        return [{"code": code, "line": None, "message": message, "param": None}]

    async def _run_due_lines(self, batch: Batch) -> None:
        batch.spans = batch.spans or list(lines_of(batch.content))
        rules = lines.rules_of(batch, self._scenario)
        breath = Breath()
        while batch.status is Status.IN_PROGRESS and batch.next_line < batch.lines_due(self._now()):
            self._run_line(batch, rules)
            await breath.taken()
        if batch.status is not Status.IN_PROGRESS:
            return
        self._books.batches.save(batch)
        if batch.next_line == batch.total and batch.run_due <= batch.expires_at:
            if self._now() >= batch.run_due:
                self._books.batches.move(batch, Status.FINALIZING)
        elif self._now() >= batch.expires_at:
            await self._end(batch, Status.EXPIRED)

    def _run_line(self, batch: Batch, rules: tuple[LineRule, ...]) -> None:
        number = batch.next_line
        start, end = batch.spans[number]
        line = read_line(batch.content[start:end])
        body_hash = lines.hash_of(line.raw_body)
        attempt = self._books.batches.attempt(body_hash)
        rule = lines.rule_for(batch, rules, line, body_hash, attempt, self._scenario.seed)
        outcome = self._runner.run(line, self._call(batch, number, line, body_hash), rule)
        self._books.batches.note_lines(batch, number, outcome.results, outcome.failures)
        batch.next_line += 1
        batch.completed += not outcome.failures
        batch.failed += bool(outcome.failures)
        if outcome.bill is not None:
            _add_usage(batch.usage, outcome.bill)

    def _call(self, batch: Batch, number: int, line: Line, body_hash: str) -> Call:
        identity = self._identity(batch, number)
        scenario, books = self._scenario, self._books
        return Call(
            line.url, line.body, {}, batch.caller, Faults(), scenario, identity, books, body_hash=body_hash
        )

    def _identity(self, batch: Batch, number: int) -> Identity:
        return Identity(f"{batch.id} line {number}", int(self._now()))

    async def _end(self, batch: Batch, status: Status) -> None:
        """Give up what has not run, write the files, let go of the rest."""
        before = batch.status
        given_up = await self._give_up_rest(batch, *_REASONS[status]) if status in _REASONS else []
        if batch.status is not before:
            return
        batch.failures += given_up
        batch.failed += len(given_up)
        batch.output_file_id = self._write(batch, "output", batch.results)
        batch.error_file_id = self._write(batch, "error", batch.failures)
        self._books.batches.move(batch, status)

    async def _give_up_rest(self, batch: Batch, code: str, message: str) -> list[bytes]:
        given_up = []
        batch.spans = batch.spans or list(lines_of(batch.content))
        batch.total = len(batch.spans)
        breath = Breath()
        for number in range(batch.next_line, batch.total):
            start, end = batch.spans[number]
            try:
                custom_id = read_line(batch.content[start:end]).custom_id
            except ApiError:
                # Cancelled before it was validated: a line that nobody can be told about.
                continue
            failure = lines.unexecuted_line(self._identity(batch, number), custom_id, code, message)
            given_up.append(failure)
            await breath.taken()
        return given_up

    def _write(self, batch: Batch, name: str, written: list[bytes]) -> str | None:
        """Keep a file of result lines in the seed's order; return its id, or None where there are none."""
        if not written:
            return None
        shuffled = list(written)
        seeded("order", str(self._scenario.seed), str(batch.number), name).shuffle(shuffled)
        now = self._now()
        seconds = RESULT_SECONDS if batch.output_seconds is None else batch.output_seconds
        file = StoredFile(
            id=Identity(batch.id, 0).make("file-", name, length=22),
            caller=batch.caller,
            filename=f"{batch.id}_{name}.jsonl",
            purpose="batch_output",
            content=b"".join(raw + b"\n" for raw in shuffled),
            created_at=now,
            expires_at=now + seconds,
        )
        self._books.files.keep(file, is_result=True)
        return file.id


def _add_usage(usage: dict[str, int], bill: Bill) -> None:
    counts = {
        "input": bill.input_tokens,
        "cached": bill.cached_tokens,
        "output": bill.output_tokens,
        "reasoning": bill.reasoning_tokens,
    }
    for name, count in counts.items():
        usage[name] = usage.get(name, 0) + count
