"""One line, once: decide about it with the policies in force, send it, collect its answer, record it.

Owns what makes a line a request like any other. Refuses to try again and to know when it is its turn: that
is the business of `run` and `gate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Protocol

import msgspec

from proxy.batch_server.line_reply import MAX_ANSWER_BYTES, Reply
from proxy.batch_server.line_values import Elsewhere, LineAnswer, Sender
from proxy.batch_server.lines import InputLine
from proxy.core.clock import Clock
from proxy.core.decision import Lane, LaneDecision, Urgency, UrgencyDecision
from proxy.core.document import Document, DocumentError, TooManyParts
from proxy.core.errors import INTERNAL, TOO_MANY_REQUESTS, UPSTREAM_PROTOCOL, ProxyError
from proxy.core.exchange import Exchange
from proxy.core.upstream import Provider
from proxy.dialects import dialect_for_path
from proxy.edge.context import Routing
from proxy.edge.deciding import LONG_BODY_BYTES, takes_long
from proxy.edge.errors import error_body
from proxy.edge.learnt import note_body
from proxy.edge.outgoing import plan_outgoing
from proxy.edge.request_body import decode_body
from proxy.http.head import Header, RequestHead, ResponseHead
from proxy.lanes.lane import Lane as LanePort
from proxy.lanes.lane import Outgoing
from proxy.lanes.take_back import ORIGINAL
from proxy.observe.recorder import Recorder
from proxy.pipeline import Decision, Request
from proxy.policy.model import Route
from proxy.policy.rewriting import PolicyRefusal
from proxy.upstream.providers.answers import retry_after_seconds
from proxy.upstream.refusals import Refusals

CUT_OFF = "line_cut_off"
"""What the access log calls a line that was given up while its upstream worked on it."""

GAVE_WAY = "line_gave_way"
"""What it is called when that was for a caller's request: the message of the cancellation."""

_PRIORITY = "priority"
_REASON = "a line of a batch"
_DEFERRABLE = UrgencyDecision(Urgency.DEFERRABLE, _REASON)
_STREAMED = LaneDecision(Lane.STREAM, _REASON)
_REQUEST_IDS = (b"x-request-id", b"request-id")


class Carriage(Protocol):
    """What requests are carried with in this process: `edge.service.EdgeService`."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    recorder: Recorder
    routing: Routing
    lanes: Mapping[Lane, LanePort]

    def next_request_id(self) -> str:
        """Return an id for a new exchange."""
        ...

    def enter_route(self, route: Route) -> bool:
        """Claim one of the route's places; `False` when all are taken."""
        ...

    def leave_route(self, route: Route) -> None:
        """Give the place back."""
        ...


