"""A request that is answered by work of Weir's own, in a task, or after all sent to the upstream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from proxy.core.errors import INTERNAL, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.lanes.batch.answers import Whole
from proxy.lanes.batch.onward import Onward
from proxy.lanes.lane import Lane, Outgoing

_log = logging.getLogger("weir")

Result = Whole | ProxyError | Outgoing | None
"""An answer, a failure, or a request that is sent direct: another one, or with `None` the caller's own."""


class OpenTasks:
    """The tasks of lanes that talk to the store: it is closed only when they are over."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Note a task until it is over."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, seconds: float) -> None:
        """Wait for those that end by themselves, and cancel the others."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class AnswerCall(Onward):
    """Runs the work and tells the caller what comes of it. A body that is streamed waits for the way out."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        direct: Lane,
        outgoing: Outgoing,
        exchange: Exchange,
        reply: ResponseHandler,
        tasks: OpenTasks,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._tasks = tasks
        self._direct = direct
        self._outgoing = outgoing
        self._exchange = exchange
        self._reply = reply
        self._task: asyncio.Task[Result] | None = None
        self._is_over = False
        self._pieces: list[bytes] = []
        self._is_body_ended = False

    def start(self, work: Coroutine[Any, Any, Result]) -> None:
        """Begin."""
        name = f"answer {self._exchange.request_id}"
        self._task = self._loop.create_task(work, name=name)
        self._tasks.add(self._task)
        self._task.add_done_callback(self._done)

    def send_body(self, data: bytes) -> None:
        """Pass a streamed body on, once it is known whereto."""
        if self._own is not None:
            self._own.send_body(data)
        elif not self._is_over:
            self._pieces.append(data)
            self._reply.upstream_writable(False)

    def end_body(self) -> None:
        """End a streamed body."""
        self._is_body_ended = True
        if self._own is not None:
            self._own.end_body()

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        """Give the upstream's transport away after a 101."""
        return None if self._own is None else self._own.detach()

    def cancel(self) -> None:
        """Let go: the caller is gone, or has its answer."""
        self._let_go()
        if not self._is_over and self._task is not None:
            self._is_over = True
            self._task.cancel()

    def _done(self, task: asyncio.Task[Result]) -> None:
        if task.cancelled() or self._is_over:
            return
        self._is_over = True
        problem = task.exception()
        result: Result
        if problem is not None:
            _log.error("a question about a job could not be answered", exc_info=problem)
            result = ProxyError(INTERNAL, f"Weir failed on this request ({type(problem).__name__}).")
        else:
            result = task.result()
        match result:
            case ProxyError():
                self._reply.failed(result)
            case Outgoing():
                self._send(result)
            case None:
                self._send(self._outgoing)
            case head, body:
                self._reply.head_received(head)
                self._exchange.upstream, self._exchange.upstream_status = "", 0
                if body:
                    self._reply.body_received(body)
                self._reply.response_ended()

    def _send(self, outgoing: Outgoing) -> None:
        call = self._go_onward(self._direct, outgoing, self._exchange, self._reply)
        pieces, self._pieces = self._pieces, []
        for data in pieces:
            call.send_body(data)
        if self._is_body_ended and outgoing.body is None:
            call.end_body()
