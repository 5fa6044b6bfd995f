from __future__ import annotations

from proxy.sim.stats import Stats
from proxy.sim.work import Bill


def test_kinds_of_tokens_exclude_each_other() -> None:
    stats = Stats()
    stats.billed(Bill(100, 20, 5, 40, 10))
    stats.billed(Bill(7, 1, tier="priority"))
    assert stats.snapshot()["tokens"] == {
        "default": {"input": 50, "cached": 40, "cache_write": 10, "output": 15, "reasoning": 5},
        "priority": {"input": 7, "cached": 0, "cache_write": 0, "output": 1, "reasoning": 0},
    }


def test_counts_executions_by_body() -> None:
    stats = Stats()
    for body_hash in ("a", "b", "a"):
        stats.executed(body_hash)
    found = stats.snapshot()
    assert found["executions"] == {"b": 1, "a": 2}
    assert found["executions_total"] == 3


def test_counts_executions_by_tier_and_lines_by_custom_id() -> None:
    stats = Stats()
    for body_hash, tier in (("a", "batch"), ("a", "default"), ("b", "batch"), ("a", "batch")):
        stats.executed(body_hash, tier)
    stats.line_executed("job-1")
    found = stats.snapshot()
    assert found["executions"] == {"b": 1, "a": 3}
    assert found["executions_by_tier"] == {"batch": {"b": 1, "a": 2}, "default": {"a": 1}}
    assert found["batch_lines"] == {"job-1": 1}
