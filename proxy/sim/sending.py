"""Sending an answer at its pace, with the faults that were asked for.

It owns the response object on the wire: event streams and buffered JSON. It refuses to know API shapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from aiohttp import web
from multidict import CIMultiDict

from proxy.sim.scenario import Faults
from proxy.sim.timing import Pace
from proxy.sim.work import Event

_COMMENT = b": simulated keep-alive\n\n"


@dataclass(slots=True)
class Progress:
    """How far an answer has got: what may be billed if it breaks off here."""

    has_begun: bool = False
    last_step: int = -1
    sent_events: int = 0
    faults_done: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends one answer to one caller. `on_begin` is called once, when the answer begins to be written."""

    request: web.Request
    headers: Sequence[tuple[str, str]]
    pace: Pace
    faults: Faults
    progress: Progress
    on_begin: Callable[[], None]

    async def send_events(
        self, events: Iterable[Event], error_event: Callable[[int], bytes]
    ) -> web.StreamResponse:
        """Send an event stream; `error_event` makes the one that a fault asks for."""
        response = self._head("text/event-stream; charset=utf-8")
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Accel-Buffering"] = "no"
        await self.pace.wait_for_head()
        if self.faults.cut_after == 0:
            return self._cut(response)
        await response.prepare(self.request)
        for event in events:
            if not event.opening or self.faults.head_ms is None:
                await self.pace.wait_for_step(event.step)
            if await self._is_over(response, error_event):
                return response
            if event.closing and self.faults.end_without_done:
                self.progress.faults_done.append("end_without_done")
                break
            await response.write(event.raw)
            await self._note_sent(response, event)
        if not await self._is_over(response, error_event):
            await response.write_eof()
        return response

    async def _note_sent(self, response: web.StreamResponse, event: Event) -> None:
        self._begin()
        self.progress.sent_events += 1
        if not event.opening:
            self.progress.last_step = max(self.progress.last_step, event.step)
        every = self.faults.comment_every
        if every is not None and self.progress.sent_events % every == 0:
            await response.write(_COMMENT)

    async def _is_over(self, response: web.StreamResponse, error_event: Callable[[int], bytes]) -> bool:
        """Do the fault that is due after so many events, if one is; tell whether the answer ends with it."""
        sent = self.progress.sent_events
        if self.faults.stall_after == sent:
            await self._stall()
        if self.faults.error_event_after == sent:
            self.progress.faults_done.append("error_event_after")
            await response.write(error_event(sent))
            await response.write_eof()
            return True
        if self.faults.cut_after == sent:
            self._cut(response)
            return True
        return False

    async def send_whole(
        self, body: bytes, last_step: int, content_type: str = "application/json"
    ) -> web.StreamResponse:
        """Send a buffered answer once its last token is due; a cut leaves out the second half of the body."""
        response = self._head(content_type)
        response.content_length = len(body)
        if self.faults.head_ms is not None and self.faults.cut_after != 0:
            await self.pace.wait_for_head()
            await response.prepare(self.request)
        await self.pace.wait_for_step(0)
        self._begin()
        await self.pace.wait_for_step(last_step)
        if self.faults.stall_after is not None:
            await self._stall()
        if self.faults.cut_after == 0:
            return self._cut(response)
        self.progress.last_step = last_step
        await response.prepare(self.request)
        if self.faults.cut_after is not None:
            await response.write(body[: len(body) // 2])
            return self._cut(response)
        await response.write(body)
        await response.write_eof()
        return response

    async def finish_unsent(self, last_step: int) -> None:
        """Do all that an answer takes but sending it."""
        await self.pace.wait_for_step(last_step)
        self._begin()
        self.progress.last_step = last_step

    def _begin(self) -> None:
        if not self.progress.has_begun:
            self.progress.has_begun = True
            self.on_begin()

    def _head(self, content_type: str) -> web.StreamResponse:
        response = web.StreamResponse(headers=CIMultiDict(self.headers))
        response.headers["Content-Type"] = content_type
        return response

    def _cut(self, response: web.StreamResponse) -> web.StreamResponse:
        """Close the connection as it stands: what was written still goes out, no proper end follows."""
        self.progress.faults_done.append("cut_after")
        cut(self.request)
        return response

    async def _stall(self) -> None:
        self.progress.faults_done.append("stall_after")
        await asyncio.Event().wait()


def cut(request: web.Request) -> None:
    """Close the caller's connection without a proper end of the answer."""
    if request.transport is not None:
        request.transport.close()
