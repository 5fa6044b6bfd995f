"""Large moves are cut into steps that lose and double nothing."""

from __future__ import annotations

import pytest

from proxy.jobs.changes import JobChange
from proxy.jobs.stepping import STEP_JOBS, changes_in_steps, in_steps
from proxy.jobs.transitions import JobEvent


def ids(count: int, start: int = 0) -> tuple[str, ...]:
    return tuple(str(number) for number in range(start, start + count))


@pytest.mark.parametrize("count", [0, 1, STEP_JOBS, STEP_JOBS + 1, 3 * STEP_JOBS])
def test_ids_come_in_order_each_once(count: int) -> None:
    steps = list(in_steps(ids(count) + ids(count)))
    assert tuple(job_id for step in steps for job_id in step) == ids(count)
    assert len(steps) == max(1, -(-count // STEP_JOBS))


@pytest.mark.parametrize(
    "sizes", [[], [0], [1], [STEP_JOBS], [STEP_JOBS + 1], [400, 700, 0, 2500], [STEP_JOBS] * 2]
)
def test_changes_keep_their_jobs_and_the_last_step_is_known(sizes: list[int]) -> None:
    changes = [
        JobChange(JobEvent.EXPIRE, ids(size, start=sum(sizes[:number]))) for number, size in enumerate(sizes)
    ]
    steps = list(changes_in_steps(changes))
    assert [is_last for _, is_last in steps] == [False] * (len(steps) - 1) + [True]
    assert len(steps) == max(1, -(-sum(sizes) // STEP_JOBS))
    seen = [job_id for step, _ in steps for change in step for job_id in change.job_ids]
    assert tuple(seen) == ids(sum(sizes))
    assert all(sum(len(change.job_ids) for change in step) <= STEP_JOBS for step, _ in steps)


def test_two_changes_of_one_job_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="two changes"):
        list(changes_in_steps([JobChange(JobEvent.FAIL, ("a",)), JobChange(JobEvent.EXPIRE, ("a",))]))
