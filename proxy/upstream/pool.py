"""Connections to one upstream, kept between requests and bounded where the policy bounds them.

The most recently used idle connection is taken first. An upstream that closes an idle connection removes it
at once; what slips through is the lanes' retry rule's business.

A request that meets a server which is just closing may have been taken by its machine and is then lost.
So a connection is not kept as long as a `Keep-Alive` field says that the server does. And since some servers
with that field close after every chunked answer all the same (llama.cpp's), their first such answers show
what they do: where they close, no connection is used again before it has stood for a while. The same holds,
for a while, of any upstream that was seen to close connections right after an answer, and not just one after
its hundredth, as many do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from proxy.core.errors import INTERNAL, UPSTREAM_BUSY, UPSTREAM_TOTAL_TIMEOUT, ProxyError
from proxy.http.client import ClientConnection
from proxy.http.deadlines import NEVER, Deadlines
from proxy.http.dial import Dial, dial
from proxy.http.limits import ClientLimits
from proxy.upstream.target import Target

_log = logging.getLogger("weir")
_MAX_WAITING = 10_000
_IDLE_SECONDS = 300.0
_KEEP_ALIVE_MARGIN_SECONDS = 1.0
_SETTLE_SECONDS = 0.1
_PROBES = 8
_EARLY_SECONDS = 0.1
"""A connection closed so soon after its answer was not closed for having been idle."""
_EARLY_WITHIN_ANSWERS = 50
"""Two such closes within so many answers: not chance, and no limit on the requests of a connection either."""
_RESTLESS_ANSWERS = 64
"""So many connections in a row have to stand before an upstream that closed one early is trusted again."""


class Lease:
    """A request's claim on a connection. `granted` or `refused` is called once, unless it is cancelled.

    `dialling` is called when a claim that had to queue gets a connection of its own after all.
    """

    __slots__ = (
        "_pool",
        "_total_deadline",
        "deadline",
        "dialling",
        "granted",
        "is_open",
        "is_queued",
        "refused",
        "task",
    )

    def __init__(
        self,
        pool: Pool,
        granted: Callable[[ClientConnection], None],
        refused: Callable[[ProxyError], None],
        dialling: Callable[[], None],
        total_deadline: float,
    ) -> None:
        self._pool = pool
        self._total_deadline = total_deadline
        self.granted = granted
        self.refused = refused
        self.dialling = dialling
        self.deadline = total_deadline
        self.task: asyncio.Task[None] | None = None
        self.is_open = True
        self.is_queued = False

    def queue_until(self, deadline: float) -> None:
        """Wait in the queue, `deadline` at the longest."""
        self.is_queued = True
        self.deadline = min(deadline, self._total_deadline)

    def dial(self) -> None:
        """Leave the queue: what bounds making a connection counts from now on."""
        self.deadline = self._total_deadline
        self.dialling()

    def close(self) -> None:
        """Take note that the claim has been answered, or that nobody waits for an answer."""
        self.is_open = False
        self._pool.forget(self)

    def cancel(self) -> None:
        """Give the claim up."""
        if self.is_open:
            self.close()

    def sweep(self, now: float) -> None:
        """Refuse a claim that has waited too long; nothing has been sent for it."""
        if now < self.deadline or not self.is_open:
            return
        self.close()
        if now >= self._total_deadline:
            message = "No connection to the upstream was free within the time for the whole exchange."
            self.refused(ProxyError(UPSTREAM_TOTAL_TIMEOUT, message))
        else:
            self.refused(_busy("All connections to the upstream were in use for too long."))


class Pool:
    """The connections to one target."""

    def __init__(
        self,
        target: Target,
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        limits: ClientLimits,
        dial: Dial = dial,
    ) -> None:
        self.target = target
        self._loop = loop
        self._deadlines = deadlines
        self._limits = limits
        self._make = dial
        self._idle: list[ClientConnection] = []
        self._settling: dict[ClientConnection, asyncio.TimerHandle] = {}
        self._outlasts_chunks: bool | None = None
        self._restless_answers = 0
        self._answers_since_early = _EARLY_WITHIN_ANSWERS
        self._open: set[ClientConnection] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._waiting: deque[Lease] = deque()
        self._is_closed = False

    def remember_habits(self, earlier: Pool) -> None:
        """Take over what an earlier pool has learnt of how the same server closes connections."""
        self._outlasts_chunks = earlier._outlasts_chunks
        self._restless_answers = earlier._restless_answers
        self._answers_since_early = earlier._answers_since_early

    @property
    def open_connections(self) -> int:
        """Connections that stand, in use or idle."""
        return len(self._open)

    @property
    def in_use(self) -> int:
        """Connections that carry a request."""
        return len(self._open) - len(self._idle) - len(self._settling)

    def take(self) -> ClientConnection | None:
        """Return an idle connection, `None` when a new one is needed."""
        if self._waiting:
            return None
        while self._idle:
            connection = self._idle.pop()
            connection.deadline = NEVER
            if not connection.transport.is_closing():
                return connection
        return None

    def ask(
        self,
        granted: Callable[[ClientConnection], None],
        refused: Callable[[ProxyError], None],
        dialling: Callable[[], None] = lambda: None,
        spent_seconds: float = 0.0,
    ) -> Lease:
        """Claim a new connection; the answer never comes before this returns.

        The claim may queue for as long as the upstream may take to its first byte, and for what
        `spent_seconds` leave of the limit on the whole exchange.
        """
        wait = self.target.wait
        lease = Lease(self, granted, refused, dialling, self._deadlines.horizon + wait.total - spent_seconds)
        if self._has_room():
            self._dial(lease)
        elif len(self._waiting) < _MAX_WAITING:
            self._waiting.append(lease)
            lease.queue_until(self._deadlines.horizon + wait.first_byte)
            if self._idle:
                # Its owner wants a fresh connection: an idle one makes room.
                self._idle.pop(0).transport.close()
        else:
            self._loop.call_soon(self._refuse, lease, _busy("Too many requests wait for this upstream."))
        if lease.deadline < NEVER:
            self._deadlines.add(lease)
        return lease

    def _has_room(self) -> bool:
        limit = self.target.upstream.max_connections
        return limit == 0 or len(self._open) + len(self._dialling) < limit

    def _dial(self, lease: Lease) -> None:
        task = self._loop.create_task(self._connect(lease), name=f"dial {self.target.name}")
        lease.task = task
        self._dialling.add(task)
        task.add_done_callback(self._dialled)

    async def _connect(self, lease: Lease) -> None:
        def make() -> ClientConnection:
            return ClientConnection(self, self._limits, self._deadlines)

        try:
            protocol = await self._make(
                self._loop, self.target.address, make, self.target.upstream.timeouts.connect
            )
        except ProxyError as error:
            self._refuse(lease, error)
            return
        except Exception as problem:
            _log.error("a connection could not be made", exc_info=problem)
            self._refuse(lease, ProxyError(INTERNAL, f"Weir failed to connect ({type(problem).__name__})."))
            return
        connection = cast(ClientConnection, protocol)
        if connection.is_closed:
            self._refuse(lease, connection.closed_before_use())
            return
        self._open.add(connection)
        if lease.is_open:
            self._grant(lease, connection)
        else:
            self.released(connection)

    def _grant(self, lease: Lease, connection: ClientConnection) -> None:
        """Hand a connection over; a request that fails on it gets an answer, not silence."""
        lease.close()
        try:
            lease.granted(connection)
        except Exception as problem:
            _log.error("a request could not be sent", exc_info=problem)
            connection.cancel()
            lease.refused(ProxyError(INTERNAL, f"Weir failed to send ({type(problem).__name__})."))

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dialling.discard(task)
        self._serve_waiting()

    def _refuse(self, lease: Lease, error: ProxyError) -> None:
        if lease.is_open:
            lease.close()
            lease.refused(error)

    def forget(self, lease: Lease) -> None:
        """Forget a claim that is over; a connection that is still being made for it ends up idle."""
        self._deadlines.discard(lease)
        if lease.is_queued:
            lease.is_queued = False
            self._waiting.remove(lease)

    def _first_waiting(self) -> Lease:
        lease = self._waiting.popleft()
        lease.is_queued = False
        return lease

    def released(self, connection: ClientConnection) -> None:
        """Take a connection back."""
        self._answers_since_early += 1
        if (self._restless_answers and not self._is_closed) or (
            self._outlasts_chunks is not True and connection.ended_in_chunks and self._must_settle(connection)
        ):
            self._settling[connection] = self._loop.call_later(_SETTLE_SECONDS, self._settled, connection)
        else:
            self._give(connection)

    def _must_settle(self, connection: ClientConnection) -> bool:
        """Tell whether a connection is to prove itself; a few are enough to learn what the upstream does."""
        if self._outlasts_chunks is None:
            return connection.keep_alive_seconds is not None and len(self._settling) < _PROBES
        return True

    def _settled(self, connection: ClientConnection) -> None:
        del self._settling[connection]
        if connection.ended_in_chunks:
            self._outlasts_chunks = True
        self._restless_answers = max(0, self._restless_answers - 1)
        self._give(connection)

    def _give(self, connection: ClientConnection) -> None:
        if self._waiting:
            self._grant(self._first_waiting(), connection)
            return
        if self._is_closed:
            connection.transport.close()
            return
        connection.deadline = self._deadlines.after(_idle_seconds(connection.keep_alive_seconds))
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def lost(self, connection: ClientConnection) -> None:
        """Forget a closed connection and let a waiting request have its place."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            if not self._is_closed and self._loop.time() - connection.idle_since < _EARLY_SECONDS:
                self._closed_early(connection)
        timer = self._settling.pop(connection, None)
        if timer is not None:
            timer.cancel()
            self._closed_early(connection)
        self._serve_waiting()

    def _closed_early(self, connection: ClientConnection) -> None:
        """Learn from a connection that was closed right after its answer."""
        if connection.ended_in_chunks and connection.keep_alive_seconds is not None:
            # What such servers do after chunked answers says nothing about their others.
            self._outlasts_chunks = False
            return
        if self._answers_since_early < _EARLY_WITHIN_ANSWERS:
            self._restless_answers = _RESTLESS_ANSWERS
        self._answers_since_early = 0

    def _serve_waiting(self) -> None:
        while self._waiting and self._has_room():
            lease = self._first_waiting()
            lease.dial()
            self._dial(lease)

    def close(self) -> None:
        """Close idle connections now and the others when their request ends."""
        self._is_closed = True
        for connection in (*self._idle, *self._settling):
            connection.transport.close()


def _busy(message: str) -> ProxyError:
    return ProxyError(UPSTREAM_BUSY, message, retry_after_seconds=1)


def _idle_seconds(kept_seconds: float | None) -> float:
    """Return how long to keep a connection that its server keeps for `kept_seconds`."""
    if kept_seconds is None:
        return _IDLE_SECONDS
    return min(_IDLE_SECONDS, max(kept_seconds - _KEEP_ALIVE_MARGIN_SECONDS, kept_seconds / 2))
