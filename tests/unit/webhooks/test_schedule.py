from __future__ import annotations

from proxy.webhooks.schedule import DAY_SECONDS, delay_seconds, next_try, told_until


def tried_at(draw: float, until: float, took: float = 10.0) -> list[float]:
    """Return when an ending at 0 is told, if every try takes so long and fails."""
    now, times = 0.0, []
    due: float | None = 0.0
    while due is not None:
        now = due
        times.append(now)
        due = next_try(now + took, delay_seconds(len(times), draw), until)
    return times


def test_tries_come_at_once_then_after_seconds_minutes_and_hours_until_a_day_is_over() -> None:
    times = tried_at(0.0, DAY_SECONDS, took=0.0)
    assert times[:4] == [0.0, 5.0, 305.0, 2105.0]
    assert len(times) == 8
    assert 0.9 * DAY_SECONDS < times[-1] < DAY_SECONDS


def test_slow_receivers_and_jitter_change_little() -> None:
    for draw in (0.0, 0.5, 1.0):
        assert 8 <= len(tried_at(draw, DAY_SECONDS)) <= 9


def test_two_draws_are_two_delays_and_none_is_longer_than_the_full_one() -> None:
    assert delay_seconds(3, 1.0) < delay_seconds(3, 0.5) < delay_seconds(3, 0.0) == 1800.0


def test_a_receiver_that_says_when_is_heard_up_to_an_hour() -> None:
    assert delay_seconds(1, 0.0, 120.0) == 120.0
    assert delay_seconds(3, 0.0, 120.0) == 1800.0
    assert delay_seconds(1, 0.0, 1e9) == 3600.0


def test_what_is_deleted_sooner_is_told_no_longer() -> None:
    assert told_until(100.0, 1e9) == 100.0 + DAY_SECONDS
    assert told_until(100.0, 400.0) == 400.0
    assert len(tried_at(0.0, 400.0)) == 3
