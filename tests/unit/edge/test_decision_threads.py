"""The threads in which long bodies are decided about."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from proxy.edge.decision_threads import MAX_WAITING, MAX_WAITING_BYTES, DecisionThreads


@pytest.fixture
def threads() -> Iterator[DecisionThreads]:
    made = DecisionThreads(2)
    yield made
    made.shutdown()


def test_calls_return_and_raise_what_they_do(threads: DecisionThreads) -> None:
    assert threads.submit(divmod, 7, 2).result(5) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(5)


def test_what_ends_a_process_ends_no_thread(threads: DecisionThreads) -> None:
    def leave() -> None:
        raise SystemExit

    for _ in range(4):
        with pytest.raises(SystemExit):
            threads.submit(leave).result(5)
    assert threads.submit(len, "abc").result(5) == 3


def test_no_more_run_at_once_than_there_are_threads(threads: DecisionThreads) -> None:
    gate = threading.Event()
    running = threading.Semaphore(0)

    def work() -> str:
        running.release()
        gate.wait(5)
        return threading.current_thread().name

    futures = [threads.submit(work) for _ in range(6)]
    assert running.acquire(timeout=5)
    assert running.acquire(timeout=5)
    assert not running.acquire(timeout=0.05)
    gate.set()
    assert len({future.result(5) for future in futures}) <= 2


def test_what_was_cancelled_in_time_is_not_run(threads: DecisionThreads) -> None:
    gate = threading.Event()
    busy = [threads.submit(gate.wait, 5) for _ in range(2)]
    ran: list[int] = []
    late = threads.submit(ran.append, 1)
    assert late.cancel()
    gate.set()
    assert all(future.result(5) for future in busy)
    assert threads.submit(len, "x").result(5) == 1
    assert ran == []


def test_room_is_bounded_in_number_and_bytes(threads: DecisionThreads) -> None:
    assert threads.claim(MAX_WAITING_BYTES + 1)  # one alone may have any size
    assert not threads.claim(1)
    threads.release(MAX_WAITING_BYTES + 1)
    assert all(threads.claim(1) for _ in range(MAX_WAITING))
    assert not threads.claim(1)
    threads.release(1)
    assert threads.claim(1)


def test_a_running_decision_is_not_waited_for(threads: DecisionThreads) -> None:
    gate = threading.Event()
    future = threads.submit(gate.wait, 5)
    threads.shutdown()
    assert not future.done()
    with pytest.raises(RuntimeError):
        threads.submit(len, "x")
    gate.set()
    assert future.result(5)
