"""Who waits, who leaves with whom, and why: the window's arithmetic, without a clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.decision import ClosedBy
from proxy.lanes.coalesce.window import Batch, Bounds, Load, Window

WIDE = Bounds(max_items=100, max_tokens=10_000, max_bytes=10_000, max_wait_seconds=0.02)
ONE = Load(1, 10, 50)


def batches_of(batches: tuple[Batch[str], ...]) -> list[tuple[str, str]]:
    return [("".join(batch.members), batch.closed_by.value) for batch in batches]


def busy() -> Window[str]:
    """Return a window with one call in flight."""
    window: Window[str] = Window()
    window.arrive("0", ONE, WIDE, 0.0)
    return window


def test_leaves_at_once_when_nothing_is_in_flight() -> None:
    window: Window[str] = Window()
    assert batches_of(window.arrive("a", ONE, WIDE, 1.0)) == [("a", "idle")]
    assert window.due_at is None
    assert not window.is_idle


def test_waits_while_a_call_is_in_flight_and_leaves_with_the_others_when_it_returns() -> None:
    window = busy()
    assert window.arrive("a", ONE, WIDE, 1.0) == ()
    assert window.arrive("b", ONE, WIDE, 1.01) == ()
    assert window.due_at == 1.02
    assert batches_of(window.returned()) == [("ab", "returned")]
    assert window.in_flight == 1
    assert [window.due_at] == [None]
    assert window.returned() == ()
    assert window.is_idle


def test_leaves_after_max_wait_though_the_call_is_still_in_flight() -> None:
    window = busy()
    window.arrive("a", ONE, WIDE, 1.0)
    assert batches_of(window.expired()) == [("a", "max_wait")]
    assert window.in_flight == 2


def test_the_oldest_decides_when_all_leave_and_the_next_when_it_is_gone() -> None:
    window = busy()
    window.arrive("a", ONE, WIDE, 1.0)
    window.arrive("b", ONE, WIDE, 1.005)
    window.leave("a")
    assert window.due_at == 1.025
    window.leave("b")
    assert window.due_at is None
    assert batches_of(window.returned()) == []


def test_a_full_pool_leaves_without_the_one_that_does_not_fit() -> None:
    window = busy()
    four = Bounds(4, 10_000, 10_000, 0.02)
    window.arrive("a", Load(2, 1, 1), four, 1.0)
    window.arrive("b", Load(1, 1, 1), four, 1.0)
    assert batches_of(window.arrive("c", Load(2, 1, 1), four, 1.01)) == [("ab", "full")]
    assert window.due_at == 1.03
    assert batches_of(window.arrive("d", Load(2, 1, 1), four, 1.01)) == [("cd", "full")]


def test_tokens_and_bytes_bound_a_call_as_well() -> None:
    for bounds in (Bounds(100, 15, 10_000, 0.02), Bounds(100, 10_000, 70, 0.02)):
        window = busy()
        window.arrive("a", ONE, bounds, 1.0)
        assert batches_of(window.arrive("b", ONE, bounds, 1.0)) == [("a", "full")]


def test_what_is_larger_than_a_call_leaves_alone_and_disturbs_nobody() -> None:
    window = busy()
    window.arrive("a", ONE, WIDE, 1.0)
    assert batches_of(window.arrive("B", Load(101, 1, 1), WIDE, 1.0)) == [("B", "full")]
    assert batches_of(window.returned()) == [("a", "returned")]


def test_the_tightest_bounds_among_those_that_wait_hold_for_all() -> None:
    window = busy()
    window.arrive("a", ONE, WIDE, 1.0)
    tight = Bounds(2, 10_000, 10_000, 0.001)
    assert batches_of(window.arrive("b", ONE, tight, 1.0)) == [("ab", "full")]
    window.arrive("c", ONE, WIDE, 1.0)
    window.arrive("d", Load(1, 1, 1), Bounds(100, 10_000, 10_000, 0.001), 1.005)
    assert window.due_at == pytest.approx(1.006)


def test_with_no_wait_allowed_nothing_waits() -> None:
    window = busy()
    assert batches_of(window.arrive("a", ONE, Bounds(9, 999, 999, 0.0), 1.0)) == [("a", "max_wait")]


def test_draining_sends_what_waits_and_everything_that_comes_later() -> None:
    window = busy()
    window.arrive("a", ONE, WIDE, 1.0)
    assert batches_of(window.drain()) == [("a", "shutdown")]
    assert batches_of(window.arrive("b", ONE, WIDE, 1.0)) == [("b", "shutdown")]


loads = st.builds(Load, st.integers(1, 6), st.integers(1, 30), st.integers(1, 30))
bounds = st.builds(
    Bounds,
    st.integers(1, 5),
    st.integers(10, 60),
    st.integers(10, 60),
    st.sampled_from([0.0, 0.01, 0.02, 0.5]),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), loads, bounds),
        st.tuples(st.just("return")),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("tick"), st.floats(0.0, 0.03)),
    ),
    max_size=60,
)


def test_what_the_upstream_has_taught_closes_as_the_limit_and_not_as_full() -> None:
    taught = Bounds(4, 1000, 1000, 1.0, learnt_items=2)
    one = Load(1, 1, 1)
    window: Window[str] = Window()
    window.arrive("first", one, taught, 0.0)
    window.arrive("a", one, taught, 0.0)
    assert window.arrive("b", one, taught, 0.0) == (Batch(("a", "b"), ClosedBy.LIMIT),)
    assert window.arrive("c", Load(3, 1, 1), taught, 0.0) == (Batch(("c",), ClosedBy.LIMIT),)
    assert window.arrive("d", Load(5, 1, 1), taught, 0.0) == (Batch(("d",), ClosedBy.FULL),)
    assert window.arrive("e", Load(1, 1, 1001), taught, 0.0) == (Batch(("e",), ClosedBy.FULL),)
    window.arrive("f", one, taught, 0.0)
    assert window.arrive("g", Load(2, 1, 1), taught, 0.0)[0] == Batch(("f",), ClosedBy.LIMIT)


@given(events)
def test_everyone_leaves_once_in_order_within_bounds_and_time(steps: list[tuple[Any, ...]]) -> None:
    window: Window[int] = Window()
    now, number, in_flight = 0.0, 0, 0
    sent: list[int] = []
    waiting: dict[int, tuple[Load, Bounds, float]] = {}

    def take(batches: tuple[Batch[int], ...]) -> None:
        nonlocal in_flight
        for batch in batches:
            in_flight += 1
            mine = [waiting.pop(member) for member in batch.members]
            sent.extend(batch.members)
            if len(mine) > 1:
                for _, bound, due_at in mine:
                    total = Load(0, 0, 0)
                    for load, _, _ in mine:
                        total = total.plus(load)
                    assert bound.hold(total)
                    assert now <= due_at + 1e-9

    for step in steps:
        match step:
            case ("arrive", load, bound):
                waiting[number] = (load, bound, now + bound.max_wait_seconds)
                take(window.arrive(number, load, bound, now))
                number += 1
            case ("return",) if in_flight:
                in_flight -= 1
                take(window.returned())
            case ("leave", position) if len(waiting) > position:
                gone = list(waiting)[position]
                del waiting[gone]
                window.leave(gone)
            case ("tick", seconds):
                until = now + seconds
                while window.due_at is not None and window.due_at <= until:
                    now = max(now, window.due_at)
                    take(window.expired())
                now = until
            case _:
                pass
        due = [due_at for _, _, due_at in waiting.values()]
        assert window.due_at == (min(due) if due else None)
        assert window.in_flight == in_flight
        assert not waiting or in_flight, "nothing waits for nothing"
    take(window.drain())
    assert not waiting
    assert len(sent) == len(set(sent))
