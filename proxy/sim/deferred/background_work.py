"""The provider's work on responses in the background: they are queued, then written, then there.

It owns when each step is due and what is billed when one ends early. Answers come from the same reading and
generation as a live call's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from proxy.sim import responses
from proxy.sim.admission import check_model
from proxy.sim.books import Books
from proxy.sim.cache import PrefixCache
from proxy.sim.deferred.response_book import StoredResponse
from proxy.sim.errors import ApiError, Family
from proxy.sim.faults import Faults
from proxy.sim.scenario import Scenario
from proxy.sim.stats import Stats
from proxy.sim.timing import Pace, pace_of
from proxy.sim.work import Bill, Call, Identity, Work


@dataclass(frozen=True, slots=True)
class _Writing:
    """A response that is being written. The pace counts from zero, when it left the queue."""

    response: StoredResponse
    work: Work
    bill: Bill
    pace: Pace

    @property
    def seconds(self) -> float:
        return self.pace.first_token_seconds + self.work.last_step * self.pace.token_seconds


class BackgroundWork:
    """The worker of one provider."""

    def __init__(self, scenario: Scenario, books: Books, cache: PrefixCache, stats: Stats) -> None:
        self._scenario = scenario
        self._books = books
        self._cache = cache
        self._stats = stats
        self._writing: dict[str, _Writing] = {}

    def advance(self) -> None:
        """Do all that is due by now."""
        now = self._books.clock.wall()
        for response in self._books.responses.unfinished():
            if response.status == "queued" and now >= response.starts_at:
                self._start(response)
            if response.status == "in_progress" and response.ends_at is not None and now >= response.ends_at:
                self._finish(response)
        self._settle_ended(now)

    def _start(self, response: StoredResponse) -> None:
        try:
            writing = self._write(response)
        except ApiError as error:
            self._fail(response, error.code or "server_error", error.message)
            return
        self._stats.executed(response.body_hash, response.tier)
        self._writing[response.id] = writing
        response.started_at = response.starts_at
        response.ends_at = response.starts_at + writing.seconds
        response.value["status"] = "in_progress"
        self._books.responses.keep(response)

    def _write(self, response: StoredResponse) -> _Writing:
        identity = Identity(response.identity_key, int(response.created_at))
        faults = Faults(**response.faults)
        body = response.body or {}
        call = Call(
            responses.SHAPE.path, body, {}, response.caller, faults, self._scenario, identity, self._books
        )
        work = responses.SHAPE.read(call)
        check_model(work, Family.OPENAI, self._scenario)
        scope = f"{response.caller} {work.model}"
        cached = self._cache.read(scope, work.cache_marks)
        self._cache.write(scope, work.cache_marks)
        bill = Bill(
            input_tokens=work.input_tokens,
            output_tokens=work.output_tokens_by(work.last_step),
            reasoning_tokens=work.reasoning_tokens_by(work.last_step),
            cached_tokens=cached,
            tier=work.tier,
        )
        slowdown = self._scenario.flex.slowdown if response.tier == "flex" else 1.0
        pace = pace_of(self._scenario.timing, faults, work.input_tokens - cached, 0.0, slowdown)
        return _Writing(response, work, bill, pace)

    def _finish(self, response: StoredResponse) -> None:
        if response.faults.get("background_fail"):
            self._writing.pop(response.id, None)
            self._fail(response, "server_error", "The server had an error while writing. (simulated)")
            return
        try:
            writing = self._writing.pop(response.id, None) or self._write(response)
        except ApiError as error:
            self._fail(response, error.code or "server_error", error.message)
            return
        finished: dict[str, Any] = dict(writing.work.answer.whole(writing.bill))
        if finished["status"] == "completed":
            finished["completed_at"] = int(response.ends_at or 0)
        response.value, response.body = finished, None
        self._stats.billed(replace(writing.bill, tier=response.tier))
        self._books.responses.keep(response)

    def _fail(self, response: StoredResponse, code: str, message: str) -> None:
        response.value |= {"status": "failed", "error": {"code": code, "message": message}}
        response.body = None
        self._books.responses.keep(response)

    def _settle_ended(self, now: float) -> None:
        """Bill what was cancelled or deleted while it was written as far as it had got."""
        for writing in list(self._writing.values()):
            response = writing.response
            if not response.is_final and self._books.responses.has(response):
                continue
            del self._writing[response.id]
            step = writing.pace.step_at(now - (response.started_at or now), writing.work.last_step)
            self._stats.billed(
                replace(
                    writing.bill,
                    output_tokens=writing.work.output_tokens_by(step),
                    reasoning_tokens=writing.work.reasoning_tokens_by(step),
                    tier=response.tier,
                )
            )