class LineCaller:
    """Sends lines. Whoever gives one up cancels its task. `threads` are for what takes long."""

    def __init__(self, carriage: Carriage, refusals: Refusals, threads: Executor) -> None:
        self._carriage = carriage
        self._refusals = refusals
        self._threads = threads

    async def call(
        self, sender: Sender, line: InputLine, body: bytes, expected: str
    ) -> LineAnswer | Elsewhere:
        """Send a line and return its answer; `Elsewhere` unless it goes to the upstream `expected`."""
        carriage = self._carriage
        exchange = Exchange(carriage.next_request_id(), carriage.clock.monotonic())
        exchange.method, exchange.path = "POST", sender.endpoint
        exchange.batch_line = (sender.batch_id, line.number + 1)
        exchange.request_bytes = len(body)
        exchange.read_at = exchange.started_at
        head = _head(sender, len(body))
        routing = carriage.routing
        exchange.policy_version = routing.pipeline.policies.version
        decided: Decision | ProxyError
        try:
            decided = await self._decide(routing, head, sender.endpoint, body, line.model)
        except ProxyError as refusal:
            decided = refusal
        if isinstance(decided, Decision) and decided.upstream.name != expected:
            return Elsewhere(decided.upstream.name)
        carriage.recorder.begun()
        try:
            if isinstance(decided, ProxyError):
                return _refused(decided, exchange, expected)
            return await self._send(routing, head, body, decided, exchange, sender)
        except asyncio.CancelledError as cancelled:
            exchange.error = GAVE_WAY if cancelled.args == (GAVE_WAY,) else CUT_OFF
            raise
        finally:
            exchange.ended_at = exchange.ended_at or carriage.clock.monotonic()
            exchange.measure_overhead(exchange.ended_at)
            carriage.recorder.record(exchange)

    # ---- deciding

    async def _decide(
        self, routing: Routing, head: RequestHead, path: str, body: bytes, model: str
    ) -> Decision:
        def header(name: str) -> str | None:
            value = head.fields.get(name.encode("latin-1"))
            return None if value is None else value.decode("latin-1")

        pipeline = routing.pipeline
        candidates = pipeline.candidates("POST", path, header)
        request = Request("POST", path, header, body, urgency=_DEFERRABLE)

        def decide() -> Decision:
            decision = self._prioritized(pipeline.decide(request, candidates), body, model)
            if decision.document is not None and decision.document.edited:
                # What it is spliced to is asked for again on the loop, and known then.
                decision.document.to_bytes()
            return decision

        if takes_long(head, body, candidates):
            decision = await self._carriage.loop.run_in_executor(self._threads, decide)
        else:
            decision = decide()
        lane = decision.lane if decision.lane.value is Lane.COALESCE else _STREAMED
        return msgspec.structs.replace(decision, lane=lane, urgency=_DEFERRABLE, deferral=None)

    def _prioritized(self, decision: Decision, body: bytes, model: str) -> Decision:
        """Add the priority of lines where the server knows priorities and the line does not say its own.

        vLLM works on requests with lower numbers first (`--scheduling-policy priority`); 0 is everybody's.
        """
        upstream = decision.upstream
        served = upstream.batch_api
        if upstream.provider is not Provider.VLLM or served is None or not served.priority:
            return decision
        model = decision.model or model
        if _PRIORITY in self._refusals.known(upstream.name, model):
            return decision
        try:
            document = decision.document or Document.parse(body)
            if document.get(_PRIORITY) is not None:
                return decision
            document = document.set(_PRIORITY, b"%d" % served.priority)
        except (DocumentError, TooManyParts):
            return decision
        given_model = decision.given_model or model
        added = decision.added | {_PRIORITY}
        return msgspec.structs.replace(
            decision, document=document, model=model, added=added, given_model=given_model
        )

    # ---- sending

    async def _send(
        self,
        routing: Routing,
        head: RequestHead,
        body: bytes,
        decision: Decision,
        exchange: Exchange,
        sender: Sender,
    ) -> LineAnswer:
        carriage = self._carriage
        _note(exchange, decision, carriage.clock.monotonic())
        route = decision.route
        if route is not None and route.max_concurrent and not carriage.enter_route(route):
            message = "This route has as many requests in progress as its policy allows."
            busy = ProxyError(TOO_MANY_REQUESTS, message, retry_after_seconds=1)
            return _failed(busy, exchange, decision.upstream.name)
        try:
            pool = routing.pool(decision.upstream.name)
            outgoing = plan_outgoing(head, body, decision, False, pool, sender.owner.encode("ascii"))
            reply = Reply(carriage.loop, carriage.clock, exchange)
            answered = await self._carry(carriage.lanes[decision.lane.value], outgoing, exchange, reply)
            return await self._read(answered, reply.body(), decision, exchange)
        except ProxyError as failure:
            return _failed(failure, exchange, decision.upstream.name)
        except Exception as problem:
            text = f"Weir failed on this line ({type(problem).__name__})."
            return _failed(ProxyError(INTERNAL, text), exchange, decision.upstream.name)
        finally:
            if route is not None and route.max_concurrent:
                carriage.leave_route(route)

    async def _carry(
        self, lane: LanePort, outgoing: Outgoing, exchange: Exchange, reply: Reply
    ) -> ResponseHead:
        call = lane.carry(outgoing, exchange, reply)
        try:
            return await reply.done
        except BaseException:
            # Whether the line is given up or its answer too large: nobody listens any more.
            call.cancel()
            raise

    async def _read(
        self, head: ResponseHead, body: bytes, decision: Decision, exchange: Exchange
    ) -> LineAnswer:
        """Make a line's answer of an upstream's."""
        run = self._carriage.loop.run_in_executor
        coding = head.fields.get(b"content-encoding", b"identity")
        if coding.lower() != b"identity":
            try:
                body = await run(self._threads, decode_body, body, coding, MAX_ANSWER_BYTES)
            except ProxyError:
                text = "The upstream's answer is not valid in its content coding."
                raise ProxyError(UPSTREAM_PROTOCOL, text) from None
        dialect = dialect_for_path(exchange.path)
        if head.status < 300 and len(body) > LONG_BODY_BYTES:
            await run(self._threads, note_body, exchange, dialect, body)
        elif head.status < 300:
            note_body(exchange, dialect, body)
        self._learn(decision, exchange)
        named = (head.fields[name] for name in _REQUEST_IDS if head.fields.get(name))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.fields.items()}
        return LineAnswer(
            upstream=decision.upstream.name,
            status=head.status,
            request_id=next(named, exchange.request_id.encode("ascii")).decode("latin-1"),
            body=body,
            seconds=exchange.ended_at - (exchange.sent_at or exchange.started_at),
            retry_after_seconds=retry_after_seconds(headers),
            usage=exchange.usage,
        )

    def _learn(self, decision: Decision, exchange: Exchange) -> None:
        """Remember a server that took a line only once all that was added had been taken back.

        Such a server does not name what it refuses; what lines add to requests is the likeliest, and to leave
        it out for a while costs little.
        """
        if _PRIORITY in decision.added and ORIGINAL in exchange.taken_back and exchange.status < 300:
            self._refusals.learn(decision.upstream.name, decision.model, _PRIORITY)


