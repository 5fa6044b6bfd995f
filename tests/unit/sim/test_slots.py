from __future__ import annotations

import asyncio

import pytest

from proxy.sim.errors import ApiError
from proxy.sim.scenario import SlotRules
from proxy.sim.slots import Slots


def test_only_so_many_are_in_work_and_the_rest_wait_in_order() -> None:
    async def main() -> tuple[list[int], int, int]:
        slots = Slots(SlotRules(concurrent=2))
        order: list[int] = []

        async def work(number: int) -> None:
            async with slots.hold():
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(work(number) for number in range(6)))
        return order, slots.most_in_work, slots.most_queued

    assert asyncio.run(main()) == ([0, 1, 2, 3, 4, 5], 2, 4)


def test_no_limit_lets_all_in() -> None:
    async def main() -> int:
        slots = Slots(SlotRules())
        async with slots.hold(), slots.hold(), slots.hold():
            return slots.in_work

    assert asyncio.run(main()) == 3


def test_a_full_queue_is_503() -> None:
    async def main() -> None:
        slots = Slots(SlotRules(concurrent=1, max_queued=0))
        async with slots.hold(), slots.hold():
            pass

    with pytest.raises(ApiError) as refused:
        asyncio.run(main())
    assert (refused.value.status, refused.value.code) == (503, "queue_full")


def test_leaving_the_queue_frees_the_place() -> None:
    async def main() -> tuple[int, int]:
        slots = Slots(SlotRules(concurrent=1))
        async with slots.hold():
            waiting = asyncio.ensure_future(slots.hold().__aenter__())
            await asyncio.sleep(0)
            assert slots.queued == 1
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with slots.hold():
            return slots.queued, slots.in_work

    assert asyncio.run(main()) == (0, 1)
