"""The simulated provider at work: the path of one request, phases in order.

    body -> headers' faults -> key -> scenario's faults -> shape -> limits -> flex -> slot -> cache -> answer

It owns the state that requests share and what is billed when. It refuses to know what a body means.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from proxy.core.clock import Clock
from proxy.sim.admission import caller_of, check_model
from proxy.sim.cache import written_tokens
from proxy.sim.errors import ApiError, Family
from proxy.sim.failing import asked_failure, error_event, error_response
from proxy.sim.faults import Faults, over, read_headers
from proxy.sim.intake import take_in
from proxy.sim.journal import Journal
from proxy.sim.limits import limit_headers
from proxy.sim.presence import CallerGone, Presence
from proxy.sim.scenario import Scenario
from proxy.sim.sending import Progress, Sender, cut
from proxy.sim.state import State
from proxy.sim.tiers import FLEX
from proxy.sim.timing import Pace, pace_of
from proxy.sim.work import Bill, Call, Identity, Shape, Work, to_json

_WORK_EVERY_SECONDS = 0.005


class _CutBefore(Exception):
    """A fault closes the connection before anything is done."""


@dataclass(frozen=True, slots=True)
class _OwnHeaders:
    """What a family calls the headers that it puts on every answer; None where it has none."""

    request_id: str
    organization: str
    processing_ms: str | None


_OWN_HEADERS = {
    Family.OPENAI: _OwnHeaders("x-request-id", "openai-organization", "openai-processing-ms"),
    Family.ANTHROPIC: _OwnHeaders("request-id", "anthropic-organization-id", None),
}


@dataclass(slots=True)
class _Exchange:
    """One request and what is learnt about it."""

    request: web.Request
    shape: Shape
    state: State
    progress: Progress
    identity: Identity
    headers: list[tuple[str, str]]
    body_hash: str = ""
    status: int = 200
    work: Work | None = None
    pace: Pace | None = None
    bill: Bill | None = None


class Provider:
    """A simulated provider. Create one per server."""

    def __init__(self, scenario: Scenario, clock: Clock, journal: Journal | None = None) -> None:
        self.scenario = scenario
        self.presence = Presence()
        self._clock = clock
        self._journal = journal or Journal()
        self._state = State(scenario, clock, self._journal)

    def reset(self) -> None:
        """Forget counters, cache, limits, fault counts and all that is kept; requests in work go on."""
        self._state.retire()
        self._journal = self._journal.start_afresh()
        self._state = State(self.scenario, self._clock, self._journal)

    def stats(self) -> dict[str, object]:
        """Return what `/sim/stats` shows."""
        return self._state.snapshot()

    async def work_on(self) -> None:
        """Do the work that is due later, until cancelled."""
        while True:
            await self._state.work_on()
            await asyncio.sleep(_WORK_EVERY_SECONDS)

    def close(self) -> None:
        """Let go of the state file."""
        self._journal.close()

    async def answer(self, request: web.Request, shape: Shape) -> web.StreamResponse:
        """Answer one request, whatever becomes of it; always counted."""
        state = self._state
        state.arrivals += 1
        state.stats.requests[shape.label] += 1
        exchange = _Exchange(request, shape, state, Progress(), self._identity("", state), [])
        try:
            async with self.presence.watch(request):
                return await self._work_on(exchange)
        except ApiError as error:
            return self._refuse(exchange, error)
        except CallerGone:
            return self._give_up(exchange)
        except _CutBefore:
            cut(request)
            exchange.status = 499
            return web.Response(status=499)
        finally:
            self._settle(exchange)
            state.commit()

    async def _work_on(self, exchange: _Exchange) -> web.StreamResponse:
        request, shape, state = exchange.request, exchange.shape, exchange.state
        intake = await take_in(request, shape.takes, self.scenario.files.max_bytes)
        exchange.body_hash = intake.digest
        exchange.identity = self._identity(intake.digest, state)
        wanted = read_headers(request.headers.items())
        caller = caller_of(request.headers, self.scenario)
        body = intake.fields(shape.takes) if shape.method == "POST" else {}
        model = body.get("model") if isinstance(body.get("model"), str) else ""
        picked = state.fault_book.pick(request.path, str(model), request.headers, request.method)
        faults = over(wanted, picked)
        await self._fail_if_asked(exchange, faults)
        call = Call(
            request.path,
            body,
            request.headers,
            caller,
            faults,
            self.scenario,
            exchange.identity,
            state.books,
            intake.digest,
            request.query,
            intake.upload,
        )
        work = self._admit(exchange, shape.read(call), call)
        if not shape.runs_model or not work.runs_now:
            return await self._send(exchange, work, faults, caller)
        async with state.slots.hold():
            state.stats.executed(exchange.body_hash, work.tier)
            return await self._send(exchange, work, faults, caller)

    def _admit(self, exchange: _Exchange, work: Work, call: Call) -> Work:
        """Return the work, done as far as it is not generation. Raises ApiError for what is not let in."""
        shape, state = exchange.shape, exchange.state
        check_model(work, shape.family, self.scenario)
        if shape.is_limited:
            readings, refusal = state.limits.admit(call.caller, work.input_tokens + work.requested_tokens)
            exchange.headers += limit_headers(shape.family, readings, self._clock.wall())
            if refusal is not None:
                raise refusal
        if work.tier == FLEX:
            state.flex.check(call.faults)
        if work.perform is not None:
            work.perform()
        # Whatever becomes of the answer, what was done stays done.
        state.commit()
        return work

    async def _fail_if_asked(self, exchange: _Exchange, faults: Faults) -> None:
        done = exchange.progress.faults_done
        if faults.cut_before:
            done.append("cut_before")
            raise _CutBefore
        if faults.stall_before:
            done.append("stall_before")
            await asyncio.Event().wait()
        if faults.status is None:
            return
        if faults.first_byte_ms is not None:
            await asyncio.sleep(faults.first_byte_ms / 1000)
        done.append("status")
        raise asked_failure(faults, faults.status)

    async def _send(self, exchange: _Exchange, work: Work, faults: Faults, caller: str) -> web.StreamResponse:
        state = exchange.state
        scope = f"{caller} {work.model}"
        cached = state.cache.read(scope, work.cache_marks)
        pace = self._pace(work, faults, cached)
        bill = Bill(
            input_tokens=work.input_tokens,
            output_tokens=work.output_tokens_by(work.last_step),
            reasoning_tokens=work.reasoning_tokens_by(work.last_step),
            cached_tokens=cached,
            cache_write_tokens=written_tokens(work.cache_marks, cached) if work.bills_cache_write else 0,
            tier=work.tier,
        )
        exchange.work, exchange.pace, exchange.bill = work, pace, bill
        headers = self._headers(exchange, round(pace.first_token_seconds * 1000))

        def begin() -> None:
            state.cache.write(scope, work.cache_marks)
            if work.remember is not None:
                work.remember(bill)
            state.commit()

        sender = Sender(
            exchange.request,
            headers,
            pace,
            faults,
            exchange.progress,
            begin,
        )
        if faults.status_after is not None:
            await sender.finish_unsent(work.last_step)
            exchange.progress.faults_done.append("status_after")
            raise asked_failure(faults, faults.status_after)
        if work.is_stream:
            return await sender.send_events(
                work.answer.events(bill), lambda sent: error_event(exchange.shape, exchange.identity, sent)
            )
        if work.content is not None:
            return await sender.send_whole(work.content, 0, "application/octet-stream")
        return await sender.send_whole(to_json(work.answer.whole(bill)), work.last_step)

    def _pace(self, work: Work, faults: Faults, cached_tokens: int) -> Pace:
        uncached = work.input_tokens - cached_tokens if work.runs_now else 0
        slowdown = self.scenario.flex.slowdown if work.tier == FLEX else 1.0
        now = asyncio.get_running_loop().time()
        return pace_of(self.scenario.timing, faults, uncached, now, slowdown)

    def _identity(self, body_hash: str, state: State) -> Identity:
        key = f"{self.scenario.seed} {body_hash} {state.arrivals}"
        return Identity(key, int(self._clock.wall()))

    def _headers(self, exchange: _Exchange, processing_ms: int) -> list[tuple[str, str]]:
        request_id = exchange.identity.make("req_", length=32)
        own = _OWN_HEADERS[exchange.shape.family]
        ids = [(own.request_id, request_id), (own.organization, "weir-sim")]
        if own.processing_ms is not None:
            ids.append((own.processing_ms, str(processing_ms)))
        return [("Server", "weir-sim"), *ids, *exchange.headers]

    def _refuse(self, exchange: _Exchange, error: ApiError) -> web.StreamResponse:
        exchange.status = error.status
        headers = [*self._headers(exchange, 0), *error.headers]
        return error_response(exchange.shape.family, error, headers, exchange.identity)

    def _give_up(self, exchange: _Exchange) -> web.StreamResponse:
        """End an exchange whose caller has left, or that the shutdown of the provider cuts short."""
        if not self.presence.is_closing:
            phase = "midway" if exchange.progress.has_begun else "before_first_byte"
            exchange.state.stats.disconnects[phase] += 1
        exchange.status = 499
        cut(exchange.request)
        return web.Response(status=499)

    def _settle(self, exchange: _Exchange) -> None:
        stats, progress = exchange.state.stats, exchange.progress
        stats.statuses[str(exchange.status)] += 1
        stats.faults.update(progress.faults_done)
        work, pace, bill = exchange.work, exchange.pace, exchange.bill
        if work is None or pace is None or bill is None or not progress.has_begun:
            return
        if not work.runs_now or not exchange.shape.runs_model:
            return
        step = progress.last_step
        if not work.is_stream:
            # What was sent is billed whole, however early its last token was due by the clock.
            step = max(step, pace.step_at(asyncio.get_running_loop().time(), work.last_step))
        stats.billed(
            Bill(
                input_tokens=bill.input_tokens,
                output_tokens=work.output_tokens_by(step),
                reasoning_tokens=work.reasoning_tokens_by(step),
                cached_tokens=bill.cached_tokens,
                cache_write_tokens=bill.cache_write_tokens,
                tier=bill.tier,
            )
        )
