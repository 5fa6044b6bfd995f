"""Who goes next under a limit: arrival order, urgency with age, and a bound on every wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.lanes.coalesce.pacing import Pacer, Terms

TWO = Terms(most_in_flight=2, max_wait_seconds=1.0)
PATIENT = Terms(most_in_flight=2, max_wait_seconds=1.0, yields=True)
URGENT = Terms(most_in_flight=2, max_wait_seconds=1.0, may_wait=False)


def full() -> Pacer[str]:
    pacer: Pacer[str] = Pacer()
    assert pacer.arrive("0", TWO, 0.0)
    assert pacer.arrive("1", TWO, 0.0)
    return pacer


def test_leaves_at_once_below_the_limit_and_waits_at_it() -> None:
    pacer = full()
    assert not pacer.arrive("a", TWO, 0.1)
    assert pacer.due_at == 1.1
    assert pacer.returned() == ["a"]
    assert pacer.in_flight == 2
    assert [pacer.due_at] == [None]


def test_goes_in_the_order_of_arrival() -> None:
    pacer = full()
    for number, name in enumerate("abc"):
        pacer.arrive(name, TWO, 0.1 * number)
    assert [*pacer.returned(), *pacer.returned(), *pacer.returned()] == ["a", "b", "c"]


def test_what_can_wait_yields_to_what_comes_a_little_later() -> None:
    pacer = full()
    pacer.arrive("late", PATIENT, 0.0)
    pacer.arrive("a", TWO, 0.4)
    assert pacer.returned() == ["a"]


def test_what_has_yielded_for_half_of_its_time_yields_no_more() -> None:
    pacer = full()
    pacer.arrive("late", PATIENT, 0.0)
    pacer.arrive("a", TWO, 0.6)
    assert pacer.returned() == ["late"]


def test_nobody_waits_longer_than_allowed_whatever_is_in_flight() -> None:
    pacer = full()
    pacer.arrive("a", TWO, 0.0)
    pacer.arrive("b", TWO, 0.5)
    assert pacer.expired(1.0) == ["a"]
    assert pacer.in_flight == 3
    assert pacer.returned() == [], "still at the limit"
    assert pacer.returned() == ["b"]


def test_who_may_not_wait_leaves_at_once_and_counts() -> None:
    pacer = full()
    assert pacer.arrive("now", URGENT, 0.0)
    assert pacer.in_flight == 3


def test_who_has_gone_is_not_sent() -> None:
    pacer = full()
    pacer.arrive("a", TWO, 0.0)
    pacer.arrive("b", TWO, 0.0)
    pacer.leave("a")
    assert pacer.returned() == ["b"]


def test_draining_lets_all_go_in_order_and_nothing_waits_afterwards() -> None:
    pacer = full()
    pacer.arrive("late", PATIENT, 0.0)
    pacer.arrive("a", TWO, 0.1)
    assert pacer.drain() == ["a", "late"]
    assert pacer.arrive("b", TWO, 0.2)
    for _ in range(5):
        pacer.returned()
    assert pacer.is_idle


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 0.2), st.booleans()), max_size=60))
def test_a_patient_request_is_never_overtaken_for_longer_than_half_its_time(
    steps: list[tuple[bool, float, bool]],
) -> None:
    pacer: Pacer[tuple[bool, float]] = Pacer()
    now, running = 0.0, 0
    for yields, pause, returns in steps:
        now += pause
        if pacer.arrive((yields, now), PATIENT if yields else TWO, now):
            running += 1
        left = pacer.returned() if returns and running else []
        if returns and running:
            running += len(left) - 1
        for was_patient, came_at in left:
            for other, other_came_at in [each.member for each in pacer._queue]:
                overtaken_seconds = came_at - other_came_at
                assert overtaken_seconds <= (0.5 if other and not was_patient else 0.0) + 1e-9
