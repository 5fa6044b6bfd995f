"""The provider's batches: who sees them, how many are kept, what they take of a caller's quota.

It owns the records and their persistence. Of finished batches the oldest are forgotten; unfinished ones
never are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence

from proxy.core.clock import Clock
from proxy.sim.deferred.batch import Batch, Status
from proxy.sim.deferred.rules import BatchRules
from proxy.sim.errors import ApiError, retry_after_headers
from proxy.sim.journal import Journal

_MAX_BATCHES = 5_000
_MAX_BODIES = 100_000
_MAX_CALLERS = 10_000
_HOUR_SECONDS = 3600.0
_BATCH, _CONTENT, _ATTEMPT = "batch", "batch content", "attempt"


class BatchBook:
    """The batches of one provider. A caller never sees another's: they do not exist for it."""

    def __init__(self, rules: BatchRules, clock: Clock, journal: Journal) -> None:
        self._rules = rules
        self._clock = clock
        self._journal = journal
        self._batches: OrderedDict[str, Batch] = OrderedDict()
        self._unfinished: dict[str, Batch] = {}
        self._attempts: OrderedDict[str, int] = OrderedDict()
        self._creations: OrderedDict[str, deque[float]] = OrderedDict()
        self.created = 0
        self._restore()

    def _restore(self) -> None:
        contents = {entry.name: entry.raw for entry in self._journal.all_of(_CONTENT)}
        for entry in self._journal.all_of(_BATCH):
            batch = Batch.from_kept(entry.value, contents.get(entry.name, b""))
            self._batches[batch.id] = batch
            self.created = max(self.created, batch.number)
            if not batch.status.is_final:
                self._unfinished[batch.id] = batch
        for batch in self._unfinished.values():
            batch.results += [entry.raw for entry in self._journal.all_of(_results_of(batch))]
            batch.failures += [entry.raw for entry in self._journal.all_of(_failures_of(batch))]
        for entry in self._journal.all_of(_ATTEMPT):
            self._attempts[entry.name] = entry.value["count"]

    def admit(self, caller: str) -> None:
        """Count a creation. Raises ApiError (429) where a caller creates too many, or all have too many."""
        now = self._clock.monotonic()
        times = self._creations.setdefault(caller, deque())
        if len(self._creations) > _MAX_CALLERS:
            self._creations.popitem(last=False)
        while times and times[0] <= now - _HOUR_SECONDS:
            times.popleft()
        limit = self._rules.creations_per_hour
        if limit and len(times) >= limit:
            message = f"Rate limit reached on batch creations per hour: Limit {limit}. (simulated)"
            wait = times[0] + _HOUR_SECONDS - now
            raise ApiError(429, message, "requests", None, "rate_limit_exceeded", retry_after_headers(wait))
        if len(self._unfinished) >= _MAX_BATCHES:
            raise ApiError(429, "Too many batches. (simulated)", "requests", None, "too_many_batches")
        times.append(now)

    def add(self, batch: Batch) -> None:
        """Keep a new batch."""
        self.created = max(self.created, batch.number)
        self._batches[batch.id] = batch
        self._unfinished[batch.id] = batch
        self._journal.put(_CONTENT, batch.id, {}, batch.content)
        self.save(batch)
        if len(self._batches) > _MAX_BATCHES:
            oldest = next(found for found in self._batches.values() if found.status.is_final)
            del self._batches[oldest.id]
            self._journal.drop(_BATCH, oldest.id)

    def find(self, caller: str, batch_id: str) -> Batch:
        """Return a caller's batch. Raises ApiError (404) if there is none by that id."""
        batch = self._batches.get(batch_id)
        if batch is None or batch.caller != caller:
            raise ApiError(404, f"No batch found with id '{batch_id}'.")
        return batch

    def of(self, caller: str) -> Sequence[Batch]:
        """Return a caller's batches, newest first."""
        return [batch for batch in reversed(self._batches.values()) if batch.caller == caller]

    def unfinished(self) -> Sequence[Batch]:
        """Return the batches of all callers that have not come to an end, oldest first."""
        return tuple(self._unfinished.values())

    def enqueued_tokens(self, caller: str, model: str) -> int:
        """Return what a caller's unfinished batches for a model take of its quota."""
        return sum(
            batch.enqueued_tokens
            for batch in self._unfinished.values()
            if (batch.caller, batch.model) == (caller, model)
        )

    def attempt(self, body_hash: str) -> int:
        """Count another attempt at a body, in whichever batch; return its number, from one."""
        count = self._attempts.pop(body_hash, 0) + 1
        self._attempts[body_hash] = count
        if len(self._attempts) > _MAX_BODIES:
            self._attempts.popitem(last=False)
        self._journal.put(_ATTEMPT, body_hash, {"count": count})
        return count

    def note_lines(
        self, batch: Batch, number: int, results: Sequence[bytes], failures: Sequence[bytes]
    ) -> None:
        """Keep what became of line `number` (from zero); `save` makes it count."""
        batch.results += results
        batch.failures += failures
        for kind, lines in ((_results_of(batch), results), (_failures_of(batch), failures)):
            for copy, raw in enumerate(lines):
                self._journal.put(kind, f"{number} {copy}", {}, raw)

    def move(self, batch: Batch, status: Status) -> None:
        """Change a batch's status and keep that; a finished one lets go of its lines."""
        batch.move_to(status, self._clock.wall())
        if status.is_final:
            self._unfinished.pop(batch.id, None)
            self._journal.drop(_CONTENT, batch.id)
            self._journal.drop_all(_results_of(batch))
            self._journal.drop_all(_failures_of(batch))
        self.save(batch)

    def abandon(self) -> None:
        """End all unfinished batches as they are, without a trace."""
        for batch in self._unfinished.values():
            batch.status = Status.CANCELLED
        self._unfinished.clear()

    def save(self, batch: Batch) -> None:
        """Keep a batch as it is now."""
        if self._journal.is_on:
            self._journal.put(_BATCH, batch.id, batch.as_kept())

    def statuses(self) -> Counter[str]:
        """Return how many batches stand where."""
        return Counter(batch.status.value for batch in self._batches.values())


def _results_of(batch: Batch) -> str:
    return f"results of {batch.id}"


def _failures_of(batch: Batch) -> str:
    return f"failures of {batch.id}"
