"""How many lines run at once: what the upstream takes, and what interactive traffic bears."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch_server.courtesy import Effect
from proxy.batch_server.limit import FLOOR, Limit, LineEnd
from tests.support.shared_server import Outcome, SharedServer

MOST = 8


def run_lines(limit: Limit, count: int, now: float = 0.0, seconds: float = 1.0, **end: Any) -> float:
    """Keep lines in flight, all of the same length, until `count` have ended; return when."""
    flying: list[float] = []
    while count:
        wait = limit.may_start(now, len(flying), 0)
        if wait is None:
            flying.append(now)
            limit.line_started(now, len(flying))
            continue
        assert wait > 0
        if not flying:
            now += wait
            continue
        now = max(now, flying.pop(0) + seconds)
        limit.line_ended(now, seconds, end.get("end", LineEnd.ANSWERED), retry_after_seconds=end.get("retry"))
        count -= 1
    return now


def test_it_begins_with_one_line() -> None:
    limit = Limit(MOST)
    assert limit.may_start(0.0, 0, 0) is None
    limit.line_started(0.0, 1)
    wait = limit.may_start(0.0, 1, 0)
    assert wait is not None
    assert wait > 0


def test_it_grows_to_the_most_where_nothing_speaks_against_it() -> None:
    limit = Limit(MOST)
    run_lines(limit, 400)
    assert limit.value == MOST


def test_it_grows_by_one_a_line_latency_at_most() -> None:
    limit = Limit(100)
    ended = run_lines(limit, 200)
    assert 1 < limit.value <= 1 + ended


def test_it_does_not_grow_unless_it_is_what_holds_lines_back() -> None:
    limit = Limit(MOST)
    for now in range(100):
        assert limit.may_start(float(now), 0, 0) is None
        limit.line_started(float(now), 1)
        limit.line_ended(now + 0.9, 0.9, LineEnd.ANSWERED)
    assert limit.value == 1


@pytest.mark.parametrize("end", [LineEnd.BUSY, LineEnd.NO_ANSWER])
def test_refusals_halve_it_once_a_latency(end: LineEnd) -> None:
    limit = Limit(MOST)
    now = run_lines(limit, 400)
    for _ in range(5):
        limit.line_ended(now, 0.1, end)
    assert limit.value == MOST / 2
    limit.line_ended(now + 1.0, 0.1, end)
    assert limit.value == MOST / 4


def test_a_failure_of_the_lines_own_says_nothing() -> None:
    limit = Limit(MOST)
    now = run_lines(limit, 400)
    limit.line_ended(now, 1.0, LineEnd.OTHER)
    assert limit.value == MOST
    assert limit.may_start(now, 0, 0) is None


def test_nothing_but_429_brings_it_down_to_one_line_and_answers_up_again() -> None:
    limit = Limit(MOST)
    now = run_lines(limit, 60, end=LineEnd.BUSY, seconds=0.1)
    assert limit.value == 1
    run_lines(limit, 600, now=now, seconds=0.1)
    assert limit.value == MOST


def test_nothing_but_429_beside_callers_brings_it_down_to_the_floor() -> None:
    limit = Limit(MOST)
    for second in range(20):
        limit.interactive_started(second)
        limit.interactive_ended(second + 0.1, "kind", 0.1, was_mixed=False)
        limit.line_ended(second + 0.5, 0.1, LineEnd.BUSY)
    assert limit.value == FLOOR


def test_an_outage_is_over_with_the_first_answer() -> None:
    limit = Limit(MOST)
    now = run_lines(limit, 20, end=LineEnd.NO_ANSWER, seconds=20.0)
    first = run_lines(limit, 1, now=now, seconds=20.0)
    # As many lines one after the other as if nothing had been: no pause is left of the outage.
    assert run_lines(limit, 5, now=first, seconds=20.0) - first <= 5 * 20.0


def test_with_unknown_traffic_about_lines_are_rare() -> None:
    limit = Limit(MOST)
    limit.interactive_started(100.0)
    limit.interactive_ended(101.0, "kind", 1.0, was_mixed=False)
    assert limit.effect is Effect.UNKNOWN
    limit.line_started(101.0, 1)
    limit.line_ended(102.0, 1.0, LineEnd.ANSWERED)
    assert limit.value == pytest.approx(0.1)
    assert limit.may_start(102.0, 0, 0) == pytest.approx(9.0)
    assert limit.may_start(120.0, 0, 0) is None


def test_refusals_are_answered_with_longer_and_longer_pauses() -> None:
    limit = Limit(MOST)
    limit.line_ended(100.0, 0.1, LineEnd.BUSY)
    first = limit.may_start(100.0, 1, 0)
    limit.line_ended(200.0, 0.1, LineEnd.BUSY)
    second = limit.may_start(200.0, 1, 0)
    assert (first, second) == (0.5, 1.0)


def test_retry_after_is_obeyed() -> None:
    limit = Limit(MOST)
    limit.line_ended(100.0, 0.1, LineEnd.BUSY, retry_after_seconds=30.0)
    assert limit.may_start(110.0, 0, 0) == 20.0
    limit.paused_until(150.0)
    assert limit.may_start(131.0, 0, 0) == 19.0


def test_a_retry_after_of_weeks_is_not() -> None:
    limit = Limit(MOST)
    limit.line_ended(100.0, 0.1, LineEnd.BUSY, retry_after_seconds=1e9)
    assert limit.may_start(100.0, 0, 0) == 600.0


def test_after_a_refusal_alone_nothing_but_its_own_pause_is_waited_for() -> None:
    limit = Limit(MOST)
    limit.line_ended(100.0, 2.0, LineEnd.BUSY, retry_after_seconds=0.0)
    assert limit.value == 1
    assert limit.may_start(100.0, 0, 0) is None


def test_a_line_that_took_hours_does_not_stop_work_for_days() -> None:
    limit = Limit(MOST)
    for number in range(10):
        limit.line_ended(1e5 * number, 7200.0, LineEnd.NO_ANSWER)
    wait = limit.may_start(9e5, 0, 0)
    assert wait is not None
    assert wait <= 900.0


events = st.lists(
    st.tuples(
        st.sampled_from(["ask", "start", "interactive", "mixed", *LineEnd]),
        st.floats(0.0, 50.0),
        st.floats(0.0, 100.0),
    ),
    max_size=200,
)


@given(events, st.integers(1, 64))
def test_whatever_happens_it_stays_within_its_bounds(told: list[tuple[Any, float, float]], most: int) -> None:
    limit = Limit(most)
    now, in_flight = 0.0, 0
    for kind, step, seconds in told:
        now += step
        if isinstance(kind, LineEnd):
            limit.line_ended(now, seconds, kind, int(seconds), None if step < 25 else seconds)
            in_flight = max(0, in_flight - 1)
        elif kind == "ask":
            wait = limit.may_start(now, in_flight, int(seconds) % 3)
            assert wait is None or 0 < wait <= 900.0
        elif kind == "start":
            in_flight = min(most, in_flight + 1)
            limit.line_started(now, in_flight)
        else:
            limit.interactive_started(now)
            limit.interactive_ended(now, "kind", seconds, was_mixed=kind == "mixed")
        assert FLOOR <= limit.value <= most


@given(events, st.integers(1, 64))
def test_whatever_happened_work_goes_on(told: list[tuple[Any, float, float]], most: int) -> None:
    limit = Limit(most)
    now = 0.0
    for kind, step, seconds in told:
        now += step
        if isinstance(kind, LineEnd):
            limit.line_ended(now, seconds, kind)
        else:
            limit.interactive_started(now)
            limit.interactive_ended(now, "kind", seconds, was_mixed=kind == "mixed")
    asked_until = now + 3600
    # Interactive requests are in flight all the time.
    while (wait := limit.may_start(now, 0, 1)) is not None:
        now += wait
        assert now < asked_until


# ---- a server in simulated time


def test_a_server_of_its_own_is_kept_busy() -> None:
    limit = Limit(32)
    outcome = SharedServer(limit, slots=1.0, interactive_until=0.0).run(200)
    assert len(outcome.done_at) * 0.5 > 0.95 * 200


def test_it_finds_how_many_lines_a_server_runs_side_by_side() -> None:
    few, many = Limit(32), Limit(32)
    outcome = SharedServer(few, slots=4.0, interactive_until=0.0).run(200)
    assert len(outcome.done_at) * 0.5 > 0.9 * 4 * 200
    assert outcome.most_in_flight <= 16
    SharedServer(many, slots=64.0, interactive_until=0.0).run(150)
    assert many.value == 32


@pytest.mark.parametrize(
    ("traffic", "most"),
    [
        ({"gap_seconds": 1.0}, 1.1),
        ({"gap_seconds": 1.0, "is_regular": True}, 1.1),
        ({"gap_seconds": 1.0, "is_regular": True, "line_seconds": 0.2}, 1.1),
        ({"gap_seconds": 1.0, "slots": 4.0}, 1.1),
        # Lines as long as the gaps: each meets a request, and it takes some to find that out.
        ({"gap_seconds": 3.0, "line_seconds": 3.0}, 1.25),
    ],
)
def test_interactive_answers_hardly_slow_down(traffic: dict[str, Any], most: float) -> None:
    alone, shared = Outcome(), Outcome()
    for seed in (1, 2):
        for told, limit in ((alone, None), (shared, Limit(32))):
            ran = SharedServer(limit, seed=seed, **traffic).run(700)
            told.latencies += ran.latencies
            told.done_at += ran.done_at
    assert len(shared.latencies) == pytest.approx(len(alone.latencies), abs=6)
    assert shared.p95() < most * alone.p95()
    # The floor is a share of time; beside others a line takes longer for the same work.
    assert len(shared.done_at) * traffic.get("line_seconds", 0.5) > FLOOR / 4 * 1400


@pytest.mark.parametrize("seed", range(5))
def test_nor_do_they_while_it_is_found_out(seed: int) -> None:
    traffic: dict[str, Any] = {"is_regular": True, "line_seconds": 0.2, "seed": seed}
    alone, shared = SharedServer(None, **traffic).run(100), SharedServer(Limit(32), **traffic).run(100)
    assert shared.p95() < 1.1 * alone.p95()


def test_lines_between_regular_requests_do_more_than_the_floor() -> None:
    shared = SharedServer(Limit(32), is_regular=True, line_seconds=0.2).run(1000)
    assert len(shared.done_at) * 0.2 > 0.1 * 1000


def test_where_lines_harm_nobody_interactive_traffic_does_not_hold_them_back() -> None:
    limit = Limit(32)
    shared = SharedServer(limit, slots=64.0, gap_seconds=0.3).run(300)
    assert limit.effect is Effect.HARMLESS
    assert shared.most_in_flight == 32


def test_lines_run_again_once_the_traffic_is_over() -> None:
    shared = SharedServer(Limit(32), interactive_until=300.0).run(500)
    late = [time for time in shared.done_at if time > 1400]
    assert len(late) * 0.5 > 0.9 * 100


@pytest.mark.parametrize(("beside", "effect"), [(0.0005, Effect.HARMLESS), (0.0009, Effect.HARMFUL)])
def test_what_lines_do_to_the_pace_of_a_quick_stream_counts_over_a_whole_answer(
    beside: float, effect: Effect
) -> None:
    limit = Limit(MOST)
    for number in range(600):
        is_mixed = number % 2 == 1
        limit.interactive_started(number)
        token_seconds = beside if is_mixed else 0.0005
        limit.interactive_ended(number + 0.1, "kind", 0.01, is_mixed, token_seconds)
    assert limit.effect is effect
