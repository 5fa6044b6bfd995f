"""What the simulated provider counts: executions, requests, tokens and callers that left.

It owns the figures behind `/sim/stats`. An execution is counted when work on a valid, admitted request
begins, so that "exactly once" can be checked from outside; refused requests are counted by status only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from proxy.sim.work import Bill

_MAX_BODIES = 100_000
KINDS = ("input", "cached", "cache_write", "output", "reasoning")


class Stats:
    """Counters of one provider since its start or its last reset."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.disconnects: Counter[str] = Counter({"before_first_byte": 0, "midway": 0})
        self._executions: OrderedDict[str, int] = OrderedDict()
        self._tokens: dict[str, Counter[str]] = {}

    def executed(self, body_hash: str) -> None:
        """Count one execution of a body (sha256 of its bytes); of very many, the oldest are forgotten."""
        self._executions[body_hash] = self._executions.pop(body_hash, 0) + 1
        if len(self._executions) > _MAX_BODIES:
            self._executions.popitem(last=False)

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
        return {
            "requests": dict(self.requests),
            "statuses": dict(self.statuses),
            "executions": dict(self._executions),
            "executions_total": sum(self._executions.values()),
            "tokens": {tier: {kind: counts[kind] for kind in KINDS} for tier, counts in self._tokens.items()},
            "disconnects": dict(self.disconnects),
            "faults": dict(self.faults),
        }