def _head(sender: Sender, body_bytes: int) -> RequestHead:
    headers: list[Header] = [
        (b"content-type", b"Content-Type", b"application/json"),
        (b"content-length", b"Content-Length", b"%d" % body_bytes),
        (b"accept", b"Accept", b"application/json"),
        (b"accept-encoding", b"Accept-Encoding", b"identity"),
    ]
    own = {header[0] for header in headers}
    for name, value in sender.headers:
        raw = name.encode("latin-1")
        if raw.lower() not in own:
            headers.append((raw.lower(), raw, value.encode("latin-1")))
    return RequestHead(b"POST", sender.endpoint.encode("ascii"), "1.1", headers)


def _note(exchange: Exchange, decision: Decision, now: float) -> None:
    """Say in the record what was decided, as `edge.handler` does."""
    exchange.decided_at = now
    exchange.model = decision.model
    exchange.steps = decision.steps
    exchange.tokens_before = decision.tokens_before
    exchange.tokens_after = decision.tokens_after
    exchange.upstream = decision.upstream.name
    exchange.urgency = decision.urgency
    exchange.lane = decision.lane
    if decision.dialect is not None:
        exchange.dialect = decision.dialect.name
    if decision.route is not None:
        exchange.route = decision.route.name


def _refused(refusal: ProxyError, exchange: Exchange, upstream: str) -> LineAnswer:
    """Answer for a policy that does not let the line pass."""
    if isinstance(refusal, PolicyRefusal):
        exchange.route, exchange.model, exchange.steps = refusal.route, refusal.model, refusal.steps
    return _failed(refusal, exchange, upstream)


def _failed(failure: ProxyError, exchange: Exchange, upstream: str) -> LineAnswer:
    """Answer as a caller would have been answered."""
    exchange.error, exchange.status = failure.kind.code, failure.kind.status
    return LineAnswer(
        upstream=upstream,
        status=failure.kind.status,
        request_id=exchange.request_id,
        body=error_body(failure),
        seconds=0.0,
        failure=failure,
        retry_after_seconds=failure.retry_after_seconds,
    )
