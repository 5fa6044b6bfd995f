"""How many lines at once an upstream takes: more while that helps, half as many after refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch_server.capacity import Capacity, LineEnd

MOST = 8


def run_lines(capacity: Capacity, count: int, now: float = 0.0, seconds: float = 1.0, **end: Any) -> float:
    """Keep as many lines in flight as may be, all of the same length, until `count` have ended; when."""
    flying: list[float] = []
    while count:
        if pause := capacity.pause_seconds(now):
            if not flying:
                now += pause
                continue
        elif len(flying) < capacity.lines:
            flying.append(now)
            capacity.line_started(now, len(flying))
            continue
        else:
            capacity.was_full(now)
        now = max(now, flying.pop(0) + seconds)
        how = end.get("end", LineEnd.ANSWERED)
        capacity.line_ended(now, seconds, how, retry_after_seconds=end.get("retry"))
        count -= 1
    return now


def test_it_begins_with_one_line() -> None:
    assert Capacity(MOST).lines == 1


def test_it_grows_to_the_most_where_nothing_speaks_against_it() -> None:
    capacity = Capacity(MOST)
    run_lines(capacity, 400)
    assert capacity.lines == MOST


def test_it_doubles_once_a_line_latency_at_most() -> None:
    capacity = Capacity(1000)
    ended = run_lines(capacity, 60)
    assert 1 < capacity.lines <= 2**ended


def test_after_a_refusal_it_grows_by_one() -> None:
    capacity = Capacity(1000)
    now = run_lines(capacity, 60)
    capacity.line_ended(now, 1.0, LineEnd.BUSY, retry_after_seconds=0.0)
    before = capacity.lines
    ended = run_lines(capacity, 30 * before, now)
    assert before < capacity.lines <= before + (ended - now)


def test_it_does_not_grow_unless_it_is_what_holds_lines_back() -> None:
    capacity = Capacity(MOST)
    for now in range(100):
        capacity.line_started(float(now), 1)
        capacity.line_ended(now + 0.9, 0.9, LineEnd.ANSWERED)
    assert capacity.lines == 1


@pytest.mark.parametrize("end", [LineEnd.BUSY, LineEnd.NO_ANSWER])
def test_refusals_halve_it_once_a_latency(end: LineEnd) -> None:
    capacity = Capacity(MOST)
    now = run_lines(capacity, 400)
    for _ in range(5):
        capacity.line_ended(now, 0.1, end)
    assert capacity.lines == MOST / 2
    capacity.line_ended(now + 1.0, 0.1, end)
    assert capacity.lines == MOST / 4


def test_a_failure_of_the_lines_own_says_nothing() -> None:
    capacity = Capacity(MOST)
    now = run_lines(capacity, 400)
    capacity.line_ended(now, 1.0, LineEnd.OTHER)
    assert (capacity.lines, capacity.pause_seconds(now)) == (MOST, 0.0)


def test_nothing_but_429_brings_it_down_to_one_line_and_answers_up_again() -> None:
    capacity = Capacity(MOST)
    now = run_lines(capacity, 60, end=LineEnd.BUSY, seconds=0.1)
    assert capacity.lines == 1
    run_lines(capacity, 600, now=now, seconds=0.1)
    assert capacity.lines == MOST


def test_an_outage_is_over_with_the_first_answer() -> None:
    capacity = Capacity(MOST)
    now = run_lines(capacity, 20, end=LineEnd.NO_ANSWER, seconds=20.0)
    first = run_lines(capacity, 1, now=now, seconds=20.0)
    assert run_lines(capacity, 5, now=first, seconds=20.0) - first <= 5 * 20.0


def test_refusals_are_answered_with_longer_and_longer_pauses() -> None:
    capacity = Capacity(MOST)
    pauses = []
    for now in (100.0, 200.0, 300.0):
        capacity.line_ended(now, 0.1, LineEnd.BUSY)
        pauses.append(capacity.pause_seconds(now))
    assert pauses == [0.5, 1.0, 2.0]
    for number in range(20):
        capacity.line_ended(1000.0 + 100.0 * number, 0.1, LineEnd.BUSY)
    assert capacity.pause_seconds(2900.0) == 60.0


def test_retry_after_is_obeyed() -> None:
    capacity = Capacity(MOST)
    capacity.line_ended(100.0, 0.1, LineEnd.BUSY, retry_after_seconds=30.0)
    assert capacity.pause_seconds(110.0) == 20.0
    capacity.pause_until(150.0)
    assert capacity.pause_seconds(131.0) == 19.0


def test_a_retry_after_of_weeks_is_not() -> None:
    capacity = Capacity(MOST)
    capacity.line_ended(100.0, 0.1, LineEnd.BUSY, retry_after_seconds=1e9)
    assert capacity.pause_seconds(100.0) == 600.0


def test_a_policy_that_wants_less_is_followed_at_once() -> None:
    capacity = Capacity(MOST)
    now = run_lines(capacity, 400)
    capacity.widen(3)
    assert capacity.lines == 3
    capacity.widen(6)
    run_lines(capacity, 400, now)
    assert capacity.lines == 6


events = st.lists(
    st.tuples(st.sampled_from(["full", "start", *LineEnd]), st.floats(0.0, 50.0), st.floats(0.0, 9000.0)),
    max_size=200,
)


@given(events, st.integers(1, 64))
def test_whatever_happens_it_stays_within_its_bounds(told: list[tuple[Any, float, float]], most: int) -> None:
    capacity = Capacity(most)
    now = 0.0
    for kind, step, seconds in told:
        now += step
        if isinstance(kind, LineEnd):
            capacity.line_ended(now, seconds, kind, int(seconds), None if step < 25 else seconds)
        elif kind == "full":
            capacity.was_full(now)
        else:
            capacity.line_started(now, 1 + int(seconds) % most)
        assert 1 <= capacity.lines <= most
        assert 0 <= capacity.pause_seconds(now) <= 600.0
