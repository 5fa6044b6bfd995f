"""One request, from its head to its record: read it, decide, send it, and account for how it ended.

This is where the phases meet: the caller's connection calls in, the pipeline decides, a lane carries, a relay
answers. Nothing here knows HTTP framing, policies or providers.
"""

from __future__ import annotations

from proxy.core.decision import Abandoned
from proxy.core.errors import (
    BODY_TOO_LARGE,
    INTERNAL,
    OVERLOADED,
    TOO_MANY_REQUESTS,
    UPSTREAM_PROTOCOL,
    ProxyError,
)
from proxy.core.exchange import Exchange
from proxy.edge.answer import Answer
from proxy.edge.context import HandlerContext
from proxy.edge.deciding import LONG_BODY_BYTES, judge, must_be_read, read_limit_bytes, served, takes_long
from proxy.edge.outgoing import deferred, plan_outgoing, plan_unread
from proxy.edge.refusal import write_refusal
from proxy.edge.relay import Relay
from proxy.edge.report import report_headers
from proxy.edge.request_body import MAX_PLAIN_BYTES
from proxy.edge.request_target import below_v1, matched_path
from proxy.edge.switching import open_tunnel
from proxy.http.head import RequestHead, ResponseHead
from proxy.http.server import ServerConnection
from proxy.lanes.lane import Call, Outgoing
from proxy.pipeline import Decision, Pipeline, Request
from proxy.policy.model import HeaderLevel, Route
from proxy.policy.uploads import upload_routes
from proxy.policy.watched import IsWanted, check_wanted
from proxy.upstream.pool import Pool

REPLAYABLE_BYTES = 256 * 1024
"""A body that no route reads is kept up to this size: what can be sent again need not dial a connection."""


