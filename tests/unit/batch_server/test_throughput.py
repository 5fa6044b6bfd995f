"""More lines at once are futile where they get no more done."""

from __future__ import annotations

from proxy.batch_server.throughput import Throughput


def seen(**seconds_at: float) -> Throughput:
    throughput = Throughput()
    for name, seconds in seconds_at.items():
        for _ in range(8):
            throughput.add(int(name.removeprefix("at")), seconds, None)
    return throughput


def test_lines_that_run_side_by_side_are_not_futile() -> None:
    assert not seen(at1=1.0, at2=1.0, at4=1.1).is_futile(4)


def test_lines_that_only_wait_for_each_other_are() -> None:
    throughput = seen(at1=1.0, at2=1.0, at3=1.5)
    assert throughput.is_futile(3)
    assert not throughput.is_futile(2)


def test_a_few_lines_say_nothing() -> None:
    throughput = seen(at1=1.0)
    throughput.add(2, 2.0, None)
    assert not throughput.is_futile(2)
    assert not throughput.knows(2)
    assert throughput.knows(1)


def test_long_answers_are_no_slow_ones() -> None:
    throughput = Throughput()
    for _ in range(8):
        throughput.add(1, 1.0, 100)
        throughput.add(2, 10.0, 1000)
    assert not throughput.is_futile(2)


def test_what_was_learnt_is_forgotten_after_a_while() -> None:
    throughput = seen(at1=1.0, at2=2.0)
    assert throughput.is_futile(2)
    for _ in range(500):
        throughput.add(3, 1.0, None)
    assert not throughput.is_futile(2)
