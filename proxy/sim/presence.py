"""Whether the caller is still there, and what happens when it is not.

It owns one task that looks at all open connections many times a second and ends the work for those that
closed. (aiohttp by default lets a handler run on after its caller has gone; a provider that bills does
not.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

_LOOK_EVERY_SECONDS = 0.02


class CallerGone(Exception):
    """The caller closed its connection, or the provider is shutting down, before the answer was out."""


class Presence:
    """The callers being served. `is_closing` is true once the provider shuts down."""

    def __init__(self) -> None:
        self._watched: dict[asyncio.Timeout, web.Request] = {}
        self.is_closing = False

    @asynccontextmanager
    async def watch(self, request: web.Request) -> AsyncIterator[None]:
        """End the body of this context with CallerGone once `request`'s caller has left."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._watched[scope] = request
                try:
                    yield
                except ConnectionError:
                    raise CallerGone from None
                finally:
                    del self._watched[scope]
        except TimeoutError:
            if scope.expired():
                raise CallerGone from None
            raise

    async def look_out(self) -> None:
        """Look for callers that have left, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            for scope, request in list(self._watched.items()):
                if request.transport is None or request.transport.is_closing():
                    self._end(scope)

    def close(self) -> None:
        """End all work now."""
        self.is_closing = True
        for scope in list(self._watched):
            self._end(scope)

    def _end(self, scope: asyncio.Timeout) -> None:
        if not scope.expired() and scope.when() is None:
            scope.reschedule(asyncio.get_running_loop().time())
