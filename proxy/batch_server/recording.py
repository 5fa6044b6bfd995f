"""The one writer of a batch's results: what has arrived while the store was busy goes in as one step.

Owns the progress while lines run. Results are small and committed as they come, so that a crash loses next
to nothing; where the store is slow or away they wait here, and `room` makes new lines wait for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from proxy.batch_server.kit import Kit
from proxy.batch_server.model import BatchLease, Progress, Recorded, TokenSums
from proxy.batch_server.result_lines import ResultLine
from proxy.core.usage import Usage

_MOST_BYTES = 1024 * 1024
"""Of one step; a single result may be larger, and is then a chunk of its own."""
_MOST_LINES = 1000
_MOST_PENDING_BYTES = 16 * 1024 * 1024
_MOST_PENDING_LINES = 2000


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one line. `outcome` is a word for the metrics."""

    number: int
    line: ResultLine
    outcome: str
    usage: Usage | None = None


class Recording:
    """Writes results under a lease. `run` until cancelled; what the store raises ends it."""

    def __init__(
        self,
        kit: Kit,
        lease: BatchLease,
        progress: Progress,
        recorded: Callable[[dict[str, int]], None],
    ) -> None:
        self._kit = kit
        self._lease = lease
        self._recorded = recorded
        self._pending: deque[Result] = deque()
        self._arrived = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._pending_bytes = 0
        self.progress = progress

    def add(self, result: Result) -> None:
        """Have a result written soon."""
        self._pending.append(result)
        self._pending_bytes += len(result.line.text)
        self._settled.clear()
        self._arrived.set()
        if self._pending_bytes > _MOST_PENDING_BYTES or len(self._pending) > _MOST_PENDING_LINES:
            self._has_room.clear()

    async def room(self) -> None:
        """Wait until results do not pile up here."""
        await self._has_room.wait()

    async def settled(self) -> None:
        """Wait until all that was added is durable."""
        await self._settled.wait()

    async def run(self) -> None:
        """Write results as they come. Raises `LeaseLost`."""
        while True:
            await self._arrived.wait()
            taken = self._take()
            step = self._step(taken)
            await self._kit.insist(lambda: self._kit.store.record(self._lease, step))  # noqa: B023 - awaited here
            self.progress = step.progress
            outcomes: dict[str, int] = {}
            for result in taken:
                self._pending_bytes -= len(result.line.text)
                outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1
            self._recorded(outcomes)
            if self._pending_bytes <= _MOST_PENDING_BYTES and len(self._pending) <= _MOST_PENDING_LINES:
                self._has_room.set()
            if not self._pending:
                self._arrived.clear()
                self._settled.set()

    def _take(self) -> list[Result]:
        taken: list[Result] = []
        size = 0
        while self._pending and len(taken) < _MOST_LINES:
            size += len(self._pending[0].line.text)
            if taken and size > _MOST_BYTES:
                break
            taken.append(self._pending.popleft())
        return taken

    def _step(self, results: list[Result]) -> Recorded:
        before = self.progress
        output = b"".join(each.line.text for each in results if each.line.is_completed)
        errors = b"".join(each.line.text for each in results if not each.line.is_completed)
        completed = sum(each.line.is_completed for each in results)
        tokens = before.tokens
        for each in results:
            if each.usage is not None:
                tokens = _with_usage(tokens, each.usage)
        progress = replace(
            before,
            completed=before.completed + completed,
            failed=before.failed + len(results) - completed,
            tokens=tokens,
            output_bytes=before.output_bytes + len(output),
            output_chunks=before.output_chunks + bool(output),
            error_bytes=before.error_bytes + len(errors),
            error_chunks=before.error_chunks + bool(errors),
        )
        return Recorded(tuple(each.number for each in results), output, errors, progress)


def _with_usage(sums: TokenSums, usage: Usage) -> TokenSums:
    return TokenSums(
        input=sums.input + (usage.input_tokens or 0),
        cached=sums.cached + (usage.cached_tokens or 0),
        output=sums.output + (usage.output_tokens or 0),
        reasoning=sums.reasoning + (usage.reasoning_tokens or 0),
    )
