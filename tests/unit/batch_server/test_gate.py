"""Turns at an upstream: fair between batches, given back whatever happens, no more than the limit says."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from proxy.batch_server.gate import Gate, Gates, Turn
from proxy.batch_server.limit import LineEnd
from proxy.batch_server.load import Load
from proxy.core.clock import SystemClock
from proxy.core.exchange import Exchange
from proxy.core.upstream import ServedBatchApi, Upstream
from proxy.core.usage import Usage


def played(scene: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a coroutine."""

    @functools.wraps(scene)
    def play() -> None:
        async def run() -> None:
            await scene()

        asyncio.run(run())

    return play


def gates(max_in_flight: int = 32, max_connections: int = 0) -> tuple[Gates, Load]:
    upstream = Upstream(
        "local", "http://local", max_connections=max_connections, batch_api=ServedBatchApi(max_in_flight)
    )
    load = Load()
    upstreams = {"local": upstream}
    return Gates(load, asyncio.get_running_loop(), SystemClock(), upstreams.get), load


async def waiting(gate: Gate, *batches: str) -> list[asyncio.Task[Turn]]:
    """Have lines of batches wait for their turns, in this order."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(gate.turn(batch), name=f"{batch} {n}") for n, batch in enumerate(batches)]
    await asyncio.sleep(0)
    return tasks


async def served(gate: Gate, tasks: list[asyncio.Task[Turn]]) -> list[str]:
    """Let lines run one after another; return whose they were."""
    order, left = [], set(tasks)
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            order.append(task.get_name().split()[0])
            task.result().leave(LineEnd.ANSWERED)
    return order


@played
async def test_batches_take_turns_however_many_lines_they_have() -> None:
    gate = gates(max_in_flight=1)[0].at("local")
    first = await gate.turn("a")
    tasks = await waiting(gate, "a", "a", "a", "a", "b", "b")
    assert gate.waiting == 6
    first.leave(LineEnd.ANSWERED)
    assert await served(gate, tasks) == ["a", "b", "a", "b", "a", "a"]


@played
async def test_no_more_lines_are_in_flight_than_the_policy_says() -> None:
    gate = gates(max_in_flight=2)[0].at("local")
    tasks = await waiting(gate, *["a"] * 8)
    most = 0
    while left := [task for task in tasks if not task.done()]:
        await asyncio.wait(left, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
        most = max(most, gate.in_flight)
        for task in tasks:
            if task.done():
                task.result().leave(LineEnd.ANSWERED)
                tasks.remove(task)
                break
    assert 1 <= most <= 2


@played
async def test_a_line_that_gives_up_leaves_its_place_to_others() -> None:
    gate = gates(max_in_flight=1)[0].at("local")
    first = await gate.turn("a")
    impatient, patient = await waiting(gate, "a", "b")
    impatient.cancel()
    first.leave(LineEnd.ANSWERED)
    turn = await asyncio.wait_for(patient, 2)
    assert gate.in_flight == 1
    turn.leave(LineEnd.ANSWERED)
    assert (gate.in_flight, gate.waiting) == (0, 0)


@played
async def test_a_line_that_gives_up_just_as_its_turn_comes_gives_it_back() -> None:
    gate = gates(max_in_flight=1)[0].at("local")
    first = await gate.turn("a")
    (task,) = await waiting(gate, "a")
    first.leave(LineEnd.ANSWERED)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gate.in_flight == 0


@played
async def test_the_last_connection_is_for_callers() -> None:
    assert gates(max_in_flight=32, max_connections=4)[0].at("local").most == 3
    assert gates(max_in_flight=32, max_connections=1)[0].at("local").most == 1
    assert gates(max_in_flight=2, max_connections=8)[0].at("local").most == 2


def exchange(upstream: str = "local", method: str = "POST", number: int = 1) -> Exchange:
    made = Exchange(f"request-{number}", 1.0)
    made.method, made.path, made.upstream = method, "/v1/chat/completions", upstream
    return made


@played
async def test_callers_requests_are_counted_while_they_last() -> None:
    many, load = gates()
    at = load.at("local")
    many.at("local")
    one, other = exchange(), exchange("other", number=2)
    load.begun(one)
    load.begun(other)
    load.begun(exchange(method="GET", number=3))
    assert at.interactive_in_flight == 1
    load.ended(other)
    load.ended(one)
    load.ended(one)
    assert at.interactive_in_flight == 0


class Follower:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.mixed: list[bool] = []
        self.seconds: list[float | None] = []
        self.paces: list[float | None] = []

    def interactive_begun(self) -> None:
        """Hear nothing of interest."""

    def interactive_ended(
        self,
        key: tuple[str, str, bool],
        seconds: float | None,
        token_seconds: float | None,
        was_mixed: bool,
    ) -> None:
        """Note it."""
        self.paces.append(token_seconds)
        assert key[0] == "chat"
        self.mixed.append(was_mixed)
        self.seconds.append(seconds)


def test_an_exchange_is_mixed_if_a_line_was_there_at_any_time_meanwhile() -> None:
    load = Load()
    at = load.at("local")
    follower = at.follower = Follower()
    clean = exchange(number=1)
    load.begun(clean)
    load.ended(clean)
    met = exchange(number=2)
    load.begun(met)
    at.line_began()
    at.line_ended()
    load.ended(met)
    at.line_began()
    found = exchange(number=3)
    load.begun(found)
    at.line_ended()
    load.ended(found)
    assert follower.mixed == [False, True, True]


def test_only_good_answers_are_measured_from_the_decision_to_their_beginning() -> None:
    load = Load()
    follower = load.at("local").follower = Follower()
    stream, failed = exchange(number=1), exchange(number=2)
    for each in (stream, failed):
        load.begun(each)
        each.decided_at, each.first_byte_at, each.status = 2.0, 2.5, 200
    stream.first_token_at = 3.0
    failed.status = 500
    stream.sent_at, stream.ended_at, stream.usage = 2.0, 4.0, Usage(output_tokens=11)
    load.ended(stream)
    load.ended(failed)
    assert follower.seconds == [1.0, None]
    assert follower.paces == [0.1, None]
