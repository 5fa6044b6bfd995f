"""The simulated provider at work: the path of one request, phases in order.

    headers' faults -> key -> body -> scenario's faults -> shape -> limits -> slot -> cache -> answer

It owns the state that requests share and what is billed when. It refuses to know what a body means.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDict

from proxy.core.clock import Clock
from proxy.sim import body as fields
from proxy.sim.cache import PrefixCache, written_tokens
from proxy.sim.counts import unknown_model
from proxy.sim.errors import ApiError, Family, error_body, failure, invalid
from proxy.sim.faults import FaultBook, Faults, over, read_headers
from proxy.sim.limits import RateLimits, limit_headers
from proxy.sim.memory import Memory
from proxy.sim.presence import CallerGone, Presence
from proxy.sim.scenario import Scenario
from proxy.sim.sending import Progress, Sender, cut
from proxy.sim.slots import Slots
from proxy.sim.stats import Stats
from proxy.sim.text import digest_of
from proxy.sim.timing import Pace, pace_of
from proxy.sim.work import Bill, Call, Identity, Shape, Work, data_event, named_event, to_json


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


class _State:
    """All that `/sim/reset` forgets."""

    def __init__(self, scenario: Scenario, clock: Clock) -> None:
        self.arrivals = 0
        self.stats = Stats()
        self.cache = PrefixCache(scenario.cache, clock)
        self.limits = RateLimits(scenario.limits, clock)
        self.slots = Slots(scenario.slots)
        self.fault_book = FaultBook(scenario.faults, scenario.seed)
        self.memory = Memory()


@dataclass(slots=True)
class _Exchange:
    """One request and what is learnt about it."""

    request: web.Request
    shape: Shape
    state: _State
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

    def __init__(self, scenario: Scenario, clock: Clock) -> None:
        self.scenario = scenario
        self.presence = Presence()
        self._clock = clock
        self._state = _State(scenario, clock)

    def reset(self) -> None:
        """Forget counters, cache, limits, fault counts and conversations; requests in work go on."""
        self._state = _State(self.scenario, self._clock)

    def stats(self) -> dict[str, object]:
        """Return what `/sim/stats` shows."""
        slots = self._state.slots
        return {
            **self._state.stats.snapshot(),
            "in_work": slots.in_work,
            "queued": slots.queued,
            "most_in_work": slots.most_in_work,
            "most_queued": slots.most_queued,
        }

    async def answer(self, request: web.Request, shape: Shape) -> web.StreamResponse:
        """Answer one request, whatever becomes of it; always counted."""
        state = self._state
        state.arrivals += 1
        state.stats.requests[shape.path] += 1
        exchange = _Exchange(request, shape, state, Progress(), self._identity("", state), [])
        try:
            async with self.presence.watch(request):
                return await self._work_on(exchange)
        except ApiError as error:
            return self._refuse(exchange, error)
        except CallerGone:
            return self._give_up(exchange)
        finally:
            self._settle(exchange)

    async def _work_on(self, exchange: _Exchange) -> web.StreamResponse:
        request, shape, state = exchange.request, exchange.shape, exchange.state
        raw = await request.read()
        exchange.body_hash = hashlib.sha256(raw).hexdigest()
        exchange.identity = self._identity(exchange.body_hash, state)
        wanted = read_headers(request.headers.items())
        caller = self._caller(request.headers)
        body = fields.parse_body(raw) if shape.method == "POST" else {}
        model = body.get("model") if isinstance(body.get("model"), str) else ""
        faults = over(wanted, state.fault_book.pick(request.path, str(model), request.headers))
        await self._fail_if_asked(exchange, faults)
        work = shape.read(
            Call(
                request.path,
                body,
                request.headers,
                caller,
                faults,
                self.scenario,
                exchange.identity,
                state.memory,
            )
        )
        self._check_model(work, shape.family)
        readings, refusal = state.limits.admit(caller, work.input_tokens + work.requested_tokens)
        exchange.headers += limit_headers(shape.family, readings, self._clock.wall())
        if refusal is not None:
            raise refusal
        if not shape.runs_model:
            return await self._send(exchange, work, faults, caller)
        async with state.slots.hold():
            state.stats.executed(exchange.body_hash)
            return await self._send(exchange, work, faults, caller)

    async def _fail_if_asked(self, exchange: _Exchange, faults: Faults) -> None:
        if faults.status is None:
            return
        if faults.first_byte_ms is not None:
            await asyncio.sleep(faults.first_byte_ms / 1000)
        exchange.progress.faults_done.append("status")
        raise failure(faults.status, faults.error_code, faults.retry_after)

    def _check_model(self, work: Work, family: Family) -> None:
        if self.scenario.only_listed_models and work.model and work.model not in self.scenario.models:
            raise unknown_model(work.model)
        limit = self.scenario.context_tokens
        wanted = work.input_tokens + work.requested_tokens
        if not limit or wanted <= limit:
            return
        if family is Family.ANTHROPIC:
            raise ApiError(400, f"prompt is too long: {wanted} tokens > {limit} maximum")
        message = (
            f"This model's maximum context length is {limit} tokens. However, you requested {wanted} tokens "
            f"({work.input_tokens} in the messages, {work.requested_tokens} in the completion). "
            "Please reduce the length of the messages or completion."
        )
        raise invalid("messages", message, "context_length_exceeded")

    async def _send(self, exchange: _Exchange, work: Work, faults: Faults, caller: str) -> web.StreamResponse:
        state = exchange.state
        scope = f"{caller} {work.model}"
        cached = state.cache.read(scope, work.cache_marks)
        pace = pace_of(
            self.scenario.timing, faults, work.input_tokens - cached, asyncio.get_running_loop().time()
        )
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
        sender = Sender(
            exchange.request,
            headers,
            pace,
            faults,
            exchange.progress,
            lambda: state.cache.write(scope, work.cache_marks),
        )
        if work.is_stream:
            return await sender.send_events(
                work.answer.events(bill), lambda sent: _error_event(exchange, sent)
            )
        return await sender.send_json(to_json(work.answer.whole(bill)), work.last_step)

    def _identity(self, body_hash: str, state: _State) -> Identity:
        key = f"{self.scenario.seed} {body_hash} {state.arrivals}"
        return Identity(key, int(self._clock.wall()))

    def _caller(self, headers: Mapping[str, str]) -> str:
        """Return a digest of the caller's key. Raises ApiError (401) for one that is not accepted."""
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        key = given or headers.get("x-api-key", "") or headers.get("api-key", "")
        if self.scenario.api_keys and key not in self.scenario.api_keys:
            raise failure(401)
        return digest_of((key,))

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
        request_id = exchange.identity.make("req_", length=32)
        return web.Response(
            status=error.status,
            headers=CIMultiDict(headers),
            body=to_json(error_body(exchange.shape.family, error, request_id)),
            content_type="application/json",
        )

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
        step = progress.last_step
        if not work.is_stream:
            step = pace.step_at(asyncio.get_running_loop().time(), work.last_step)
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


def _error_event(exchange: _Exchange, sent_events: int) -> bytes:
    """Return the event with which this API reports a failure after so many events."""
    error = failure(500)
    request_id = exchange.identity.make("req_", length=32)
    value = error_body(exchange.shape.family, error, request_id)
    if exchange.shape.family is Family.ANTHROPIC:
        return named_event("error", value)
    if exchange.shape.path == "/v1/responses":
        fields_ = {"type": "error", "code": "server_error", "message": error.message, "param": None}
        return named_event("error", {**fields_, "sequence_number": sent_events})
    return data_event(value)
