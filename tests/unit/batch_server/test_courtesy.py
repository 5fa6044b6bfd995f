"""How many lines interactive traffic bears is tried out, trusted, and doubted again."""

from __future__ import annotations

import random

import pytest

from proxy.batch_server.courtesy import Courtesy

MOST = 32
CAPACITY = 100


class Traffic:
    """Answers of one kind; `bears`: so many lines do no harm, more make answers half as slow again."""

    def __init__(self, bears: int, seed: int = 1) -> None:
        self.courtesy = Courtesy(MOST)
        self.bears = bears
        self.now = 1000.0
        self._rng = random.Random(seed)

    def answer(self, lines: int, was_given_way: bool = False, slowness: float | None = None) -> int:
        """Have one."""
        self.now += 0.1
        slow = slowness or (1.5 if lines > self.bears else 1.0)
        seconds = self._rng.uniform(0.9, 1.1) * slow
        return self.courtesy.answered(self.now, "kind", seconds, None, lines, was_given_way)

    def clean(self, count: int = 100) -> int:
        """Have some without lines; how many more are wanted then."""
        return sum(self.answer(0) for _ in range(count))

    def probe(self, count: int) -> None:
        """Have some among as many lines as are tried out, each after some among none."""
        for _ in range(count):
            self.answer(self.courtesy.probed(CAPACITY))
            self.clean(3)


def test_nothing_is_trusted_at_first_and_little_is_tried() -> None:
    courtesy = Courtesy(MOST)
    assert courtesy.trusted(0.0) == 0
    assert courtesy.probed(CAPACITY) == 2
    assert courtesy.probed(1) == 1


def test_answers_are_wanted_once_there_is_something_to_compare_them_with() -> None:
    traffic = Traffic(bears=MOST)
    assert traffic.clean(19) == 0
    assert traffic.clean(1) > 0
    assert traffic.clean(500) == 0


@pytest.mark.parametrize("seed", range(5))
def test_what_does_no_harm_is_trusted_up_to_the_most(seed: int) -> None:
    traffic = Traffic(bears=MOST, seed=seed)
    traffic.clean()
    traffic.probe(150)
    assert traffic.courtesy.trusted(traffic.now) == MOST


def test_a_success_makes_more_answers_wanted() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    wanted = [traffic.answer(traffic.courtesy.probed(CAPACITY)) for _ in range(48)]
    assert not any(wanted[:47])
    assert wanted[47] > 0
    assert traffic.courtesy.trusted(traffic.now) == 2
    assert traffic.courtesy.probed(CAPACITY) == 8


def test_the_more_do_no_harm_the_less_is_to_be_reckoned_with() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    prices = []
    for _ in range(47):
        prices.append(traffic.courtesy.price())
        traffic.answer(traffic.courtesy.probed(CAPACITY))
    assert prices[:6] == [1.0] * 6
    assert prices == sorted(prices, reverse=True)
    assert prices[6] == 0.2
    assert prices[46] == 0.04


def test_late_answers_keep_it_high_though_they_are_too_few_for_a_verdict() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    for slowness in (1.0, 1.0, 1.0, 1.0, 1.0, 2.0):
        traffic.answer(traffic.courtesy.probed(CAPACITY), slowness=slowness)
    assert traffic.courtesy.price() == 0.3


def test_what_was_never_tried_is_to_be_reckoned_with_whatever_fewer_did() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    traffic.probe(20)
    assert traffic.courtesy.price(2) < 0.1
    assert traffic.courtesy.price(3) == 1.0


def test_after_harm_all_is_to_be_reckoned_with_again() -> None:
    traffic = Traffic(bears=0)
    traffic.clean()
    traffic.probe(7)
    assert traffic.courtesy.price() == 1.0
    assert traffic.courtesy.probed(CAPACITY) == 1


def test_a_mistake_makes_more_proof_wanted() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    traffic.probe(48)
    assert traffic.courtesy.trusted(traffic.now) == 2
    traffic.bears = 0
    while traffic.courtesy.trusted(traffic.now):
        traffic.answer(1)
    traffic.bears = MOST
    answers = 0
    while not traffic.courtesy.trusted(traffic.now):
        traffic.probe(1)
        answers += 1
    assert 96 <= answers <= 192


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bears", [0, 1, 3, 10])
def test_harm_is_never_trusted_and_what_does_none_nearly_found(bears: int, seed: int) -> None:
    traffic = Traffic(bears, seed)
    traffic.clean()
    most = 0
    for _ in range(300):
        traffic.probe(1)
        most = max(most, traffic.courtesy.trusted(traffic.now))
    assert bears // 2 <= most <= bears


def test_trust_ends_with_the_first_answers_that_were_harmed() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    traffic.probe(150)
    traffic.bears = 4
    answers = 0
    while (trusted := traffic.courtesy.trusted(traffic.now)) > 4:
        traffic.answer(trusted)
        answers += 1
        assert answers < 100
    assert traffic.courtesy.probed(CAPACITY) > trusted


def test_trust_outlives_answers_that_are_slow_by_chance() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    traffic.probe(150)
    for number in range(2000):
        slow = number % 20 == 0
        traffic.answer(MOST, slowness=3.0 if slow else 1.0)
        if number % 4 == 0:
            traffic.answer(0, slowness=3.0 if slow else 1.0)
    assert traffic.courtesy.trusted(traffic.now) == MOST


def test_lines_rest_for_a_while_when_all_answers_met_some() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    traffic.probe(150)
    traffic.now += 1000.0
    traffic.answer(MOST)
    assert traffic.courtesy.trusted(traffic.now) == 0
    traffic.clean(29)
    assert traffic.courtesy.trusted(traffic.now) == 0
    traffic.clean(2)
    assert traffic.courtesy.trusted(traffic.now) == MOST


def test_they_do_not_rest_for_ever_where_answers_are_rare() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    traffic.probe(150)
    rested = 0
    for _ in range(60):
        traffic.now += 60.0
        rested += traffic.courtesy.trusted(traffic.now) == 0
        traffic.answer(MOST)
    assert rested <= 10


def test_giving_way_ends_for_an_hour_once_it_does_harm() -> None:
    traffic = Traffic(bears=0)
    traffic.clean()
    for _ in range(100):
        traffic.answer(0, was_given_way=True)
    assert traffic.courtesy.gives_way(traffic.now)
    for _ in range(100):
        traffic.answer(0, was_given_way=True, slowness=1.5)
    assert not traffic.courtesy.gives_way(traffic.now)
    assert traffic.courtesy.gives_way(traffic.now + 3600.0)


@pytest.mark.parametrize(("beside", "trusted"), [(0.0005, 2), (0.0009, 0)])
def test_what_lines_do_to_the_pace_of_a_quick_stream_counts_over_a_whole_answer(
    beside: float, trusted: int
) -> None:
    courtesy = Courtesy(2)
    for number in range(100):
        courtesy.answered(float(number), "kind", 0.01, 0.0005, 0)
    assert courtesy.probed(CAPACITY) == 2
    for number in range(48):
        courtesy.answered(100.0 + number, "kind", 0.01, beside, 2)
    assert courtesy.trusted(200.0) == trusted


def test_a_policy_that_wants_less_is_followed_at_once() -> None:
    traffic = Traffic(bears=MOST)
    traffic.clean()
    traffic.probe(150)
    traffic.courtesy.widen(3)
    assert traffic.courtesy.trusted(traffic.now) == 3
    assert traffic.courtesy.probed(CAPACITY) == 3
