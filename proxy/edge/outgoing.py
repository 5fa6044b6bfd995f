"""Work out what is sent upstream: which bytes, which framing, and how to take a rewrite back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from proxy.core.decision import Lane
from proxy.core.document import Document
from proxy.http.head import RequestHead
from proxy.http.tls import shown_certificate
from proxy.lanes.lane import Deferral, Outgoing, Pooling, Rewrite
from proxy.pipeline import Decision
from proxy.policy.model import CoalescePolicy, OnReject, Route, UsageMode
from proxy.policy.waiting import caller_patience_seconds
from proxy.upstream.pool import Pool
from proxy.upstream.request_head import BodyPlan

_DEFAULT_POOL = CoalescePolicy()
_WEBSOCKET_KEY = b"openai-insecure-api-key."


def plan_unread(head: RequestHead, body: bytes | None, pool: Pool) -> Outgoing:
    """Plan a request that no route reads. `body` is `None` when it is passed on as it comes."""
    is_chunked = b"transfer-encoding" in head.fields
    replaced = _websocket_key(head, pool) if head.upgrade else {}
    if body is None:
        plan = BodyPlan(head.content_length, is_chunked, replaced=replaced)
    else:
        announced = is_chunked or b"content-length" in head.fields
        plan = BodyPlan(len(body) if announced else None, keeps_upgrade=head.upgrade, replaced=replaced)
    return Outgoing(head, pool, body, plan)


def plan_outgoing(
    head: RequestHead,
    body: bytes,
    decision: Decision,
    is_decoded: bool,
    pool: Pool,
    caller: asyncio.BaseTransport | bytes,
) -> Outgoing:
    """Plan a request that a route has read. `is_decoded` says that its body came compressed.

    `caller` is its caller's transport, or bytes that tell its caller apart where nobody is connected.
    """
    document = decision.document
    replaced: dict[bytes, bytes | None] = {}
    route = decision.route
    asks_usage = route is not None and route.usage is UsageMode.ASK and decision.dialect is not None
    if asks_usage and decision.is_stream and b"accept-encoding" in head.fields:
        # A compressed stream could be neither read for timing nor freed of the usage event asked for.
        replaced[b"accept-encoding"] = b"identity"
    patience_seconds = _patience_seconds(head, route, pool)
    pooling = _pooling(decision, caller) if decision.lane.value is Lane.COALESCE else None
    if document is None or not document.edited:
        announced = body or b"content-length" in head.fields or b"transfer-encoding" in head.fields
        plan = BodyPlan(len(body) if announced else None, replaced=replaced)
        if is_decoded:
            # What is merged is plain; what came compressed leaves alone, as it came.
            pooling = None
        return Outgoing(head, pool, body, plan, None, patience_seconds, pooling)
    if is_decoded:
        replaced[b"content-encoding"] = None
    edited = document.to_bytes()
    rewrite = Rewrite(
        model=decision.model,
        added=decision.added,
        without=lambda params: _without(document, params),
        original=document.raw if _may_be_undone(decision) else None,
        inner=decision.inner,
        given_model=decision.given_model,
    )
    plan = BodyPlan(len(edited), replaced=replaced)
    return Outgoing(head, pool, edited, plan, rewrite, patience_seconds, pooling)


def deferred(outgoing: Outgoing, decision: Decision, keep_alive: Callable[[float], None]) -> Outgoing:
    """Return a request with what the batch lane needs to know; `keep_alive` is its caller's answer's."""
    route, document, dialect, plan = decision.route, decision.document, decision.dialect, decision.deferral
    if plan is None or route is None or route.batch is None or document is None or dialect is None:
        return outgoing
    options = document.value("stream_options")
    deferral = Deferral(
        plan=plan,
        policy=route.batch,
        route=route.name,
        dialect=dialect,
        document=document,
        model=decision.model,
        is_stream=decision.is_stream,
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        keep_alive=keep_alive,
    )
    return msgspec.structs.replace(outgoing, deferral=deferral)


def _pooling(decision: Decision, caller: asyncio.BaseTransport | bytes) -> Pooling | None:
    """Return what the coalesce lane needs to know; `None` for a body that could not be read."""
    route, document, dialect = decision.route, decision.document, decision.dialect
    if route is None or document is None or dialect is None:
        return None
    return Pooling(
        policy=route.coalesce or _DEFAULT_POOL,
        dialect=dialect,
        document=document,
        model=decision.model,
        urgency=decision.urgency.value,
        is_stream=decision.is_stream,
        asks_usage=decision.asks_usage,
        caller=caller if isinstance(caller, bytes) else shown_certificate(caller),
    )


def _without(document: Document, params: Iterable[str]) -> bytes:
    for param in params:
        document = document.delete(param)
    return document.to_bytes()


def _may_be_undone(decision: Decision) -> bool:
    """Tell whether the caller's own body may be sent to the upstream that was chosen for its request.

    Where a step chose that upstream, a rule keeps the request from the one that the body was written for.
    Without a route nothing but a wish of Weir's own has changed it.
    """
    route = decision.route
    if route is None:
        return True
    if decision.is_moved or route.enforces:
        return False
    return route.on_reject is OnReject.RESEND


def _patience_seconds(head: RequestHead, route: Route | None, pool: Pool) -> float:
    """Return how long retries may keep the caller waiting; 0 where there are none."""
    if route is None or not pool.target.upstream.retries:
        return 0.0

    def header(name: str) -> str | None:
        value = head.fields.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    return caller_patience_seconds(route, header)


def _websocket_key(head: RequestHead, pool: Pool) -> dict[bytes, bytes | None]:
    """Put the upstream's key where browsers put theirs: into an offered subprotocol."""
    offered = head.fields.get(b"sec-websocket-protocol")
    credential = pool.target.sender.credential
    if offered is None or credential is None or _WEBSOCKET_KEY not in offered:
        return {}
    key = credential[2].removeprefix(b"Bearer ")
    items = [
        _WEBSOCKET_KEY + key if item.strip().startswith(_WEBSOCKET_KEY) else item.strip()
        for item in offered.split(b",")
    ]
    return {b"sec-websocket-protocol": b", ".join(items)}