class ExchangeHandler:
    """The `RequestHandler` of one request."""

    __slots__ = (
        "_base",
        "_body_bytes",
        "_call",
        "_candidates",
        "_connection",
        "_context",
        "_head",
        "_is_over",
        "_is_streaming",
        "_limit_bytes",
        "_parts",
        "_relay",
        "_route",
        "_routing",
        "exchange",
    )

    def __init__(self, context: HandlerContext, connection: ServerConnection) -> None:
        self._context = context
        self._connection = connection
        self._routing = context.routing
        self._base: str | None = None
        self._candidates: tuple[Route, ...] = ()
        self._parts: list[bytes] = []
        self._body_bytes = 0
        self._limit_bytes = 0
        self._is_streaming = False
        self._is_over = False
        self._relay: Relay | None = None
        self._call: Call | None = None
        self._route: Route | None = None
        self.exchange = Exchange(context.next_request_id(), context.clock.monotonic())
        context.recorder.begun()

    def header(self, name: str) -> str | None:
        """Return a request header by its lower-case name."""
        value = self._head.fields.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    # --- the caller's side ----------------------------------------------------------------------------

    def head_received(self, head: RequestHead) -> None:
        """Decide from the head whether the body is read here or passes unread."""
        exchange = self.exchange
        self._head = head
        exchange.method = head.method.decode("latin-1")
        traceparent = head.fields.get(b"traceparent")
        if traceparent is not None:
            exchange.traceparent = traceparent.decode("latin-1")
        exchange.policy_version = self._routing.pipeline.policies.version
        try:
            exchange.path = matched_path(head.target)
            self._base = self._routing.pipeline.base_of(exchange.path)
            if self._base is not None:
                below_v1(head.target, self._base)  # refuses what could not be sent elsewhere
        except ProxyError as error:
            exchange.path = "?"
            self._fail(error)
            return
        pipeline = self._routing.pipeline
        self._candidates = pipeline.candidates(exchange.method, exchange.path, self.header)
        if pipeline.has_served and self._context.keeps_batches and self._is_served(pipeline):
            return
        length_bytes = head.content_length or 0
        if head.upgrade:
            return  # a handshake has no body; what flows after it is for nobody to read
        uploading = upload_routes(self._candidates, exchange.path, self.header)
        if self._candidates and uploading is None:
            self._limit_bytes = read_limit_bytes(self._candidates)
            if 0 < self._limit_bytes < length_bytes:
                self._oversize()
        else:
            self._candidates = uploading or ()
            if b"transfer-encoding" in head.fields or length_bytes > REPLAYABLE_BYTES:
                self._stream_unread()

    def _is_served(self, pipeline: Pipeline) -> bool:
        """Hand a request that Weir's own batch API answers to it, body to come; tell whether it was one."""
        decision = served(pipeline, self._head, self.exchange.path, self._candidates)
        if decision is None:
            return False
        self._is_streaming = True
        if self._base is not None:
            self._head.target = below_v1(self._head.target, self._base)
        if self._enter(decision.route):
            self._send(decision, plan_unread(self._head, None, self._routing.pool(decision.upstream.name)))
        return True

    def body_received(self, data: bytes) -> None:
        """Collect the body, or pass it on."""
        self.exchange.request_bytes += len(data)
        if self._is_streaming:
            if self._call is not None:
                self._call.send_body(data)
            return
        self._parts.append(data)
        self._body_bytes += len(data)
        if 0 < self._limit_bytes < self._body_bytes:
            self._oversize()

    def request_ended(self) -> None:
        """The request is complete: decide and send."""
        self.exchange.read_at = self._context.clock.monotonic()
        if self._is_streaming:
            if self._call is not None:
                self._call.end_body()
            return
        parts, self._parts = self._parts, []
        if not self._candidates or self._head.upgrade:
            self._send_unread(b"".join(parts))
            return
        if self._body_bytes <= LONG_BODY_BYTES:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if not takes_long(self._head, body, self._candidates):
                self._decide(body)
                return
            parts = [body]
        if not self._context.start(self, parts):
            self._pass_undecided(parts)

    def writable(self, is_writable: bool) -> None:
        """The caller reads too slowly, or reads again."""
        if self._call is not None:
            if is_writable:
                self._call.resume()
            else:
                self._call.pause()

    def gone(self, reason: str) -> None:
        """The caller is gone: give the upstream call up and account for it."""
        if self._is_over:
            return
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        if self._relay is not None:
            self._relay.cancelled()
        else:
            self.exchange.error = reason
            self._record()

    # --- deciding -------------------------------------------------------------------------------------

    def _decide(self, body: bytes) -> None:
        try:
            decided, is_decoded = self._judge(body, None)
        except ProxyError as error:
            self._fail(error)
            return
        self._conclude(decided, body, is_decoded)

    async def decide_in_thread(self, parts: list[bytes]) -> None:
        """Decide about a long body without holding the event loop; empties `parts`."""
        try:
            run = self._context.loop.run_in_executor
            body, decided, is_decoded = await run(self._context.decisions, self._judge_parts, parts)
        except Abandoned:
            return
        except ProxyError as error:
            if not self._is_over:
                self._fail(error)
            return
        if not self._is_over:
            self._conclude(decided, body, is_decoded)

    def _judge_parts(self, parts: list[bytes]) -> tuple[bytes, Decision | bytes, bool]:
        check_wanted(self._is_wanted)
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body, *self._judge(body, self._is_wanted)

    def _judge(self, body: bytes, is_wanted: IsWanted | None) -> tuple[Decision | bytes, bool]:
        exchange = self.exchange
        request = Request(exchange.method, exchange.path, self.header, body, is_wanted)
        max_bytes = self._limit_bytes or MAX_PLAIN_BYTES
        return judge(self._routing.pipeline, self._candidates, self._head, request, max_bytes)

    def _is_wanted(self) -> bool:
        return not self._is_over

    def _conclude(self, decided: Decision | bytes, body: bytes, is_decoded: bool) -> None:
        if isinstance(decided, bytes):
            self._explained(decided)
        else:
            self._act(decided, body, is_decoded)

    def _explained(self, explanation: bytes) -> None:
        """Answer with what would happen; nothing is sent upstream."""
        if self._is_over:
            return
        now = self._context.clock.monotonic()
        report = report_headers(self.exchange, HeaderLevel.MINIMAL, now, None)
        Answer(self._connection, self._head, self.exchange).send_json(explanation, report)
        self._record()

    def _act(self, decision: Decision, body: bytes, is_decoded: bool) -> None:
        exchange = self.exchange
        exchange.decided_at = self._context.clock.monotonic()
        exchange.is_stream = decision.is_stream
        exchange.model = decision.model
        exchange.steps = decision.steps
        exchange.tokens_before = decision.tokens_before
        exchange.tokens_after = decision.tokens_after
        if decision.dialect is not None:
            exchange.dialect = decision.dialect.name
        if self._enter(decision.route):
            pool, transport = self._pool(decision), self._connection.transport
            self._send(decision, plan_outgoing(self._head, body, decision, is_decoded, pool, transport))

    def _enter(self, route: Route | None) -> bool:
        """Note the route and claim one of its places; answer 429 and return `False` when all are taken."""
        if route is None:
            return True
        self.exchange.route = route.name
        if route.max_concurrent:
            if not self._context.enter_route(route):
                message = "This route has as many requests in progress as its policy allows."
                self._fail(ProxyError(TOO_MANY_REQUESTS, message, retry_after_seconds=1))
                return False
            self._route = route
        return True

    def _pool(self, decision: Decision) -> Pool:
        """Return the connections to the chosen upstream, and say in its own terms what is asked for there."""
        if self._base is not None and not self._routing.pipeline.keeps_target(self._base, decision):
            self._head.target = below_v1(self._head.target, self._base)
        return self._routing.pool(decision.upstream.name)

    # --- sending --------------------------------------------------------------------------------------

    def _send(self, decision: Decision, outgoing: Outgoing) -> None:
        exchange = self.exchange
        exchange.upstream = decision.upstream.name
        exchange.urgency = decision.urgency
        exchange.lane = decision.lane
        answer = Answer(self._connection, self._head, exchange)
        self._relay = Relay(self._context, self, answer, exchange, decision)
        if decision.deferral is not None:
            outgoing = deferred(outgoing, decision, self._relay.keep_alive)
        lane = self._context.lane(decision, exchange)
        call = lane.carry(outgoing, exchange, self._relay)
        if not self._is_over:
            self._call = call

    def _send_unread(self, body: bytes | None, overload: ProxyError | None = None) -> None:
        """Send a request whose body no route reads; `None` for one that follows as it comes.

        `overload` says that there was no time to read it; it answers what then cannot be decided.
        """
        reason = "the body was not read" if overload is None else "too many bodies wait to be read"
        if self._head.upgrade:
            reason = "realtime is never deferred"
        try:
            decision = self._routing.pipeline.unread(self._candidates, reason)
        except ProxyError as error:
            self._fail(overload or error)
            return
        self.exchange.steps = decision.steps
        if self._enter(decision.route):
            self._send(decision, plan_unread(self._head, body, self._pool(decision)))

    def _stream_unread(self) -> None:
        """Pass a body on as it comes, without holding it."""
        self._is_streaming = True
        parts, self._parts = self._parts, []
        self._send_unread(None)
        for data in parts:
            if self._call is not None:
                self._call.send_body(data)

    def _pass_undecided(self, parts: list[bytes]) -> None:
        """Pass a long body unread, for which there is no room, or refuse it where it must be read."""
        error = ProxyError(OVERLOADED, "Too many long requests are being read.", retry_after_seconds=1)
        if must_be_read(self._head, self._candidates):
            self._fail(error)
        else:
            self._send_unread(b"".join(parts), error)

    def _oversize(self) -> None:
        if must_be_read(self._head, self._candidates):
            message = f"The request body is larger than the {self._limit_bytes} bytes that this route reads."
            self._fail(ProxyError(BODY_TOO_LARGE, message))
        else:
            self._stream_unread()

    # --- the relay's side -----------------------------------------------------------------------------

    def upload_writable(self, is_writable: bool) -> None:
        """Pass the upstream's backpressure to the caller."""
        if self._is_over:
            return
        if is_writable:
            self._connection.resume_body()
        else:
            self._connection.pause_body()

    def switch_protocols(self, head: ResponseHead) -> None:
        """Join the two sockets after a 101; the exchange ends when both are closed."""
        if not self._head.upgrade:
            message = "The upstream switched to another protocol, which nobody had asked for."
            self.refused(ProxyError(UPSTREAM_PROTOCOL, message))
            return
        call, self._call = self._call, None
        upstream = call.detach() if call is not None else None
        if upstream is None:
            return
        open_tunnel(self._context, self._connection, head, upstream, self.exchange, self._record)

    def relay_done(self) -> None:
        """The answer is over; what an upstream that is not done yet still says, nobody waits for."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        self._record()

    # --- ends -----------------------------------------------------------------------------------------

    def _fail(self, error: ProxyError) -> None:
        """Answer with an error of Weir's own, before anything was sent upstream."""
        now = self._context.clock.monotonic()
        keep_alive = write_refusal(self._connection, self._head, self.exchange, error, now)
        self._record()
        self._connection.finish(keep_alive)

    def crashed(self, problem: BaseException) -> None:
        """Account for a fault of Weir's own in the middle of this request."""
        self.refused(ProxyError(INTERNAL, f"Weir failed on this request ({type(problem).__name__})."))

    def refused(self, error: ProxyError) -> None:
        """Answer with an error of Weir's own, whether or not the request is on its way."""
        if self._is_over:
            return
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        if self._relay is not None:
            self._relay.failed(error)
        else:
            self._fail(error)

    def _record(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        # Relay and handler name each other: without this only the garbage collector would free them.
        self._relay = None
        exchange = self.exchange
        if not exchange.ended_at:
            exchange.ended_at = self._context.clock.monotonic()
        if self._route is not None:
            self._context.leave_route(self._route)
        self._context.recorder.record(exchange)
