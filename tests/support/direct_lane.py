"""The direct lane's twin in memory: a test answers what was carried, and reads what was asked of each call.

direct = DirectTwin(clock)
carrier.carry(key, pooling, outgoing, exchange, reply)
direct.calls[0].answer(json_head(), b"{}")
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from proxy.core.clock import ManualClock
from proxy.core.decision import Urgency
from proxy.core.document import Document
from proxy.core.errors import ProxyError
from proxy.core.exchange import Exchange
from proxy.core.upstream import Provider, Upstream
from proxy.dialects.chat import CHAT
from proxy.dialects.dialect import Dialect
from proxy.http.client import ResponseHandler
from proxy.http.deadlines import Deadlines
from proxy.http.head import Header, RequestHead, ResponseHead
from proxy.http.limits import ClientLimits
from proxy.lanes.lane import Call, Outgoing, Pooling, Rewrite
from proxy.policy.model import CoalescePolicy
from proxy.upstream.pool import Pool
from proxy.upstream.request_head import BodyPlan
from proxy.upstream.target import make_target


@dataclass
class DirectCall:
    """One request that the lane was given."""

    outgoing: Outgoing
    exchange: Exchange
    reply: ResponseHandler
    is_paused: bool = False
    is_cancelled: bool = False
    pauses: int = 0

    def send_body(self, data: bytes) -> None:
        raise AssertionError("pooled bodies are whole")

    def end_body(self) -> None:
        raise AssertionError("pooled bodies are whole")

    def pause(self) -> None:
        self.pauses += not self.is_paused
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        return None

    def cancel(self) -> None:
        self.is_cancelled = True

    # --- the test's side ---

    def head(self, head: ResponseHead) -> None:
        self.reply.head_received(head)

    def data(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.is_cancelled:
                self.reply.body_received(piece)

    def end(self) -> None:
        if not self.is_cancelled:
            self.reply.response_ended()

    def fail(self, error: ProxyError) -> None:
        if not self.is_cancelled:
            self.reply.failed(error)

    def answer(self, head: ResponseHead, *pieces: bytes) -> None:
        """Give a whole answer."""
        self.head(head)
        self.data(*pieces)
        self.end()


@dataclass
class DirectTwin:
    """A lane that only notes; a request counts as sent when it is carried."""

    clock: ManualClock
    calls: list[DirectCall] = field(default_factory=list)
    fails_with: ProxyError | None = None
    raises: Exception | None = None
    raises_once: bool = False

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        problem = self.raises
        if problem is not None:
            self.raises = None if self.raises_once else problem
            raise problem
        call = DirectCall(outgoing, exchange, reply)
        self.calls.append(call)
        if self.fails_with is not None:
            reply.failed(self.fails_with)
        else:
            exchange.sent_at = self.clock.monotonic()
        return call


def pool(loop: asyncio.AbstractEventLoop, clock: ManualClock, provider: Provider = Provider.OPENAI) -> Pool:
    """Return connections to an upstream that nobody connects to."""
    upstream = Upstream("up", "http://127.0.0.1:9/v1", provider=provider)
    return Pool(make_target(upstream, {}), loop, Deadlines(loop, clock), ClientLimits())


def outgoing(
    pool: Pool,
    body: bytes,
    dialect: Dialect = CHAT,
    policy: CoalescePolicy | None = None,
    urgency: Urgency = Urgency.SOON,
    rewrite: Rewrite | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    asks_usage: bool = False,
) -> Outgoing:
    """Return a request as the edge plans it, with what the coalesce lane knows about it."""
    document = Document.parse(body)
    lines: list[Header] = [(b"host", b"Host", b"weir.test")]
    lines += [(name.lower(), name, value) for name, value in headers]
    pooling = Pooling(
        policy=policy or CoalescePolicy(),
        dialect=dialect,
        document=document,
        model=str(document.value("model")),
        urgency=urgency,
        is_stream=dialect.is_stream(document),
        asks_usage=asks_usage,
    )
    head = RequestHead(b"POST", dialect.path.encode(), "1.1", lines)
    return Outgoing(head, pool, body, BodyPlan(len(body)), rewrite, 60.0, pooling)


def json_head(*headers: tuple[bytes, bytes], status: int = 200) -> ResponseHead:
    """Return the head of a JSON answer."""
    return _head(b"application/json", headers, status)


def stream_head(*headers: tuple[bytes, bytes], status: int = 200) -> ResponseHead:
    """Return the head of an event stream."""
    return _head(b"text/event-stream", headers, status)


def _head(kind: bytes, headers: tuple[tuple[bytes, bytes], ...], status: int) -> ResponseHead:
    lines: list[Header] = [(b"content-type", b"Content-Type", kind)]
    lines += [(name.lower(), name, value) for name, value in headers]
    return ResponseHead(status, b"OK" if status < 300 else b"No", lines)
