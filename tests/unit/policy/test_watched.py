"""Counting that stops when nobody waits."""

from __future__ import annotations

import pytest

from proxy.core.decision import Abandoned, StepReport
from proxy.policy.watched import check_wanted, watched
from proxy.tokens.fixed import FixedCounter


def test_counts_until_nobody_waits() -> None:
    counter = FixedCounter()
    answers = iter([True, True, False, False])
    counting = watched(counter, lambda: next(answers))
    assert counting.count_text("abc", "m").tokens == counter.count_text("abc", "m").tokens
    assert counting.count_message(b'"abc"', "m").tokens == counter.count_message(b'"abc"', "m").tokens
    with pytest.raises(Abandoned):
        counting.count_message(b'"abc"', "m")
    with pytest.raises(Abandoned):
        counting.count_text("abc", "m")


def test_somebody_who_always_waits_costs_nothing() -> None:
    counter = FixedCounter()
    assert watched(counter, None) is counter
    check_wanted(None)


def test_leaving_is_no_failure_of_a_step() -> None:
    with pytest.raises(Abandoned):
        StepReport.of_failure("trim_history", Abandoned())
