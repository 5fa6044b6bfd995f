"""The contract between the edge and a lane: what is carried, what comes back, what may be asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from proxy.core.decision import Urgency
from proxy.core.document import Document
from proxy.core.exchange import Exchange
from proxy.dialects.dialect import Dialect
from proxy.http.client import ResponseHandler
from proxy.http.head import RequestHead
from proxy.lanes.batch.plan import DeferralPlan
from proxy.policy.model import BatchPolicy, CoalescePolicy
from proxy.upstream.pool import Pool
from proxy.upstream.request_head import BodyPlan


class Rewrite(msgspec.Struct, frozen=True):
    """How to take back what a policy changed, should the upstream refuse it.

    `added` names parameters that the caller had not sent, `inner` members put deeper into what it did send.
    `without(params)` is the body less some of `added`. `original` is the body as the caller wrote it, `None`
    where it must not be sent: it would undo a limit, or go to an upstream that it was not written for.
    `model` is the one that is asked, `given_model` the caller's.
    """

    model: str
    added: frozenset[str]
    without: Callable[[Iterable[str]], bytes]
    original: bytes | None
    inner: frozenset[str] = frozenset()
    given_model: str = ""


class Pooling(msgspec.Struct, frozen=True):
    """What a lane that carries requests together has to know about one besides its bytes.

    `document` is the body as it is sent (never compressed), `asks_usage` says that its stream's usage event
    was asked for on Weir's behalf. `caller` tells callers apart that not even their credentials do: it is
    made from the certificate that the caller showed, and empty for none.
    """

    policy: CoalescePolicy
    dialect: Dialect
    document: Document
    model: str
    urgency: Urgency
    is_stream: bool
    asks_usage: bool
    caller: bytes = b""


class Deferral(msgspec.Struct, frozen=True):
    """What the batch lane has to know about a request besides its bytes.

    `document` is the body as it is sent (never compressed). `wants_usage` says that its stream is to have a
    usage event. `keep_alive` begins the caller's answer and gives it signs of life every so many seconds.
    """

    plan: DeferralPlan
    policy: BatchPolicy
    route: str
    dialect: Dialect
    document: Document
    model: str
    is_stream: bool
    wants_usage: bool
    keep_alive: Callable[[float], None]


class Outgoing(msgspec.Struct, frozen=True):
    """A request on its way. `body` is `None` when it is streamed through `Call.send_body`."""

    head: RequestHead
    pool: Pool
    body: bytes | None
    plan: BodyPlan
    rewrite: Rewrite | None = None
    patience_seconds: float = 60.0
    pooling: Pooling | None = None
    deferral: Deferral | None = None


class Call(Protocol):
    """A request being carried."""

    def send_body(self, data: bytes) -> None:
        """Send the next bytes of a streamed body."""
        ...

    def end_body(self) -> None:
        """End a streamed body."""
        ...

    def pause(self) -> None:
        """Stop reading the answer for now."""
        ...

    def resume(self) -> None:
        """Read the answer again."""
        ...

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        """After a 101: give the upstream's transport away, with the bytes that followed its head."""
        ...

    def cancel(self) -> None:
        """Give up: the caller is gone. Nothing is told to the reply any more."""
        ...


class Lane(Protocol):
    """A way to carry requests."""

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Send the request; `reply` is told what comes back, possibly before this returns."""
        ...
