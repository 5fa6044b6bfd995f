"""When lines start beside interactive requests, and that these hardly feel it: also in simulated time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch_server.capacity import LineEnd
from proxy.batch_server.limit import Encounter, Limit, Met
from proxy.core.upstream import ServedBatchApi
from tests.support.shared_server import Outcome, SharedServer

DEFAULTS = ServedBatchApi()
GIVING_WAY = ServedBatchApi(give_way=True)


def visited(limit: Limit, now: float, lines: int = 0, seconds: float | None = None) -> Met:
    """Have an interactive request come and go."""
    encounter = limit.interactive_started(now, lines)
    return limit.interactive_ended(now + 0.1, encounter, "kind", seconds)


def test_without_interactive_traffic_only_the_capacity_counts() -> None:
    limit = Limit(DEFAULTS)
    assert limit.lines(0.0) == 1
    assert limit.may_start(0.0, 0) is None
    assert limit.may_start(0.0, 1) == 1.0


def test_beside_it_nothing_is_certain_at_first() -> None:
    limit = Limit(DEFAULTS)
    limit.interactive_started(0.0, 0)
    assert limit.lines(0.0) == 0


def test_a_line_may_start_while_the_budget_bears_it() -> None:
    limit = Limit(DEFAULTS)
    visited(limit, 0.0)
    assert limit.may_start(1.0, 0) is None
    limit.line_started(1.0, 1)
    assert visited(limit, 1.0, lines=1) is Met.UNPROVEN
    assert limit.may_start(2.0, 0) is not None
    for number in range(98):
        assert visited(limit, 2.0 + number) is Met.NONE
        assert limit.may_start(3.0 + number, 0) is not None
    visited(limit, 100.0)
    visited(limit, 101.0)
    assert limit.may_start(102.0, 0) is None


def test_whom_a_line_finds_has_met_it() -> None:
    limit = Limit(DEFAULTS)
    visited(limit, 0.0)
    encounter = limit.interactive_started(1.0, 0)
    assert limit.may_start(1.0, 0) is None
    limit.line_started(1.0, 1)
    assert limit.interactive_ended(2.0, encounter, "kind", 1.0) is Met.UNPROVEN


def test_refusals_make_lines_pause_whatever_else() -> None:
    limit = Limit(GIVING_WAY)
    limit.line_ended(0.0, 0.1, LineEnd.BUSY, retry_after_seconds=30.0)
    assert limit.may_start(10.0, 0) == 20.0


def test_lines_that_give_way_start_whenever_no_request_is_in_flight() -> None:
    limit = Limit(GIVING_WAY)
    for number in range(200):
        now = 2.0 * number
        assert limit.may_start(now, 0) is None
        limit.line_started(now, 1)
        encounter = limit.interactive_started(now + 1.0, 1)
        # One in a hundred meets it, so that something is learnt from that.
        assert encounter.cut == (0 if encounter.lines else 1)
        limit.interactive_ended(now + 1.1, encounter, "kind", 0.1)


def test_a_protected_line_is_not_cut_off() -> None:
    limit = Limit(GIVING_WAY)
    visited(limit, 0.0, lines=1)
    assert limit.interactive_started(1.0, 3, protected=2).cut == 1


def test_nor_does_it_start_like_those_that_give_way() -> None:
    limit = Limit(GIVING_WAY)
    visited(limit, 0.0, lines=1)
    assert limit.may_start(1.0, 0) is None
    assert limit.may_start(1.0, 0, is_protected=True) is not None


def test_without_giving_way_nothing_is_cut_off() -> None:
    limit = Limit(DEFAULTS)
    for number in range(10):
        assert limit.interactive_started(number, 5).cut == 0


def test_another_policy_is_followed_at_once() -> None:
    limit = Limit(DEFAULTS)
    limit.change(ServedBatchApi(may_meet=1.0))
    for number in range(100):
        assert limit.may_start(number, 0) is None
        limit.line_started(number, 1)
        visited(limit, number + 0.5, lines=1)
    limit.change(GIVING_WAY)
    assert [limit.interactive_started(1000.0 + n, 1).cut for n in range(3)][-1] == 1


events = st.lists(
    st.tuples(
        st.sampled_from(["ask", "start", "come", "go", *LineEnd]), st.floats(0.0, 50.0), st.floats(0.0, 100.0)
    ),
    max_size=200,
)


def played(limit: Limit, told: Iterable[tuple[Any, float, float]], most: int) -> float:
    """Have all that happen; when that is over."""
    now, lines = 0.0, 0
    inside: list[Encounter] = []
    for kind, step, seconds in told:
        now += step
        if isinstance(kind, LineEnd):
            limit.line_ended(now, seconds, kind, int(seconds), None if step < 25 else seconds)
            lines = max(0, lines - 1)
        elif kind == "ask":
            wait = limit.may_start(now, lines)
            assert wait is None or 0 < wait <= 600.0
        elif kind == "start":
            lines = min(most, lines + 1)
            limit.line_started(now, lines)
        elif kind == "come":
            inside.append(limit.interactive_started(now, lines))
            assert 0 <= inside[-1].cut <= lines
            lines -= inside[-1].cut
        elif inside:
            limit.interactive_ended(now, inside.pop(), "kind", seconds or None)
        assert 0 <= limit.lines(now) <= most
    for encounter in inside:
        limit.interactive_ended(now, encounter, "kind", None)
    return now


@given(events, st.integers(1, 64), st.booleans())
def test_whatever_happened_work_goes_on(told: list[Any], most: int, give_way: bool) -> None:
    limit = Limit(ServedBatchApi(most, may_meet=0.1, give_way=give_way))
    now = played(limit, told, most)
    # A tenth of them pays for a hundred that one line meets; before that all debts, and those in flight.
    asked_until = now + 10.0 * (100 + 100 + 3 + 200) + 700.0
    # Interactive requests follow each other without a gap.
    encounter = limit.interactive_started(now, 0)
    while limit.may_start(now, 0) is not None:
        now += 1.0
        after = limit.interactive_started(now, 0)
        limit.interactive_ended(now, encounter, "kind", 1.0)
        encounter = after
        assert now < asked_until


# ---- a server in simulated time


def test_a_server_of_its_own_is_kept_busy() -> None:
    outcome = SharedServer(Limit(DEFAULTS), slots=1.0, interactive_until=0.0).run(200)
    assert len(outcome.done_at) * 0.5 > 0.95 * 200


def test_it_finds_how_many_lines_a_server_runs_side_by_side() -> None:
    few, many = Limit(DEFAULTS), Limit(DEFAULTS)
    outcome = SharedServer(few, slots=4.0, interactive_until=0.0).run(200)
    assert len(outcome.done_at) * 0.5 > 0.9 * 4 * 200
    assert outcome.most_in_flight <= 16
    SharedServer(many, slots=64.0, interactive_until=0.0).run(150)
    assert many.lines(1150.0) == 32


def beside(served: ServedBatchApi, seconds: float, **traffic: Any) -> tuple[Outcome, Outcome]:
    """Have the same traffic alone and beside lines, twice over."""
    alone, shared = Outcome(), Outcome()
    for seed in (1, 2):
        for told, limit in ((alone, None), (shared, Limit(served))):
            ran = SharedServer(limit, seed=seed, **traffic).run(seconds)
            told.latencies += ran.latencies
            told.met += ran.met
            told.done_at += ran.done_at
    return alone, shared


TRAFFIC = [
    {"gap_seconds": 1.0},
    {"gap_seconds": 1.0, "is_regular": True},
    {"gap_seconds": 1.0, "is_regular": True, "line_seconds": 0.2},
    {"gap_seconds": 1.0, "slots": 2.0},
    {"gap_seconds": 1.0, "slots": 4.0},
    {"gap_seconds": 0.3, "slots": 8.0},
    {"gap_seconds": 1.0, "line_seconds": 0.1},
    {"gap_seconds": 3.0, "line_seconds": 3.0},
]


@pytest.mark.parametrize("served", [DEFAULTS, GIVING_WAY], ids=["defaults", "giving way"])
@pytest.mark.parametrize("traffic", TRAFFIC, ids=str)
def test_from_the_first_on_interactive_answers_hardly_slow_down(
    traffic: dict[str, Any], served: ServedBatchApi
) -> None:
    alone, shared = beside(served, 800 * traffic["gap_seconds"], **traffic)
    assert len(shared.latencies) == pytest.approx(len(alone.latencies), abs=6)
    assert shared.p95() < 1.1 * alone.p95()
    assert len(shared.done_at) > 3


@pytest.mark.parametrize(
    ("traffic", "share"), [({"gap_seconds": 1.0}, 0.4), ({"gap_seconds": 10.0, "line_seconds": 2.0}, 0.7)]
)
def test_lines_that_give_way_use_the_gaps(traffic: dict[str, Any], share: float) -> None:
    shared = SharedServer(Limit(GIVING_WAY), **traffic).run(2000)
    free = 1 - 0.4 / traffic["gap_seconds"]
    assert len(shared.done_at) * traffic.get("line_seconds", 0.5) > share * free * 2000


def test_a_line_that_no_gap_is_long_enough_for_gets_done_all_the_same() -> None:
    shared = SharedServer(Limit(GIVING_WAY), gap_seconds=0.5, is_regular=True, line_seconds=3.0).run(2000)
    assert shared.done_at


def test_lines_between_regular_requests_do_more_than_those_between_random_ones() -> None:
    regular, at_random = (
        SharedServer(Limit(DEFAULTS), is_regular=is_regular, gap_seconds=2.0, line_seconds=0.2).run(2000)
        for is_regular in (True, False)
    )
    assert len(regular.done_at) > 5 * len(at_random.done_at)


def test_where_lines_harm_nobody_interactive_traffic_does_not_hold_them_back_for_long() -> None:
    limit = Limit(DEFAULTS)
    shared = SharedServer(limit, slots=64.0, gap_seconds=0.3).run(1200)
    assert limit.lines(2200.0) == 32
    late = [time for time in shared.done_at if time > 2100]
    assert len(late) * 0.5 > 0.8 * 32 * 100


def test_lines_run_again_once_the_traffic_is_over() -> None:
    shared = SharedServer(Limit(DEFAULTS), interactive_until=300.0).run(500)
    late = [time for time in shared.done_at if time > 1400]
    assert len(late) * 0.5 > 0.9 * 100
