"""Serve an aiohttp application in a thread, for callers that are no coroutines.

with served_app(server.app()) as origin: ...
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from tests.support.job_worker import serving

START_SECONDS = 10.0


@contextmanager
def served_app(app: web.Application) -> Iterator[str]:
    """Serve until the block ends; give the origin."""
    loop = asyncio.new_event_loop()
    is_over = asyncio.Event()
    is_up = threading.Event()
    origins: list[str] = []

    async def serve() -> None:
        async with serving(app) as origin:
            origins.append(origin)
            is_up.set()
            await is_over.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            is_up.set()
            loop.close()

    thread = threading.Thread(target=run, name="served application", daemon=True)
    thread.start()
    assert is_up.wait(START_SECONDS)
    assert origins, "it did not start"
    try:
        yield origins[0]
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(START_SECONDS)
        assert not thread.is_alive()
