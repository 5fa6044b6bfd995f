"""A body that comes and is read at two paces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from proxy.batch_server.incoming import IncomingBody
from proxy.core.errors import BODY_TOO_LARGE, ProxyError

T = TypeVar("T")
KIB = 1024


def _run(test: Callable[[], Awaitable[T]]) -> T:
    async def run() -> T:
        return await asyncio.wait_for(test(), 5)

    return asyncio.run(run())


def test_gives_what_came_in_order() -> None:
    async def test() -> tuple[bytes, bytes, bytes, bytes]:
        body = IncomingBody(lambda is_writable: None, 100)
        body.feed(b"abc")
        first = await body.read(2)
        body.feed(b"d\nef")
        line = await body.readline()
        body.end()
        return first, line, await body.read(), await body.read()

    assert _run(test) == (b"ab", b"cd\n", b"ef", b"")


def test_a_reader_waits_for_what_is_to_come() -> None:
    async def test() -> tuple[bytes, bytes, bool]:
        body = IncomingBody(lambda is_writable: None, 100)
        loop = asyncio.get_running_loop()
        reading = loop.create_task(body.readline())
        await asyncio.sleep(0)
        body.feed(b"no end")
        await asyncio.sleep(0)
        assert not reading.done()
        body.feed(b" yet\nrest")
        line = await reading
        body.end()
        return line, await body.readline(), body.at_eof()

    assert _run(test) == (b"no end yet\n", b"rest", True)


def test_asks_its_caller_to_wait_and_to_go_on() -> None:
    async def test() -> list[bool]:
        asked: list[bool] = []
        body = IncomingBody(asked.append, 10 * 1024 * KIB)
        body.feed(b"x" * (600 * KIB))
        body.feed(b"x")
        assert asked == [False]
        await body.read(500 * KIB)
        return asked

    assert _run(test) == [False, True]


def test_what_is_too_large_is_refused_once_the_rest_is_read() -> None:
    async def test() -> bytes:
        body = IncomingBody(lambda is_writable: None, 10)
        body.feed(b"x" * 10)
        body.feed(b"x")
        body.end()
        first = await body.read()
        with pytest.raises(ProxyError) as refused:
            await body.read()
        assert refused.value.kind is BODY_TOO_LARGE
        with pytest.raises(ProxyError):
            await body.readline()
        return first

    assert _run(test) == b"x" * 10


def test_a_reader_that_waits_hears_of_too_much() -> None:
    async def test() -> None:
        body = IncomingBody(lambda is_writable: None, 3)
        reading = asyncio.get_running_loop().create_task(body.read_all())
        await asyncio.sleep(0)
        body.feed(b"four")
        with pytest.raises(ProxyError):
            await reading

    _run(test)


@pytest.mark.parametrize("rest", [b"", b"\n"])
def test_a_line_has_a_bound(rest: bytes) -> None:
    async def test() -> None:
        body = IncomingBody(lambda is_writable: None, 100)
        body.feed(b"x" * 20 + rest)
        with pytest.raises(ValueError, match="too long"):
            await body.readline(max_line_length=10)

    _run(test)


def test_lines_are_counted() -> None:
    count = 1000

    async def test() -> None:
        body = IncomingBody(lambda is_writable: None, 5000)
        body.feed(b"\n" * (count + 1))
        for _ in range(count):
            assert await body.readline() == b"\n"
        with pytest.raises(ValueError, match="too many"):
            await body.readline()

    _run(test)


def test_what_is_put_back_comes_first() -> None:
    async def test() -> bytes:
        body = IncomingBody(lambda is_writable: None, 100)
        body.feed(b"two")
        body.unread_data(b"one ")
        body.end()
        return await body.read_all()

    assert _run(test) == b"one two"
