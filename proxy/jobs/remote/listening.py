"""Words of other processes over pub/sub: which jobs have ended, and that there is work.

Owns one subscription, for as long as somebody waits. Word may get lost while it is broken: afterwards
everybody looks for himself.
"""

from __future__ import annotations

import asyncio

from proxy.jobs.remote.client import RedisClient
from proxy.jobs.store import StoreUnavailable
from proxy.jobs.waiting import Waiting

_AGAIN_SECONDS = 0.5
_CANCEL_SECONDS = 0.1


class Listener:
    """Listens on the channels of one namespace and tells the waiters."""

    def __init__(self, client: RedisClient, prefix: str, waiting: Waiting) -> None:
        self._client = client
        self._ended = f"{prefix}ended"
        self._work = f"{prefix}work"
        self._waiting = waiting
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen from now on, if it does not yet."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="weir-jobs-listener")

    async def stop(self) -> None:
        """Listen no more."""
        if self._task is not None:
            # The client swallows a cancellation now and then.
            while not self._task.done():
                self._task.cancel()
                await asyncio.wait((self._task,), timeout=_CANCEL_SECONDS)
            self._task = None

    async def _listen(self) -> None:
        is_late = False
        while True:
            try:
                async with self._client.listening(self._ended, self._work) as messages:
                    # Jobs may have ended before we heard of it; work is looked for before it is waited for.
                    self._waiting.ended(self._waiting.job_ids)
                    if is_late:
                        self._waiting.has_work()
                    is_late = True
                    async for channel, data in messages:
                        if channel == self._ended:
                            self._waiting.ended(data.decode().split(" "))
                        else:
                            self._waiting.has_work()
            except StoreUnavailable:
                # Whoever asks the store itself is told; here one can only try again.
                await asyncio.sleep(_AGAIN_SECONDS)
