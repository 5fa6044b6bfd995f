"""Whether answers that met lines are slower than those that did not, and more than chance explains."""

from __future__ import annotations

import random

import pytest

from proxy.batch_server.comparison import LEAST_CLEAN, Baseline, Effect, Sample

MANY = 100


def judged(clean: list[float], met: list[float], least: int = 6, deviations: float = 2.0) -> Effect:
    """Judge answers of one kind."""
    baseline, sample = Baseline(), Sample()
    for seconds in clean:
        baseline.add(0.0, "kind", seconds)
    for seconds in met:
        sample.add("kind", seconds)
    return baseline.judge(sample, least, deviations)


def test_few_answers_tell_nothing() -> None:
    assert judged([1.0] * MANY, [9.0] * 5) is Effect.UNKNOWN
    assert judged([1.0] * (LEAST_CLEAN - 1), [9.0] * MANY) is Effect.UNKNOWN
    assert judged([1.0] * LEAST_CLEAN, [9.0] * 6) is Effect.HARMFUL


def test_a_tenth_slower_is_no_harm_and_more_is() -> None:
    assert judged([1.0] * MANY, [1.09] * 20) is Effect.HARMLESS
    assert judged([1.0] * MANY, [1.12] * 20) is Effect.HARMFUL


def test_what_nobody_feels_is_no_harm() -> None:
    assert judged([0.005] * MANY, [0.0065] * 20) is Effect.HARMLESS
    assert judged([0.005] * MANY, [0.0075] * 20) is Effect.HARMFUL


@pytest.mark.parametrize("seed", range(5))
def test_a_general_slowness_of_answers_of_all_lengths_is_found(seed: int) -> None:
    rng = random.Random(seed)
    clean, met = ([rng.uniform(0.9, 1.1) * slow for _ in range(60)] for slow in (1.0, 1.25))
    assert judged(clean, met) is Effect.HARMFUL


@pytest.mark.parametrize("seed", range(5))
def test_rare_slowness_is_found_too(seed: int) -> None:
    rng = random.Random(seed)
    clean = [rng.uniform(0.9, 1.1) for _ in range(200)]
    met = [rng.uniform(0.9, 1.1) * (3.0 if rng.random() < 0.35 else 1.0) for _ in range(200)]
    assert judged(clean, met, deviations=4.0) is Effect.HARMFUL


@pytest.mark.parametrize("seed", range(20))
def test_long_answers_by_chance_are_none(seed: int) -> None:
    rng = random.Random(seed)
    clean, met = ([rng.expovariate(1.0) for _ in range(200)] for _ in range(2))
    assert judged(clean, met, deviations=4.0) is Effect.HARMLESS


def test_kinds_are_compared_with_their_own() -> None:
    baseline, sample = Baseline(), Sample()
    for kind, seconds in (("short", 1.0), ("long", 9.0)):
        for _ in range(MANY):
            baseline.add(0.0, kind, seconds)
    for _ in range(10):
        sample.add("long", 9.0)
    assert baseline.judge(sample, 6, 2.0) is Effect.HARMLESS
    for _ in range(10):
        sample.add("short", 9.0)
    assert baseline.judge(sample, 6, 2.0) is Effect.HARMFUL


def test_a_kind_that_was_never_clean_is_left_out() -> None:
    baseline, sample = Baseline(), Sample()
    for _ in range(MANY):
        baseline.add(0.0, "known", 1.0)
        sample.add("new", 9.0)
    assert baseline.judge(sample, 6, 2.0) is Effect.UNKNOWN


def test_what_is_a_quarter_of_an_hour_old_is_forgotten() -> None:
    baseline = Baseline()
    for at in range(100):
        baseline.add(float(at), "kind", 1.0)
    assert baseline.answers(900.0) == 100
    assert baseline.answers(960.0) == 40
    assert baseline.answers(2000.0) == 0


def test_kinds_are_bounded() -> None:
    baseline = Baseline()
    for number in range(1000):
        for _ in range(LEAST_CLEAN):
            baseline.add(0.0, number, 1.0)
    assert not baseline.knows(0)
    assert baseline.knows(999)
