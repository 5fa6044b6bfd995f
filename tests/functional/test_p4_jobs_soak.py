"""The short form of `make soak-jobs`: workers killed, the store restarted, the provider failing."""

from __future__ import annotations

import pytest

from tests.support.soak_jobs import Plan, soak


@pytest.mark.timeout(120)
def test_no_job_is_lost_and_none_is_answered_twice() -> None:
    report = soak(Plan(jobs=200, kill_every_seconds=2.0, restart_every_seconds=4.0, seconds=100.0))
    assert report.endings.total() == 200
    assert report.executions >= 200
