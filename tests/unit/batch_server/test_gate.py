"""Turns at an upstream: fair between batches, given back whatever happens, no more than the limit says."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from proxy.batch_server.capacity import LineEnd
from proxy.batch_server.gate import Gate, Gates, Turn, Watcher
from proxy.batch_server.limit import Encounter, Met
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


def gates(
    max_in_flight: int = 32,
    max_connections: int = 0,
    give_way: bool = False,
    watcher: Watcher | None = None,
) -> tuple[Gates, Load]:
    served = ServedBatchApi(max_in_flight, give_way=give_way)
    upstream = Upstream("local", "http://local", max_connections=max_connections, batch_api=served)
    load = Load()
    upstreams = {"local": upstream}
    return Gates(load, asyncio.get_running_loop(), SystemClock(), upstreams.get, watcher), load


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


def came_and_went(load: Load, number: int = 1) -> None:
    """Have a caller's request that says nothing of how long it took."""
    met = exchange(number=number)
    load.begun(met)
    load.ended(met)


@played
async def test_callers_requests_are_told_of_with_the_lines_that_they_met() -> None:
    told: list[Met] = []
    many, load = gates(watcher=lambda _, met: told.append(met))
    gate = many.at("local")
    came_and_went(load)
    load.begun(exchange("other", number=2))
    load.begun(exchange(method="GET", number=3))
    load.ended(exchange(number=4))
    assert told == [Met.NONE]
    turn = await gate.turn("a")
    came_and_went(load)
    assert told == [Met.NONE, Met.UNPROVEN]
    turn.leave()
    came_and_went(load)
    assert told[2:] == [Met.NONE]


@played
async def test_a_line_is_cut_off_for_a_callers_request() -> None:
    many, load = gates(give_way=True)
    gate = many.at("local")
    came_and_went(load)
    turn = await gate.turn("a")
    given: list[str] = []
    turn.give_way = lambda: given.append("a")
    load.begun(exchange(number=1))
    assert given == []  # the one in a hundred from which something is learnt
    load.begun(exchange(number=2))
    assert given == ["a"]
    assert turn.has_given_way
    assert gate.in_flight == 0
    turn.leave(LineEnd.OTHER)
    assert gate.in_flight == 0


async def cut_off(other_batch: str) -> tuple[Gate, Turn, asyncio.Task[Turn]]:
    """Cut off a line of the batch `a` while one of another waits: the gate, its turn, and who waits."""
    many, load = gates(give_way=True)
    gate = many.at("local")
    came_and_went(load)
    turn = await gate.turn("a")
    turn.give_way = lambda: None
    (other,) = await waiting(gate, other_batch)
    for number in (1, 2):
        came_and_went(load, number)
    assert turn.has_given_way
    return gate, turn, other


@played
async def test_nobody_takes_the_place_of_a_line_that_was_cut_off_before_it_is_back() -> None:
    gate, turn, other = await cut_off("a")
    await asyncio.sleep(0.01)
    assert not other.done()
    turn.leave()
    again = await gate.turn("a", is_again=True)
    assert not other.done()
    again.leave(LineEnd.ANSWERED)
    (await other).leave(LineEnd.ANSWERED)


@played
async def test_a_line_that_was_cut_off_and_does_not_come_back_holds_up_nobody() -> None:
    _, turn, other = await cut_off("b")
    turn.leave()
    (await asyncio.wait_for(other, 2)).leave(LineEnd.ANSWERED)


@played
async def test_a_protected_line_is_not() -> None:
    many, load = gates(give_way=True)
    gate = many.at("local")
    came_and_went(load)
    turn = await gate.turn("a", is_protected=True)
    turn.give_way = asyncio.get_running_loop().stop
    for number in range(3):
        came_and_went(load, number)
    assert not turn.has_given_way
    assert gate.in_flight == 1
    turn.leave(LineEnd.ANSWERED)


@played
async def test_a_line_that_has_not_said_how_is_not_cut_off() -> None:
    many, load = gates(give_way=True)
    gate = many.at("local")
    turn = await gate.turn("a")
    for number in range(3):
        came_and_went(load, number)
    assert not turn.has_given_way
    assert gate.in_flight == 1
    turn.leave()


@played
async def test_nothing_is_cut_off_where_lines_do_not_give_way() -> None:
    many, load = gates()
    gate = many.at("local")
    turn = await gate.turn("a")
    turn.give_way = asyncio.get_running_loop().stop
    for number in range(200):
        came_and_went(load, number)
    assert not turn.has_given_way
    turn.leave()


@played
async def test_a_line_that_was_cut_off_is_the_first_of_its_batch_again() -> None:
    gate = gates(max_in_flight=1)[0].at("local")
    first = await gate.turn("a")
    tasks = await waiting(gate, "b", "c")
    again = asyncio.get_running_loop().create_task(gate.turn("b", is_again=True), name="again")
    await asyncio.sleep(0)
    first.leave(LineEnd.ANSWERED)
    assert (await served(gate, [*tasks, again]))[0] == "again"


@played
async def test_protected_lines_hold_up_nobody_who_gives_way() -> None:
    many, load = gates(give_way=True)
    gate = many.at("local")
    turn = await gate.turn("a")
    came_and_went(load, 1)
    came_and_went(load, 2)
    turn.leave()
    protected = asyncio.get_running_loop().create_task(gate.turn("a", is_protected=True))
    await asyncio.sleep(0)
    (await asyncio.wait_for(gate.turn("b"), 2)).leave(LineEnd.ANSWERED)
    assert not protected.done()
    assert gate.waiting == 1
    protected.cancel()
    await asyncio.gather(protected, return_exceptions=True)
    assert gate.waiting in (0, 1)
    (await asyncio.wait_for(gate.turn("b"), 2)).leave(LineEnd.ANSWERED)
    assert gate.waiting == 0


class Follower:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.seconds: list[float | None] = []
        self.paces: list[float | None] = []

    def interactive_begun(self, lines: int) -> Encounter:
        """Hear nothing of interest."""
        return Encounter(None, lines, 0)

    def interactive_ended(
        self,
        encounter: Encounter,
        key: tuple[str, str, bool],
        seconds: float | None,
        token_seconds: float | None,
    ) -> None:
        """Note it."""
        assert key[0] == "chat"
        self.paces.append(token_seconds)
        self.seconds.append(seconds)


def test_only_good_answers_are_measured_from_the_decision_to_their_beginning() -> None:
    load = Load()
    follower = load.at("local").follower = Follower()
    stream, whole, failed = (exchange(number=number) for number in (1, 2, 3))
    for each in (stream, whole, failed):
        load.begun(each)
        each.decided_at, each.first_byte_at, each.status = 2.0, 4.5, 200
        each.sent_at, each.ended_at, each.usage = 2.0, 5.0, Usage(output_tokens=11)
    stream.is_stream, stream.first_token_at = True, 3.0
    failed.status = 500
    for each in (stream, whole, failed):
        load.ended(each)
    assert follower.seconds == [1.0, 2.5, None]
    assert follower.paces == [0.2, 2.5 / 11, None]
