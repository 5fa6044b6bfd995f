"""A store that is gone is asked once in a while, and everybody else is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from proxy.core.clock import ManualClock
from proxy.jobs.breaker import Breaker, GuardedStore, Pause
from proxy.jobs.memory_store import MemoryStore
from proxy.jobs.model import JobState
from proxy.jobs.store import Conflict, LeaseLost, StoreUnavailable


class Fixture:
    """A breaker whose store fails as told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changes: list[tuple[bool, str]] = []
        self.breaker = Breaker(
            self.clock, Pause(1.0, 5.0), lambda is_open, why: self.changes.append((is_open, why))
        )
        self.asked = 0

    async def ask(self, problem: BaseException | None = None, limit_seconds: float | None = 1.0) -> str:
        async def answer() -> str:
            self.asked += 1
            if problem is not None:
                raise problem
            return "fine"

        return await self.breaker.call(answer, limit_seconds)

    async def fail(self) -> None:
        with pytest.raises(StoreUnavailable):
            await self.ask(StoreUnavailable("disk full"))


def run(test: Callable[[Fixture], Awaitable[None]]) -> None:
    async def go() -> None:
        await test(Fixture())

    asyncio.run(go())


def test_one_failure_opens_it_and_the_rest_is_refused_with_the_reason() -> None:
    async def test(it: Fixture) -> None:
        await it.fail()
        for _ in range(100):
            with pytest.raises(StoreUnavailable, match="disk full"):
                await it.ask()
        assert (it.asked, it.breaker.refusals) == (1, 100)
        assert it.changes == [(True, "disk full")]

    run(test)


def test_a_store_that_does_not_answer_in_time_is_gone() -> None:
    async def test(it: Fixture) -> None:
        async def never() -> None:
            await asyncio.Event().wait()

        with pytest.raises(StoreUnavailable, match="not answered within"):
            await it.breaker.call(never, 0.01)
        assert it.breaker.is_open

    run(test)


def test_one_probe_closes_it_again() -> None:
    async def test(it: Fixture) -> None:
        await it.fail()
        it.clock.advance(1.0)
        assert await it.ask() == "fine"
        assert not it.breaker.is_open
        assert [is_open for is_open, _ in it.changes] == [True, False]

    run(test)


def test_only_one_probe_at_a_time() -> None:
    async def test(it: Fixture) -> None:
        await it.fail()
        it.clock.advance(1.0)
        gate = asyncio.Event()

        async def slow() -> bool:
            return await gate.wait()

        probe = asyncio.ensure_future(it.breaker.call(slow, None))
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await it.ask()
        gate.set()
        assert await probe
        assert await it.ask() == "fine"

    run(test)


def test_failed_probes_wait_longer_each_time_up_to_a_limit() -> None:
    async def test(it: Fixture) -> None:
        await it.fail()
        for pause in (1.0, 2.0, 4.0, 5.0, 5.0):
            it.clock.advance(pause - 0.1)
            asked = it.asked
            with pytest.raises(StoreUnavailable):
                await it.ask()
            assert it.asked == asked
            it.clock.advance(0.1)
            await it.fail()
            assert it.asked == asked + 1
        it.clock.advance(5.0)
        await it.ask()
        await it.fail()
        it.clock.advance(1.0)
        assert await it.ask() == "fine"

    run(test)


def test_answers_that_are_refusals_are_no_failures() -> None:
    async def test(it: Fixture) -> None:
        for answer in (Conflict("gone", JobState.FAILED), LeaseLost("lost")):
            with pytest.raises(type(answer)):
                await it.ask(answer)
        assert not it.breaker.is_open
        await it.fail()
        it.clock.advance(1.0)
        with pytest.raises(Conflict):
            await it.ask(Conflict("gone"))
        assert not it.breaker.is_open

    run(test)


def test_a_cancelled_probe_lets_the_next_one_try() -> None:
    async def test(it: Fixture) -> None:
        await it.fail()
        it.clock.advance(1.0)
        with pytest.raises(asyncio.CancelledError):
            await it.ask(asyncio.CancelledError())
        assert it.breaker.is_open
        assert await it.ask() == "fine"

    run(test)


def test_faults_of_the_program_say_nothing_about_the_store() -> None:
    async def test(it: Fixture) -> None:
        with pytest.raises(ValueError, match="oops"):
            await it.ask(ValueError("oops"))
        assert not it.breaker.is_open

    run(test)


def test_a_guarded_store_is_the_store() -> None:
    async def go() -> None:
        inner = MemoryStore(ManualClock())
        store = GuardedStore(inner)
        await store.open()
        assert await store.salt() == await inner.salt()
        assert (await store.census()).jobs == {}
        with pytest.raises(Conflict):
            await store.cancel("unknown")
        assert await store.wait("unknown", 1.0) is None
        assert not await store.wait_for_work(0.01)
        await store.close()

    asyncio.run(go())
