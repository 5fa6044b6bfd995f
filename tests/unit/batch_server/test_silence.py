"""When there is no interactive traffic: after twice its longest gap, and not while a request is in flight."""

from __future__ import annotations

from proxy.batch_server.silence import Silence


def after(*gaps: float) -> tuple[Silence, float]:
    """Have requests of a second each with these gaps between them; the silence, and when the last ended."""
    silence, now = Silence(), 100.0
    for gap in (*gaps, None):
        silence.broken(now)
        now += 1.0
        silence.may_have_begun(now)
        now += gap or 0.0
    return silence, now


def test_without_any_request_ever_it_is_idle() -> None:
    assert Silence().is_idle(0.0)


def test_it_is_not_while_a_request_lasts() -> None:
    silence = Silence()
    silence.broken(0.0)
    assert silence.is_broken
    assert not silence.is_idle(1e6)
    silence.may_have_begun(1e6)
    assert not silence.is_broken


def test_it_is_after_twice_the_longest_gap() -> None:
    silence, now = after(*[1.0] * 10, 20.0)
    assert not silence.is_idle(now + 39.0)
    assert silence.is_idle(now + 41.0)


def test_it_takes_five_seconds_at_least_and_more_while_little_is_known() -> None:
    known, now = after(*[0.1] * 10)
    assert not known.is_idle(now + 4.9)
    assert known.is_idle(now + 5.1)
    unknown, now = after(0.1)
    assert not unknown.is_idle(now + 14.9)
    assert unknown.is_idle(now + 15.1)


def test_it_takes_two_minutes_at_most() -> None:
    silence, now = after(*[900.0] * 10)
    assert silence.is_idle(now + 121.0)


def test_regular_requests_are_foreseen() -> None:
    silence, now = after(*[10.0] * 8)
    assert silence.will_last(now + 1.0, 5.0)
    assert not silence.will_last(now + 6.0, 5.0)
    assert not silence.will_last(now + 11.0, 1.0)


def test_random_ones_and_few_ones_are_not() -> None:
    silence, now = after(*[float(gap) for gap in range(1, 20)])
    assert not silence.will_last(now + 1.0, 2.0)
    silence, now = after(*[10.0] * 7)
    assert not silence.will_last(now + 1.0, 5.0)
