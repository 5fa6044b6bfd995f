"""A request to Weir's own batch API while it is answered: its body goes in, its answer comes out, both at the
caller's pace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass

from proxy.batch_server.incoming import IncomingBody
from proxy.core.errors import INTERNAL, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.http.head import ResponseHead
from proxy.lanes.batch.answers import Whole
from proxy.lanes.batch.task import OpenTasks

_log = logging.getLogger("weir")


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer that is sent piece by piece. `pieces` may raise ProxyError: what was begun is broken off."""

    head: ResponseHead
    pieces: AsyncIterator[bytes]


Answer = Whole | Streamed


class ApiCall:
    """A `lanes.lane.Call` whose answer is Weir's own. Work that raises ProxyError is answered with it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Exchange,
        reply: ResponseHandler,
        tasks: OpenTasks,
        body: IncomingBody,
    ) -> None:
        self._loop = loop
        self._exchange = exchange
        self._reply = reply
        self._tasks = tasks
        self._body = body
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_over = False

    def start(self, work: Awaitable[Answer]) -> None:
        """Begin."""
        self._task = self._loop.create_task(self._run(work), name=f"batch API {self._exchange.request_id}")
        self._tasks.add(self._task)

    def refuse(self, error: ProxyError) -> None:
        """Answer at once, without work and whatever of the body is still to come."""
        self._is_over = True
        self._reply.failed(error)

    def send_body(self, data: bytes) -> None:
        """Take the next bytes of the request's body."""
        if not self._is_over:
            self._body.feed(data)

    def end_body(self) -> None:
        """Take note that the body is complete."""
        self._body.end()

    def pause(self) -> None:
        """The caller does not take the answer as fast as it comes."""
        self._may_write.clear()

    def resume(self) -> None:
        """The caller takes more."""
        self._may_write.set()

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        """There is nothing to give away."""
        return None

    def cancel(self) -> None:
        """Let go: the caller is gone, or has its answer."""
        if not self._is_over:
            self._is_over = True
            if self._task is not None:
                self._task.cancel()

    async def _run(self, work: Awaitable[Answer]) -> None:
        try:
            answer = await work
            if isinstance(answer, Streamed):
                await self._stream(answer)
            else:
                self._send_head(answer[0])
                if answer[1]:
                    self._reply.body_received(answer[1])
            self._is_over = True
            self._reply.response_ended()
        except ProxyError as error:
            self._fail(error)
        except Exception as problem:
            _log.error("the batch API could not answer a request", exc_info=problem)
            self._fail(ProxyError(INTERNAL, f"Weir failed on this request ({type(problem).__name__})."))

    async def _stream(self, answer: Streamed) -> None:
        self._send_head(answer.head)
        async for data in answer.pieces:
            await self._may_write.wait()
            self._reply.body_received(data)

    def _send_head(self, head: ResponseHead) -> None:
        self._reply.head_received(head)
        # The relay takes every answer for an upstream's.
        self._exchange.upstream, self._exchange.upstream_status = "", 0

    def _fail(self, error: ProxyError) -> None:
        if not self._is_over:
            self._is_over = True
            self._exchange.upstream = ""
            self._reply.failed(error)
