"""A share of the interactive requests may meet lines that may harm them, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.batch_server.budget import Budget


def test_one_may_be_met_at_first_and_then_a_share() -> None:
    budget = Budget(0.125)
    assert budget.bears(1.0)
    budget.began(price=1.0)
    assert not budget.bears(1.0)
    for _ in range(6):
        budget.ended(budget.began(price=0.0))
        assert not budget.bears(1.0)
    budget.ended(budget.began(price=0.0))
    assert budget.bears(1.0)


def test_whoever_is_in_flight_is_counted_once() -> None:
    budget = Budget(0.1)
    tokens = [budget.began(price=0.0) for _ in range(3)]
    assert budget.untouched == 3
    assert not budget.bears(1.0)
    budget.met(1.0)
    budget.met(1.0)
    assert budget.is_in_debt
    assert budget.untouched == 0
    assert not any(budget.ended(token) for token in tokens)
    assert budget.untouched == 0


def test_what_is_met_by_nothing_costs_nothing() -> None:
    budget = Budget(0.1)
    assert budget.ended(budget.began(price=0.0))
    budget.met(1.0)
    assert budget.bears(1.0)


def test_it_is_saved_up_until_all_in_flight_may_be_met() -> None:
    budget = Budget(0.01)
    for _ in range(50):
        budget.began(price=0.0)
    for _ in range(10_000):
        budget.ended(budget.began(price=0.0))
    assert budget.bears(1.0)
    budget.met(1.0)
    assert not budget.is_in_debt
    assert budget.untouched == 0


def test_what_hardly_harms_may_be_met_more_often() -> None:
    met = {}
    for price in (1.0, 0.1):
        budget, met[price] = Budget(0.01), 0
        for _ in range(10_000):
            is_met = budget.bears(price)
            met[price] += is_met
            budget.ended(budget.began(price if is_met else 0.0))
    assert 100 <= met[1.0] <= 102
    assert 1000 <= met[0.1] <= 1020


def test_what_is_advanced_may_be_met_once() -> None:
    budget = Budget(0.01)
    budget.advance(5)
    met = 0
    for _ in range(90):
        is_met = budget.bears(1.0)
        met += is_met
        budget.ended(budget.began(1.0 if is_met else 0.0))
    assert met == 6


def test_a_debt_is_not_carried_on_for_ever() -> None:
    budget = Budget(0.1)
    for _ in range(10_000):
        budget.ended(budget.began(price=1.0))
    for _ in range(41):
        budget.ended(budget.began(price=0.0))
    assert budget.bears(1.0)


@given(st.lists(st.sampled_from(["begin", "end", "line", "more"]), max_size=300), st.floats(0.01, 1.0))
def test_no_more_than_the_share_is_met_where_lines_begin_only_as_it_is_borne(
    moves: list[str], share: float
) -> None:
    budget = Budget(share)
    open_tokens: list[int | None] = []
    begun = met = 0
    for move in moves:
        if move == "begin":
            open_tokens.append(budget.began(price=0.0))
            begun += 1
        elif move == "end" and open_tokens:
            budget.ended(open_tokens.pop(0))
        elif move == "line" and budget.bears(1.0):
            met += budget.untouched
            budget.met(1.0)
        assert met <= 1 + share * begun + 1e-6
