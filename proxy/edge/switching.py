"""After a 101: answer the caller's handshake, join the two sockets, account for what flows through them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.core.exchange import Exchange
from proxy.edge.context import HandlerContext
from proxy.edge.report import report_headers
from proxy.edge.response_head import write_handshake
from proxy.http import tunnel
from proxy.http.head import ResponseHead
from proxy.http.server import ServerConnection
from proxy.policy.model import HeaderLevel


def open_tunnel(
    context: HandlerContext,
    connection: ServerConnection,
    head: ResponseHead,
    upstream: tuple[asyncio.Transport, bytes],
    exchange: Exchange,
    record: Callable[[], None],
) -> None:
    """Join caller and upstream; `upstream` is its transport and what followed its head.

    `record` is called once, when both sides are closed.
    """
    exchange.status = 101
    report = report_headers(exchange, HeaderLevel.FULL, context.clock.monotonic(), head)
    connection.write(write_handshake(head, report))
    downstream, early = connection.detach()
    ends = {downstream, upstream[0]}
    context.tunnels.update(ends)

    def closed(downstream_bytes: int, upstream_bytes: int) -> None:
        context.tunnels.difference_update(ends)
        exchange.request_bytes = downstream_bytes
        exchange.response_bytes = upstream_bytes
        record()

    tunnel.join(
        downstream,
        upstream[0],
        early,
        upstream[1],
        context.deadlines,
        context.limits.write_stall,
        closed,
    )
