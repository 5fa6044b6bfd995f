"""What lines do to interactive answers is known from answers that met one and those that did not."""

from __future__ import annotations

import random

import pytest

from proxy.batch_server.courtesy import Courtesy, Effect


def told(clean: list[float], mixed: list[float], now: float = 100.0) -> Courtesy:
    courtesy = Courtesy()
    for was_mixed, times in ((False, clean), (True, mixed)):
        for seconds in times:
            courtesy.started(now)
            courtesy.ended(now, "kind", seconds, was_mixed)
    return courtesy


def test_nothing_is_known_at_first() -> None:
    assert Courtesy().effect is Effect.UNKNOWN
    assert told([1.0] * 50, [9.0] * 2).effect is Effect.UNKNOWN
    assert told([1.0] * 4, [9.0] * 50).effect is Effect.UNKNOWN


def test_slower_answers_are_harm() -> None:
    assert told([1.0] * 20, [1.2] * 5).effect is Effect.HARMFUL


def test_a_tenth_slower_is_none() -> None:
    assert told([1.0] * 20, [1.09] * 20).effect is Effect.HARMLESS


@pytest.mark.parametrize("seed", range(5))
def test_long_answers_by_chance_are_none(seed: int) -> None:
    rng = random.Random(seed)
    clean, mixed = ([rng.expovariate(1.0) for _ in range(count)] for count in (200, 50))
    assert told(clean, mixed).effect is Effect.HARMLESS


def test_kinds_are_compared_with_their_own() -> None:
    courtesy = told([1.0] * 20, [1.0] * 20)
    for was_mixed in (False, True):
        for _ in range(20):
            courtesy.ended(100.0, "another", 9.0, was_mixed)
    assert courtesy.effect is Effect.HARMLESS


def test_harm_is_remembered_while_lines_keep_away() -> None:
    courtesy = told([1.0] * 20, [2.0] * 20)
    courtesy.ended(5000.0, "kind", 1.0, was_mixed=False)
    assert courtesy.effect is Effect.HARMFUL


def test_harmlessness_is_doubted_once_nothing_clean_is_left() -> None:
    courtesy = told([1.0] * 20, [1.0] * 20)
    courtesy.ended(5000.0, "kind", 1.0, was_mixed=True)
    assert courtesy.effect is Effect.UNKNOWN


def test_more_is_borne_only_after_proof_at_the_present_number() -> None:
    courtesy = told([1.0] * 20, [1.0] * 20)
    assert courtesy.bears_more
    courtesy.forget_mixed()
    assert courtesy.effect is Effect.HARMLESS
    assert not courtesy.bears_more
    for _ in range(10):
        courtesy.ended(101.0, "kind", 1.0, was_mixed=True, is_settled=False)
    assert not courtesy.bears_more
    for _ in range(10):
        courtesy.ended(101.0, "kind", 1.0, was_mixed=True)
    assert courtesy.bears_more


def test_the_share_of_answers_that_met_a_line_is_counted() -> None:
    assert told([1.0] * 75, [1.0] * 25).mixed_share == 0.25
    assert Courtesy().mixed_share == 0.0


def test_traffic_is_over_after_twice_its_longest_gap() -> None:
    courtesy = Courtesy()
    assert courtesy.is_idle(0.0)
    for start in (100.0, 110.0):
        courtesy.started(start)
        assert not courtesy.is_idle(start + 1000)
        courtesy.ended(start + 1, "kind", 1.0, was_mixed=False)
    assert not courtesy.is_idle(111.0 + 17)
    assert courtesy.is_idle(111.0 + 19)


def test_a_request_in_flight_is_waited_for() -> None:
    courtesy = told([1.0] * 20, [2.0] * 20)
    assert not courtesy.had_better_wait(100.1, 1.0)
    courtesy.noticed(100.1, 1)
    assert courtesy.had_better_wait(100.2, 1.0)


def test_a_line_waits_that_would_probably_meet_the_next_request() -> None:
    courtesy = told([1.0] * 20, [2.0] * 20)
    for number in range(12):
        courtesy.started(200.0 + 10 * number)
        courtesy.ended(201.0 + 10 * number, "kind", 1.0, was_mixed=False)
    last = 201.0 + 110
    assert not courtesy.had_better_wait(last + 1, 2.0)
    assert courtesy.had_better_wait(last + 8, 2.0)
    assert not courtesy.had_better_wait(last + 10, 2.0)


def test_harmless_lines_wait_for_nobody() -> None:
    courtesy = told([1.0] * 20, [1.0] * 20)
    courtesy.noticed(100.1, 5)
    assert not courtesy.had_better_wait(100.2, 1.0)
