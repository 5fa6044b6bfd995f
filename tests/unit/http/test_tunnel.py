"""Two joined connections over wires in memory: opaque bytes, backpressure, and no half that stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.http import tunnel
from proxy.http.deadlines import Deadlines
from proxy.http.memory import connect
from tests.unit.http.serving import Caller, settle

MUCH = b"x" * 1_000_000
STALL_SECONDS = 30.0


class Inert(asyncio.Protocol):
    """Stands for the connection that gave its transport away."""


class Joined:
    """A caller and a provider, each at the far end of its wire, and Weir's two ends joined between them."""

    def __init__(self, early_caller: bytes = b"", early_provider: bytes = b"") -> None:
        loop = asyncio.get_running_loop()
        self.clock = ManualClock()
        self.deadlines = Deadlines(loop, self.clock, 0.001)
        self.caller, self.provider = Caller(), Caller()
        self.closed: list[tuple[int, int]] = []
        _, downstream = connect(loop, self.caller, Inert(), 10_000)
        _, upstream = connect(loop, self.provider, Inert(), 10_000)
        self.ends = (downstream, upstream)
        tunnel.join(
            downstream,
            upstream,
            early_caller,
            early_provider,
            self.deadlines,
            STALL_SECONDS,
            lambda sent, received: self.closed.append((sent, received)),
        )

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.deadlines.sweep()
        await settle(20)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left, and that was told once."""
        return len(self.closed) == 1 and len(self.deadlines) == 0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


@given(
    st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=30)), max_size=20), st.binary(max_size=9)
)
def test_bytes_pass_in_order_in_both_directions_and_are_counted(
    sent: list[tuple[bool, bytes]], early: bytes
) -> None:
    async def test() -> None:
        on = Joined(early, early)
        for is_callers, data in sent:
            (on.caller if is_callers else on.provider).transport.write(data)
        await settle(60)
        of_caller = early + b"".join(data for is_callers, data in sent if is_callers)
        of_provider = early + b"".join(data for is_callers, data in sent if not is_callers)
        assert on.provider.received == of_caller
        assert on.caller.received == of_provider
        on.caller.transport.close()
        await settle()
        assert on.closed == [(len(of_caller), len(of_provider))]
        assert on.is_over
        assert on.provider.is_ended

    run(test())


@pytest.mark.parametrize("end", ["close", "half close", "reset"])
@pytest.mark.parametrize("side", ["caller", "provider"])
def test_a_side_that_ends_takes_the_other_one_with_it(side: str, end: str) -> None:
    async def test() -> None:
        on = Joined()
        leaver, other = (on.caller, on.provider) if side == "caller" else (on.provider, on.caller)
        leaver.transport.write(b"last words")
        await settle(5)
        transport = leaver.transport
        {"close": transport.close, "half close": transport.write_eof, "reset": transport.abort}[end]()
        await settle()
        assert other.received == b"last words"
        assert on.is_over

    run(test())


@pytest.mark.parametrize("side", ["caller", "provider"])
def test_a_slow_side_holds_the_other_one_back_and_loses_nothing(side: str) -> None:
    async def test() -> None:
        on = Joined()
        slow, fast = (on.caller, on.provider) if side == "caller" else (on.provider, on.caller)
        slow.transport.pause_reading()
        fast.transport.write(MUCH)
        await settle(300)
        assert fast.transport.get_write_buffer_size() > 800_000, "Weir holds what nobody takes"
        slow.transport.resume_reading()
        await settle(300)
        assert slow.received == MUCH
        assert not on.closed

    run(test())


@pytest.mark.parametrize("is_closing", [True, False])
@pytest.mark.parametrize("side", ["caller", "provider"])
def test_a_side_that_takes_nothing_is_dropped_after_its_time(side: str, is_closing: bool) -> None:
    async def test() -> None:
        on = Joined()
        dead, other = (on.caller, on.provider) if side == "caller" else (on.provider, on.caller)
        dead.transport.pause_reading()
        other.transport.write(b"x" * 100_000)
        await settle(60)
        if is_closing:
            other.transport.close()
            await settle(60)
        await on.pass_time(STALL_SECONDS - 1)
        assert not on.closed
        await on.pass_time(2)
        await on.pass_time(0)
        assert on.is_over

    run(test())


def test_a_side_that_takes_a_little_now_and_then_is_not_dropped() -> None:
    async def test() -> None:
        on = Joined()
        on.caller.transport.pause_reading()
        on.provider.transport.write(MUCH)
        await settle(60)
        for _ in range(8):
            await on.pass_time(STALL_SECONDS - 1)
            on.caller.transport.resume_reading()
            await settle(2)
            on.caller.transport.pause_reading()
        assert not on.closed

    run(test())


def test_silence_is_no_reason_to_end() -> None:
    async def test() -> None:
        on = Joined()
        on.provider.transport.write(b"hello")
        await settle()
        await on.pass_time(100_000)
        assert not on.closed

    run(test())
