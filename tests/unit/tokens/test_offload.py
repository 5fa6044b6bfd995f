from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.tokens.counter import TokenCounter
from proxy.tokens.offload import INLINE_BYTES, count_in_thread, count_messages, count_text
from proxy.tokens.port import EncodingName

LONG = "several words " * 2_000


class Whereabouts:
    """An encoder that remembers the threads which used it."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def encode_ordinary(self, text: str) -> list[int]:
        self.threads.add(threading.get_ident())
        return [0] * (len(text) // 4)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def encoder() -> Whereabouts:
    return Whereabouts()


@pytest.fixture
def counter(encoder: Whereabouts) -> TokenCounter:
    return TokenCounter(dict.fromkeys(EncodingName, encoder))


def _message(text: str) -> bytes:
    return b'{"role":"user","content":"' + text.encode() + b'"}'


def test_short_text_is_counted_on_the_loop(
    counter: TokenCounter, encoder: Whereabouts, executor: ThreadPoolExecutor
) -> None:
    count = asyncio.run(count_text(counter, "short", "gpt-4o", executor))
    assert count.tokens == 1
    assert encoder.threads == {threading.get_ident()}


def test_long_text_is_counted_in_a_thread(
    counter: TokenCounter, encoder: Whereabouts, executor: ThreadPoolExecutor
) -> None:
    assert len(LONG) > INLINE_BYTES
    count = asyncio.run(count_text(counter, LONG, "gpt-4o", executor))
    assert count == counter.count_text(LONG, "gpt-4o")
    assert threading.get_ident() in encoder.threads
    assert len(encoder.threads) == 2


def test_only_new_messages_make_a_conversation_long(
    counter: TokenCounter, encoder: Whereabouts, executor: ThreadPoolExecutor
) -> None:
    old = [_message(LONG), _message("more")]

    async def two_turns() -> None:
        first = await count_messages(counter, old, "gpt-4o", executor)
        assert threading.get_ident() not in encoder.threads
        second = await count_messages(counter, [*old, _message("new")], "gpt-4o", executor)
        assert second[:2] == first

    asyncio.run(two_turns())
    assert threading.get_ident() in encoder.threads


def test_the_loop_runs_while_a_thread_counts(executor: ThreadPoolExecutor) -> None:
    async def race() -> str:
        released = threading.Event()
        counting = asyncio.ensure_future(
            count_in_thread(lambda: released.wait(5) and "counted", INLINE_BYTES + 1, executor)
        )
        await asyncio.sleep(0)
        released.set()
        return str(await counting)

    assert asyncio.run(race()) == "counted"


def test_counts_here_when_the_threads_have_gone(counter: TokenCounter) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    assert asyncio.run(count_text(counter, LONG, "gpt-4o", executor)).tokens == len(LONG) // 4


def test_raises_what_the_work_raises(executor: ThreadPoolExecutor) -> None:
    def work() -> None:
        raise RuntimeError("from the work")

    for size_bytes in (0, INLINE_BYTES + 1):
        with pytest.raises(RuntimeError, match="from the work"):
            asyncio.run(count_in_thread(work, size_bytes, executor))
