"""Answer with an error of Weir's own, before anything was sent upstream."""

from __future__ import annotations

from proxy.core.errors import ProxyError
from proxy.core.exchange import Exchange
from proxy.edge.errors import error_body, error_response
from proxy.edge.report import report_headers
from proxy.http.head import RequestHead
from proxy.http.server import ServerConnection
from proxy.policy.model import HeaderLevel
from proxy.policy.rewriting import PolicyRefusal


def write_refusal(
    connection: ServerConnection, head: RequestHead, exchange: Exchange, error: ProxyError, now: float
) -> bool:
    """Write the error, note it in the exchange, and return whether the connection may go on after it."""
    exchange.error = error.kind.code
    exchange.status = error.kind.status
    if isinstance(error, PolicyRefusal):
        exchange.route, exchange.model, exchange.steps = error.route, error.model, error.steps
    may_stay = exchange.read_at > 0 and not connection.closes_next
    keep_alive = may_stay and head.keep_alive and head.version == "1.1"
    report = report_headers(exchange, HeaderLevel.FULL, now, None)
    is_head = exchange.method == "HEAD"
    exchange.response_bytes = 0 if is_head else len(error_body(error))
    connection.write(error_response(error, report, keep_alive, is_head))
    return keep_alive
