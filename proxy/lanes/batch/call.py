"""One request on the batch lane: accepted, then a ticket, a background object, or held for its answer.

Owns when the caller is told what, and the way out: whatever goes wrong before anything was promised, the
request is sent direct.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from proxy.core.decision import Deferred, Lane, LaneDecision, StepReport
from proxy.core.errors import INTERNAL, SHUTTING_DOWN, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.jobs.changes import Accepted
from proxy.jobs.model import Delivery, Job
from proxy.jobs.packing import UnfitBody
from proxy.jobs.store import StoreError, StoreUnavailable
from proxy.lanes.batch.answers import Whole, json_answer, ticket
from proxy.lanes.batch.background import response_object
from proxy.lanes.batch.deferring import STORE_UNAVAILABLE
from proxy.lanes.batch.hold import Ending, Hold, WayOut
from proxy.lanes.batch.onward import Onward
from proxy.lanes.batch.opened_stream import OpenedStream
from proxy.lanes.lane import Deferral, Outgoing
from proxy.policy.model import OnDisconnect

if TYPE_CHECKING:
    from proxy.lanes.batch.lane import BatchLane

_log = logging.getLogger("weir")
_RELEASED_RETRY_SECONDS = 5


class BatchCall(Onward):
    """See the module. `cancel` comes when the caller is gone, and when its answer is over."""

    def __init__(
        self,
        lane: BatchLane,
        deferral: Deferral,
        outgoing: Outgoing,
        exchange: Exchange,
        reply: ResponseHandler,
    ) -> None:
        super().__init__()
        self._lane = lane
        self._deferral = deferral
        self._outgoing = outgoing
        self._exchange = exchange
        self._reply = reply
        self._task: asyncio.Task[None] | None = None
        self._accepted: Accepted | None = None
        self._is_accepting = True
        self._is_begun = False
        self._is_held = False
        self._is_gone = False
        self._is_over = False
        self._begun_at = lane.clock.monotonic()

    def start(self) -> None:
        """Begin, in a task: keeping a job takes time."""
        name = f"defer {self._exchange.request_id}"
        self._task = self._lane.loop.create_task(self._run(), name=name)
        self._lane.tasks.add(self._task)
        self._task.add_done_callback(self._done)

    # ---- the edge's side

    def send_body(self, data: bytes) -> None:
        """Take nothing: what is deferred was read whole."""

    def end_body(self) -> None:
        """Take note of nothing."""

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        """Give nothing away: a deferred request is no tunnel."""
        return None

    def cancel(self) -> None:
        """Let go. A job that is being accepted is accepted first, so that it is known what there is."""
        self._let_go()
        if self._is_over:
            return
        self._is_over = self._is_gone = True
        if self._task is not None and not self._is_accepting:
            self._task.cancel()

    def release(self) -> None:
        """Tell a held caller to come again: the process ends, its job does not."""
        if self._is_held and not self._is_over and self._own is None:
            message = "Weir is stopping; the request is kept, and trying again finds it."
            self._fail(ProxyError(SHUTTING_DOWN, message, retry_after_seconds=_RELEASED_RETRY_SECONDS))
            if self._task is not None:
                self._task.cancel()

    # ---- the task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._lane.over(self)
        problem = None if task.cancelled() else task.exception()
        if problem is None:
            return
        _log.error("a request could not be deferred", exc_info=problem)
        if not self._is_over and isinstance(problem, Exception):
            self._exchange.steps = (*self._exchange.steps, StepReport.of_failure("defer", problem))
            if self._accepted is None:
                self._go_direct("deferring failed")
            else:
                self._fail(ProxyError(INTERNAL, f"Weir failed on this request ({type(problem).__name__})."))

    async def _run(self) -> None:
        accepted = await self._accept()
        self._is_accepting = False
        if accepted is None:
            return
        self._accepted = accepted
        if self._is_gone:
            self._left(accepted)
            return
        job = accepted.job
        is_attached = not accepted.is_new
        self._exchange.deferred = Deferred(job.id, job.tier.value, is_attached=is_attached)
        match self._deferral.plan.delivery:
            case Delivery.TICKET:
                self._tell(ticket(job, self._lane.clock.wall()))
            case Delivery.BACKGROUND:
                await self._tell_background(job)
            case _:
                await self._hold(accepted)

    async def _accept(self) -> Accepted | None:
        """Keep the job; `None`: the request goes direct, or nobody wants it any more."""
        lane = self._lane
        if b"?" in self._outgoing.head.target:
            return self._not_deferred("a query string is not deferred")
        if lane.salt is None or not lane.is_available():
            return self._not_deferred(STORE_UNAVAILABLE)
        try:
            intake = await lane.take_in(self._deferral, self._outgoing, self._exchange, lane.salt)
        except UnfitBody:
            return self._not_deferred("the body is not UTF-8 throughout")
        try:
            return await lane.store.accept(intake.job, intake.body, attach=intake.may_attach)
        except StoreUnavailable:
            lane.forget(intake.job.id)
            return self._not_deferred(STORE_UNAVAILABLE)

    def _not_deferred(self, reason: str) -> Accepted | None:
        if not self._is_gone:
            self._go_direct(reason)
        return None

    async def _tell_background(self, job: Job) -> None:
        try:
            request = (await self._lane.store.bodies((job.id,))).get(job.id)
            answer = None if job.is_live else await self._lane.store.answer(job.id)
        except StoreError:
            # It is kept: what is told of it may as well be less.
            request = answer = None
        self._tell(json_answer(200, response_object(job, request, answer)))

    async def _hold(self, accepted: Accepted) -> None:
        job, lane = accepted.job, self._lane
        hold = Hold(lane, self._deferral, accepted, self._begun_at)
        self._is_held = True
        try:
            if hold.heartbeat_seconds is not None:
                self._is_begun = True
                self._deferral.keep_alive(hold.heartbeat_seconds)
            outcome = await hold.wait()
        except asyncio.CancelledError:
            if self._is_gone:
                self._left(accepted)
            raise
        match outcome:
            case WayOut():
                if outcome.job_to_cancel is not None:
                    self._lane.abandon(outcome.job_to_cancel)
                self._book_wait()
                self._go_direct(outcome.reason)
            case ProxyError():
                self._lane.leave(job, cancels=False)
                self._book_wait()
                self._fail(outcome)
            case Ending():
                is_attached = not accepted.is_new
                self._exchange.deferred = Deferred(
                    outcome.job.id, outcome.tier, outcome.paid_usd, is_attached
                )
                self._book_wait()  # nothing counts as sent: how long the provider took is not told by this
                if hold.heartbeat_seconds is not None and not self._deferral.is_stream:
                    self._read(outcome.answer[1])
                self._tell(outcome.answer, outcome.status)
                await self._lane.deliver(outcome.job)

    def _read(self, body: bytes) -> None:
        """Note what an answer says of itself: behind white space nobody else reads it as a whole."""
        facts = self._deferral.dialect.read_body(body)
        exchange = self._exchange
        exchange.usage, exchange.was_empty = facts.usage, facts.empty
        exchange.finish_reason = facts.finish_reason or ""

    def _left(self, accepted: Accepted) -> None:
        """The caller is gone; what was not promised ends with it, unless the route says otherwise."""
        self._lane.leave(accepted.job, self._deferral.policy.on_disconnect is OnDisconnect.CANCEL)

    def _book_wait(self) -> None:
        self._exchange.queue_seconds += self._lane.clock.monotonic() - self._begun_at

    # ---- telling

    def _tell(self, whole: Whole, upstream_status: int = 0) -> None:
        """Give the caller a complete answer. `upstream_status` is the provider's, 0: Weir made it."""
        self._is_over = True
        head, body = whole
        self._reply.head_received(head)
        self._exchange.upstream_status = upstream_status
        if body:
            self._reply.body_received(body)
        self._reply.response_ended()

    def _fail(self, error: ProxyError) -> None:
        self._is_over = True
        self._reply.failed(error)

    def _go_direct(self, reason: str) -> None:
        self._is_over = True
        exchange = self._exchange
        exchange.lane, exchange.deferred = LaneDecision(Lane.STREAM, f"{reason} (deferrable)"), None
        outgoing = self._outgoing
        if self._is_begun and b"accept-encoding" in outgoing.head.fields:
            # The answer's head has left, and says of no coding.
            replaced = {**outgoing.plan.replaced, b"accept-encoding": b"identity"}
            plan = msgspec.structs.replace(outgoing.plan, replaced=replaced)
            outgoing = msgspec.structs.replace(outgoing, plan=plan)
        reply = self._reply
        if self._is_begun and self._deferral.is_stream:
            reply = OpenedStream(reply, self._deferral.dialect)
        self._go_onward(self._lane.direct, outgoing, exchange, reply)
