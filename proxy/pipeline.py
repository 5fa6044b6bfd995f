"""The path of a request: match, steps, urgency, lane. The same code answers a live call and `explain`.

Everything here is synchronous and pure but for the clock; carrying the request is the lanes' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from proxy.core.clock import Clock
from proxy.core.decision import Lane, LaneDecision, StepReport, StepStatus, Urgency, UrgencyDecision
from proxy.core.document import Document, DocumentError
from proxy.core.errors import BODY_TOO_LARGE, INVALID_BODY, REJECTED_BY_POLICY, ProxyError
from proxy.core.price import PriceLookup
from proxy.core.stages import Trace
from proxy.dialects import dialect_for_path
from proxy.dialects.dialect import Dialect
from proxy.observe.prefixes import PrefixMemory
from proxy.policy.conditions import RequestFacts
from proxy.policy.lane import LaneCapabilities, LaneFacts, choose_lane
from proxy.policy.match import Lost, RouteTable
from proxy.policy.model import Match, OnError, PolicySet, Route, Upstream, UsageMode
from proxy.policy.rewriting import PolicyRefusal, Refusals, Rewriting, Rewritten
from proxy.policy.urgency import UrgencyFacts, classify
from proxy.policy.waiting import DEADLINE_HEADER, answer_deadline, caller_patience_seconds
from proxy.steps.step import TokenCounting

HeaderLookup = Callable[[str], str | None]


class Request(msgspec.Struct, frozen=True):
    """What is decided about. `path` is percent-decoded, without query; `body` is plain (not compressed)."""

    method: str
    path: str
    header: HeaderLookup
    body: bytes


class Decision(msgspec.Struct, frozen=True):
    """What will happen to a request, and why.

    `document` is what is sent (`None`: the body was not readable and goes out as it came). `added` names
    parameters that Weir introduced and may take back, `inner` members that it put deeper. `given_model` is
    the caller's. `is_moved` says that a step chose another upstream than the route's. `asks_usage` says that
    the stream's usage event was asked for on Weir's behalf and must be taken out again.
    """

    route: Route | None
    dialect: Dialect | None
    upstream: Upstream
    document: Document | None
    model: str
    is_stream: bool
    steps: tuple[StepReport, ...]
    added: frozenset[str]
    asks_usage: bool
    urgency: UrgencyDecision
    lane: LaneDecision
    tokens_before: int | None = None
    tokens_after: int | None = None
    lost: tuple[Lost, ...] = ()
    inner: frozenset[str] = frozenset()
    given_model: str = ""
    is_moved: bool = False


class _Read(msgspec.Struct, frozen=True):
    """A body as the phases see it."""

    document: Document | None
    dialect: Dialect | None
    model: str
    is_stream: bool
    facts: RequestFacts | None
    failures: list[StepReport]
    """What went wrong in Weir itself while this request was looked at; it goes on all the same."""


class Pipeline:
    """A policy set with everything that deciding needs. Immutable; a reload makes a new one."""

    def __init__(
        self,
        policies: PolicySet,
        tokens: TokenCounting,
        clock: Clock,
        capabilities: LaneCapabilities = LaneCapabilities(),
        refusals: Refusals = lambda upstream, model: frozenset(),
        prices: PriceLookup | None = None,
        prefixes: PrefixMemory | None = None,
    ) -> None:
        self.policies = policies
        self.table = RouteTable(policies)
        self._tokens = tokens
        self._clock = clock
        self._capabilities = capabilities
        self._prices = prices
        self._refusals = refusals
        self._rewriting = Rewriting(policies, tokens, refusals, prices, prefixes)

    @property
    def counter(self) -> TokenCounting:
        """What counts tokens here."""
        return self._tokens

    @property
    def prices(self) -> PriceLookup | None:
        """Who knows prices here, if anybody does."""
        return self._prices

    def candidates(self, method: str, path: str, header: HeaderLookup) -> tuple[Route, ...]:
        """Return the routes that the head alone does not rule out, in order."""
        return self.table.candidates(method, path, header)

    def route(self, request: Request, candidates: tuple[Route, ...]) -> Route | None:
        """Return the route that a request takes. Raises ProxyError where its body cannot be judged."""
        return self.table.pick(candidates, self._read(request, candidates).facts)

    def decide(self, request: Request, candidates: tuple[Route, ...], trace: Trace | None = None) -> Decision:
        """Decide about a request, whole. Raises ProxyError where the policy refuses it.

        `trace`, if given, is filled.
        """
        read = self._read(request, candidates)
        route = self.table.pick(candidates, read.facts)  # 1 match
        if route is None:
            return msgspec.structs.replace(self.untouched(read.dialect), steps=tuple(read.failures))
        upstream = self.policies.upstreams[route.upstream or self.policies.default_upstream]
        rewritten = self._rewriting.run(  # 2 steps
            route, upstream, read.document, read.dialect, read.model, request.header, trace
        )
        document, added = rewritten.document, rewritten.added
        try:
            urgency = classify(route, self._urgency_facts(request, read, document))  # 3 urgency
            lane = self._lane(route, request, read, document, urgency)  # 4 lane
        except BaseException as problem:
            read.failures.append(StepReport.of_failure("classify", problem))
            urgency, lane = _UNCLASSIFIED, _UNCLASSIFIED_LANE
        reports = rewritten.reports
        if read.failures:
            reports = self._failed(route, rewritten, read.failures)
        asks_usage = False
        if (
            route.usage is UsageMode.ASK
            and read.is_stream
            and document is not None
            and read.dialect is not None
            and _USAGE_FIELD not in self._refusals(rewritten.upstream.name, rewritten.model)
        ):
            asking = read.dialect.ask_usage(document)
            asks_usage = asking is not document
            if asks_usage and document.get(_USAGE_FIELD) is None:
                added |= {_USAGE_FIELD}
            document = asking
        return Decision(
            route=route,
            dialect=read.dialect,
            upstream=rewritten.upstream,
            document=document,
            model=rewritten.model,
            is_stream=read.is_stream,
            steps=reports,
            added=added,
            asks_usage=asks_usage,
            urgency=urgency,
            lane=lane,
            tokens_before=None if rewritten.tokens is None else rewritten.tokens[0],
            tokens_after=None if rewritten.tokens is None else rewritten.tokens[1],
            inner=rewritten.inner,
            given_model=read.model,
            is_moved=rewritten.upstream is not upstream,
        )

    def untouched(self, dialect: Dialect | None = None) -> Decision:
        """Return the decision for what no route matches: straight to the default upstream, unread."""
        return Decision(
            route=None,
            dialect=dialect,
            upstream=self.policies.upstreams[self.policies.default_upstream],
            document=None,
            model="",
            is_stream=False,
            steps=(),
            added=frozenset(),
            asks_usage=False,
            urgency=_UNMATCHED,
            lane=_UNMATCHED_LANE,
        )

    def unread(self, candidates: tuple[Route, ...]) -> Decision:
        """Return the decision for a body that passes unread: the route that the head alone decides.

        Raises ProxyError (413) where the body would have to say which upstream the request may go to.
        """
        route = self.table.pick(candidates, None)
        asked = candidates if route is None else candidates[: candidates.index(route) + 1]
        default = self.policies.default_upstream
        names = {candidate.upstream or default for candidate in asked} | (
            {default} if route is None else set()
        )
        if len(names) > 1:
            message = (
                "The request body is larger than this route reads, and its upstream depends on the body."
            )
            raise ProxyError(BODY_TOO_LARGE, message)
        if route is None:
            return self.untouched()
        reason = "the body was not read"
        return msgspec.structs.replace(
            self.untouched(),
            route=route,
            upstream=self.policies.upstreams[names.pop()],
            steps=tuple(StepReport(bound.step.name, StepStatus.SKIPPED, reason) for bound in route.steps),
            urgency=UrgencyDecision(Urgency.INTERACTIVE, reason),
            lane=LaneDecision(Lane.STREAM, reason),
        )

    def explain(self, request: Request, trace: Trace | None = None) -> Decision:
        """Decide about a request without candidates from a live head, and say why earlier routes lost.

        `trace`, if given, is filled.
        """
        candidates = self.candidates(request.method, request.path, request.header)
        read = self._read(request, candidates)
        _, lost = self.table.explain(request.method, request.path, request.header, read.facts)
        decision = self.decide(request, candidates, Trace() if trace is None else trace)
        return msgspec.structs.replace(decision, lost=lost)

    def needs_tokens(self, candidates: tuple[Route, ...]) -> bool:
        """Tell whether deciding may count tokens, which takes long for long bodies."""
        return any(route.match.tokens is not None or route.counts_tokens for route in candidates)

    # --- phases ---------------------------------------------------------------------------------------

    def _read(self, request: Request, candidates: tuple[Route, ...]) -> _Read:
        dialect = dialect_for_path(request.path)
        try:
            depth = max((route.max_json_depth for route in candidates), default=512)
            document = Document.parse(request.body, depth)
        except DocumentError as problem:
            if dialect is not None and problem.reason != "empty" and _could_be_dodged(candidates):
                raise ProxyError(INVALID_BODY, _UNREADABLE.get(problem.reason, _NOT_JSON)) from None
            return _Read(None, dialect, "", False, None, [])
        model = document.value("model")
        model = model if isinstance(model, str) else ""
        is_stream = dialect.is_stream(document) if dialect is not None else document.get("stream") == b"true"

        failures: list[StepReport] = []

        def count() -> int:
            try:
                return self.count_prompt(document, model)
            except BaseException as problem:
                failures.append(StepReport.of_failure("count_tokens", problem))
                return len(request.body) // 4

        tools = document.get("tools")
        facts = RequestFacts(
            model or None, tools is not None and tools not in (b"null", b"[]"), is_stream, count
        )
        return _Read(document, dialect, model, is_stream, facts, failures)

    def count_prompt(self, document: Document, model: str) -> int:
        """Return the tokens of a prompt: its turns, inputs or texts."""
        for key in ("messages", "input", "prompt"):
            messages = document.array(key)
            if messages is not None:
                return sum(self._tokens.count_message(raw, model).tokens for raw in messages)
            text = document.value(key)
            if isinstance(text, str):
                return self._tokens.count_text(text, model).tokens
        return 0

    def _failed(
        self, route: Route, rewritten: Rewritten, failures: list[StepReport]
    ) -> tuple[StepReport, ...]:
        """Return the steps' outcomes and what else failed, unless the route rejects such requests."""
        reports = (*rewritten.reports, *dict.fromkeys(failures))
        if route.on_error is OnError.REJECT:
            message = f"{failures[0].name} failed and this route rejects such requests."
            raise PolicyRefusal(
                REJECTED_BY_POLICY, message, route=route.name, model=rewritten.model, steps=reports
            )
        return reports

    def _urgency_facts(self, request: Request, read: _Read, document: Document | None) -> UrgencyFacts:
        says_tier = document is not None and document.has_any(_TIER_FIELDS)
        tier = document.value("service_tier") if document is not None and says_tier else None

        def waits_for_person() -> str | None:
            if document is None or read.dialect is None:
                return None
            return read.dialect.waits_for_person(document)

        def holds(match: Match) -> bool:
            return self.table.holds(match, request.method, request.path, request.header, read.facts)

        return UrgencyFacts(
            header=request.header("x-weir-urgency"),
            service_tier=tier if isinstance(tier, str) else None,
            background=document is not None and says_tier and document.get("background") == b"true",
            stream=read.is_stream,
            waits_for_person=waits_for_person,
            holds=holds,
        )

    def _lane(
        self, route: Route, request: Request, read: _Read, document: Document | None, urgency: UrgencyDecision
    ) -> LaneDecision:
        if urgency.value is Urgency.INTERACTIVE:
            facts = _INTERACTIVE_FACTS
            if route.coalesce is not None and read.dialect is not None:
                facts = replace(facts, endpoint=read.dialect.name, coalesce=True)
            return choose_lane(urgency.value, facts, self._capabilities)
        header = request.header
        deadline = answer_deadline(route, header(DEADLINE_HEADER), self._clock.wall())
        facts = LaneFacts(
            endpoint=read.dialect.name if read.dialect is not None else None,
            stream=read.is_stream,
            ticket="respond-async" in (header("prefer") or "")
            or (document is not None and document.get("background") == b"true"),
            batch=route.batch is not None,
            deadline_seconds=deadline.seconds,
            patience_seconds=caller_patience_seconds(route, header),
            coalesce=route.coalesce is not None,
        )
        return choose_lane(urgency.value, facts, self._capabilities)


def _could_be_dodged(candidates: tuple[Route, ...]) -> bool:
    """Tell whether an unread body would get past a limit that a route may have put on it."""
    for route in candidates:
        if route.enforces:
            return True
        if not route.match.needs_body:
            return False
    return False


_NOT_JSON = "The body is not valid JSON, and this route must read it."
_UNREADABLE = {
    "not_an_object": "The body is not a JSON object, and this route must read it.",
    "too_deep": "The body is nested more deeply than this route reads.",
}
_INTERACTIVE_FACTS = LaneFacts(
    endpoint=None, stream=True, ticket=False, batch=False, deadline_seconds=None, patience_seconds=0.0
)
_USAGE_FIELD = "stream_options"
_TIER_FIELDS = frozenset({"service_tier", "background"})
_UNMATCHED = UrgencyDecision(Urgency.INTERACTIVE, "no route matched")
_UNMATCHED_LANE = LaneDecision(Lane.STREAM, "no route matched")
_UNCLASSIFIED = UrgencyDecision(Urgency.INTERACTIVE, "classifying failed")
_UNCLASSIFIED_LANE = LaneDecision(Lane.STREAM, "classifying failed")
