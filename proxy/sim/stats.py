"""What the simulated provider counts: executions, requests, tokens and callers that left.

It owns the figures behind `/sim/stats`. An execution is counted when work on a valid, admitted request
begins, so that "exactly once" can be checked from outside; refused requests are counted by status only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from proxy.sim.journal import Journal
from proxy.sim.work import Bill

_MAX_BODIES = 100_000
_COUNTERS = ("requests", "statuses", "faults", "disconnects")
_SMALL, _EXECUTIONS, _LINES = "counters", "execution", "batch line"
KINDS = ("input", "cached", "cache_write", "output", "reasoning")


class Stats:
    """Counters of one provider since its start or its last reset."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.requests: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.disconnects: Counter[str] = Counter(before_first_byte=0, midway=0)
        self._executions: OrderedDict[str, dict[str, int]] = OrderedDict()
        self._lines: OrderedDict[str, int] = OrderedDict()
        self._tokens: dict[str, Counter[str]] = {}
        self._journal = journal or Journal()
        self._restore()

    def executed(self, body_hash: str, tier: str = "default") -> None:
        """Count one execution of a body (sha256 of its bytes); of very many, the oldest are forgotten."""
        by_tier = self._executions.pop(body_hash, {})
        by_tier[tier] = by_tier.get(tier, 0) + 1
        self._executions[body_hash] = by_tier
        if len(self._executions) > _MAX_BODIES:
            self._executions.popitem(last=False)
        self._journal.put(_EXECUTIONS, body_hash, by_tier)

    def line_executed(self, custom_id: str) -> None:
        """Count one execution of a line of a batch; of very many, the oldest are forgotten."""
        count = self._lines.pop(custom_id, 0) + 1
        self._lines[custom_id] = count
        if len(self._lines) > _MAX_BODIES:
            self._lines.popitem(last=False)
        self._journal.put(_LINES, custom_id, {"count": count})

    def save(self) -> None:
        """Keep the small counters; executions are kept as they are counted."""
        if self._journal.is_on:
            counters = {name: dict(getattr(self, name)) for name in _COUNTERS}
            self._journal.put(_SMALL, "", {**counters, "tokens": self._tokens})

    def _restore(self) -> None:
        for entry in self._journal.all_of(_SMALL):
            for name in _COUNTERS:
                getattr(self, name).update(entry.value[name])
            self._tokens = {tier: Counter(counts) for tier, counts in entry.value["tokens"].items()}
        for entry in self._journal.all_of(_EXECUTIONS):
            self._executions[entry.name] = entry.value
        for entry in self._journal.all_of(_LINES):
            self._lines[entry.name] = entry.value["count"]

    def billed(self, bill: Bill) -> None:
        """Add what an answer, whole or broken off, is charged with."""
        tier = self._tokens.setdefault(bill.tier, Counter())
        tier["input"] += bill.input_tokens - bill.cached_tokens - bill.cache_write_tokens
        tier["cached"] += bill.cached_tokens
        tier["cache_write"] += bill.cache_write_tokens
        tier["output"] += bill.output_tokens - bill.reasoning_tokens
        tier["reasoning"] += bill.reasoning_tokens

    def snapshot(self) -> dict[str, object]:
        """Return all counters as JSON: token kinds exclude each other, so that they add up."""
        totals = {body_hash: sum(by_tier.values()) for body_hash, by_tier in self._executions.items()}
        return {
            "requests": dict(self.requests),
            "statuses": dict(self.statuses),
            "executions": totals,
            "executions_total": sum(totals.values()),
            "executions_by_tier": self._by_tier(),
            "batch_lines": dict(self._lines),
            "tokens": {tier: {kind: counts[kind] for kind in KINDS} for tier, counts in self._tokens.items()},
            "disconnects": dict(self.disconnects),
            "faults": dict(self.faults),
        }

    def _by_tier(self) -> dict[str, dict[str, int]]:
        tiers: dict[str, dict[str, int]] = {}
        for body_hash, by_tier in self._executions.items():
            for tier, count in by_tier.items():
                tiers.setdefault(tier, {})[body_hash] = count
        return tiers
