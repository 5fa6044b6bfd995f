from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.jobs.attaching import attach_order, attached, is_wanted, left
from proxy.jobs.model import Delivery, Job, JobState, JobTier

HELD = Job(
    id="a" * 32,
    attach_key="k",
    owner="o",
    upstream="openai",
    endpoint="/v1/chat/completions",
    model="gpt-5-mini",
    account="acc",
    created=1000.0,
    deadline=1600.0,
    delivery=Delivery.HOLD,
    due=1540.0,
    purge_at=2000.0,
)
TICKET = replace(HELD, delivery=Delivery.TICKET, deadline=9000.0, due=8940.0)


def test_who_is_waited_for_by_the_fewest_is_taken_first_and_what_somebody_has_last() -> None:
    left_alone = replace(HELD, waiting=0)
    ended = replace(HELD, state=JobState.SUCCEEDED, ended_as=JobState.SUCCEEDED, waiting=2)
    had = replace(ended, state=JobState.DELIVERED, waiting=0)
    jobs = [had, ended, HELD, left_alone]
    assert sorted(jobs, key=lambda job: attach_order(job) or 0) == [left_alone, HELD, ended, had]


@pytest.mark.parametrize("ending", [JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED])
def test_what_ended_badly_is_never_taken(ending: JobState) -> None:
    ended = replace(HELD, state=ending, ended_as=ending)
    assert attach_order(ended) is None
    assert attach_order(replace(ended, state=JobState.DELIVERED)) is None


def test_a_promise_to_one_of_several_is_a_promise() -> None:
    for first, second in ((HELD, TICKET), (TICKET, HELD)):
        joined = attached(first, second, 1100.0, 100.0)
        assert joined.delivery is Delivery.TICKET
        assert (joined.deadline, joined.wanted_by, joined.waiting) == (9000.0, 1600.0, 2)
        assert joined.due == 1540.0
        assert joined.purge_at == 9100.0


def test_a_rescue_that_is_late_for_the_newcomer_begins_now_and_no_sooner_than_it_was_due() -> None:
    joined = attached(TICKET, replace(HELD, deadline=1110.0), 1100.0, 100.0)
    assert joined.due == 1100.0
    overdue = replace(TICKET, due=1050.0)
    assert attached(overdue, replace(HELD, deadline=1110.0), 1100.0, 100.0).due == 1050.0


def test_what_is_due_for_a_poll_is_polled_when_it_was() -> None:
    polled = replace(TICKET, tier=JobTier.BACKGROUND_2H, due=1130.0)
    assert attached(polled, HELD, 1100.0, 100.0).due == 1130.0


def test_what_has_ended_keeps_its_times() -> None:
    ended = replace(HELD, state=JobState.SUCCEEDED, ended_as=JobState.SUCCEEDED)
    joined = attached(ended, TICKET, 1700.0, 100.0)
    assert (joined.deadline, joined.purge_at, joined.wanted_by) == (1600.0, 2000.0, 1600.0)


def test_nobody_waits_once_all_have_left() -> None:
    joined = attached(HELD, HELD, 1100.0, 100.0)
    assert is_wanted(left(joined))
    assert not is_wanted(left(left(joined)))
    assert left(left(left(joined))).waiting == 0
