"""Keeping long counts off the event loop.

Owns the decision by size: what is short runs where it is, what is long goes to the executor that the
caller passes in (tiktoken releases the GIL while it encodes). Refuses to own threads and to count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from proxy.tokens.port import Count, Counter

INLINE_BYTES = 16 * 1024
"""Up to here counting takes about a millisecond, less than a trip to a thread under load may cost."""

_INLINE_HASH_BYTES = 1024 * 1024

Result = TypeVar("Result")


async def count_in_thread(work: Callable[[], Result], pending_bytes: int, executor: Executor) -> Result:
    """Run `work` here if it is small, else in `executor`; `pending_bytes` is what it would have to count.

    Runs here too when the executor has been shut down already. Whatever `work` raises is raised.
    """
    if pending_bytes <= INLINE_BYTES:
        return work()
    try:
        future = asyncio.get_running_loop().run_in_executor(executor, work)
    except RuntimeError:
        return work()
    return await future


async def count_text(counter: Counter, text: str, model: str, executor: Executor) -> Count:
    """Count one text, on the loop only when it is short."""
    return await count_in_thread(lambda: counter.count_text(text, model), len(text), executor)


async def count_messages(
    counter: Counter, raws: Sequence[bytes], model: str, executor: Executor
) -> tuple[Count, ...]:
    """Count messages in one trip at most, and leave them in the counter's cache.

    Only what the cache does not hold decides where it runs, so a growing conversation stays on the loop;
    beyond a MiB even looking (hashing) is left to the thread.
    """
    pending_bytes = sum(map(len, raws))
    if pending_bytes <= _INLINE_HASH_BYTES:
        pending_bytes = counter.uncached_bytes(raws, model)
    return await count_in_thread(
        lambda: tuple(counter.count_message(raw, model) for raw in raws), pending_bytes, executor
    )
