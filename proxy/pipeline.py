"""The path of a request: match, steps, urgency, lane. The same code answers a live call and `explain`.

Everything here is synchronous and pure but for the clock; carrying the request is the lanes' business.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from proxy.core.clock import Clock
from proxy.core.decision import Lane, LaneDecision, StepReport, StepStatus, Urgency, UrgencyDecision
from proxy.core.document import Document, DocumentError, TooManyParts
from proxy.core.errors import BODY_TOO_LARGE, REJECTED_BY_POLICY, ProxyError
from proxy.core.price import PriceLookup
from proxy.core.stages import Trace
from proxy.dialects import dialect_for_path
from proxy.dialects.dialect import Dialect
from proxy.lanes.batch.background import continues_deferred
from proxy.lanes.batch.deferring import Deferring
from proxy.lanes.batch.plan import DeferralPlan
from proxy.lanes.choice import Asked, interactive_lane, lane_for
from proxy.observe.prefixes import PrefixMemory
from proxy.policy.batch_api import asks_batch_api, may_ask_batch_api
from proxy.policy.conditions import RequestFacts
from proxy.policy.lane import LaneCapabilities
from proxy.policy.match import Lost, RouteTable
from proxy.policy.model import Match, OnError, PolicySet, Route, Upstream, UsageMode
from proxy.policy.rewriting import PolicyRefusal, Refusals, Rewriting, Rewritten
from proxy.policy.unreadable import check_names, check_passes_unread, is_readable_elsewhere
from proxy.policy.urgency import UrgencyFacts, classify
from proxy.policy.watched import IsWanted, count_prompt, watched
from proxy.policy.webhook_choice import check_named_webhook
from proxy.steps.step import TokenCounting

HeaderLookup = Callable[[str], str | None]


class Request(msgspec.Struct, frozen=True):
    """What is decided about. `path` is percent-decoded, without query; `body` is plain (not compressed).

    `is_wanted` tells whether anybody still waits for the decision; `None` is somebody who always does.
    `urgency` is known beforehand where nobody waits for an answer: nothing is classified then.
    """

    method: str
    path: str
    header: HeaderLookup
    body: bytes
    is_wanted: IsWanted | None = None
    urgency: UrgencyDecision | None = None


class Decision(msgspec.Struct, frozen=True):
    """What will happen to a request, and why.

    `document` is what is sent (`None`: the body was not readable and goes out as it came). `added` names
    parameters that Weir introduced and may take back, `inner` members that it put deeper. `given_model` is
    the caller's. `is_moved` says that a step chose another upstream than the route's. `asks_usage` says that
    the stream's usage event was asked for on Weir's behalf and must be taken out again. `deferral` is how
    the batch lane carries it.
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
    deferral: DeferralPlan | None = None


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
    """A policy set with everything that deciding needs. Immutable; a reload makes a new one.

    `counter` counts tokens here, `prices` knows prices, if anybody does. `has_served` tells whether there is
    an upstream that Weir's own batch API serves.
    """

    def __init__(
        self,
        policies: PolicySet,
        tokens: TokenCounting,
        clock: Clock,
        capabilities: LaneCapabilities = LaneCapabilities(),
        refusals: Refusals = lambda upstream, model: frozenset(),
        prices: PriceLookup | None = None,
        prefixes: PrefixMemory | None = None,
        deferring: Deferring | None = None,
    ) -> None:
        self.policies = policies
        self.table = RouteTable(policies)
        self.has_served = any(upstream.batch_api is not None for upstream in policies.upstreams.values())
        self.counter = tokens
        self._clock = clock
        self._capabilities = capabilities
        self._deferring = deferring
        self.prices = prices
        self._refusals = refusals
        self._rewriting = Rewriting(policies, tokens, refusals, prices, prefixes)

    def candidates(self, method: str, path: str, header: HeaderLookup) -> tuple[Route, ...]:
        """Return the routes that the head alone does not rule out, in order."""
        return self.table.candidates(method, path, header)

    def base_of(self, path: str) -> str | None:
        """Return the base path of an upstream that a path outside `/v1` lies below, in lower case."""
        return self.table.bases.base_of(path.lower())

    def keeps_target(self, base: str, decision: Decision) -> bool:
        """Tell whether a path below `base` reaches its API at the chosen upstream as it is."""
        return decision.route is None or self.table.bases.leads_there(base, decision.upstream.name)

    def route(self, request: Request, candidates: tuple[Route, ...]) -> Route | None:
        """Return the route that a request takes. Raises ProxyError where its body cannot be judged."""
        return self.table.pick(candidates, self._read(request, candidates).facts)

    def decide(self, request: Request, candidates: tuple[Route, ...], trace: Trace | None = None) -> Decision:
        """Decide about a request, whole. Raises ProxyError where the policy refuses it, and Abandoned.

        `trace`, if given, is filled.
        """
        read = self._read(request, candidates)
        route = self.table.pick(candidates, read.facts)  # 1 match
        if route is None:
            # Whose id of ours the upstream would not know is read where the body was read anyway.
            document = read.document if continues_deferred(read.document) else None
            return msgspec.structs.replace(
                self.untouched(read.dialect), steps=tuple(read.failures), document=document
            )
        check_named_webhook(route, request.header, self.policies)
        upstream = self.policies.upstreams[route.upstream or self.policies.default_upstream]
        rewritten = self._rewritten(route, upstream, request, read, trace)  # 2 steps
        document, added = rewritten.document, rewritten.added
        try:
            urgency = request.urgency or classify(  # 3 urgency
                route, self._urgency_facts(request, read, document)
            )
            lane, deferral = self._lane(route, request, read, rewritten, urgency)  # 4 lane
        except BaseException as problem:
            read.failures.append(StepReport.of_failure("classify", problem))
            urgency, lane, deferral = _UNCLASSIFIED, _UNCLASSIFIED_LANE, None
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
            asking = _asking_usage(read.dialect, document)
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
            deferral=deferral,
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

    def unread(self, candidates: tuple[Route, ...], reason: str = "the body was not read") -> Decision:
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
            message = "The body is more than this route reads, and which upstream it goes to depends on it."
            raise ProxyError(BODY_TOO_LARGE, message)
        if route is None:
            return self.untouched()
        return msgspec.structs.replace(
            self.untouched(),
            route=route,
            upstream=self.policies.upstreams[names.pop()],
            steps=tuple(StepReport(bound.step.name, StepStatus.SKIPPED, reason) for bound in route.steps),
            urgency=UrgencyDecision(Urgency.INTERACTIVE, reason),
            lane=LaneDecision(Lane.STREAM, reason),
        )

    def served(self, path: str, candidates: tuple[Route, ...]) -> Decision | None:
        """Return the decision for a request that Weir's own batch API answers, `None` for any other.

        No step sees it, and routes that ask about the body are passed over: no body of that API tells.
        """
        path = path.lower()
        if not may_ask_batch_api(path) or not asks_batch_api(self.table.bases.names(path)):
            return None
        route = self.table.pick(candidates, None)
        named = None if route is None else route.upstream
        upstream = self.policies.upstreams[named or self.policies.default_upstream]
        if upstream.batch_api is None:
            return None
        own = {"route": route, "upstream": upstream, "urgency": _SERVED, "lane": SERVED_LANE}
        return msgspec.structs.replace(self.untouched(), **own)

    def explain(self, request: Request, trace: Trace | None = None) -> Decision:
        """Decide about a request without candidates from a live head, and say why earlier routes lost.

        `trace`, if given, is filled.
        """
        candidates = self.candidates(request.method, request.path, request.header)
        decision = self.served(request.path, candidates) if self.has_served else None
        facts = self._read(request, candidates).facts if decision is None else None
        _, lost = self.table.explain(request.method, request.path, request.header, facts)
        if decision is None:
            decision = self.decide(request, candidates, Trace() if trace is None else trace)
        return msgspec.structs.replace(decision, lost=lost)

    # --- phases ---------------------------------------------------------------------------------------

    def _read(self, request: Request, candidates: tuple[Route, ...]) -> _Read:
        dialect = self._dialect(request.path)
        try:
            depth = max((route.max_json_depth for route in candidates), default=512)
            document = Document.parse(request.body, depth)
        except DocumentError as problem:
            check_passes_unread(problem, candidates, is_known_api=dialect is not None)
            if is_readable_elsewhere(problem):
                self.unread(candidates)  # refuses where the upstream hangs on what was not read
            return _Read(None, dialect, "", False, None, [])
        check_names(document, candidates)
        model = document.value("model")
        model = model if isinstance(model, str) else ""
        is_stream = dialect.is_stream(document) if dialect is not None else document.get("stream") == b"true"

        failures: list[StepReport] = []

        def count() -> int:
            try:
                return count_prompt(watched(self.counter, request.is_wanted), document, model)
            except BaseException as problem:
                failures.append(StepReport.of_failure("count_tokens", problem))
                return len(request.body) // 4

        tools = document.get("tools")
        facts = RequestFacts(
            model or None, tools is not None and tools not in (b"null", b"[]"), is_stream, count
        )
        return _Read(document, dialect, model, is_stream, facts, failures)

    def _rewritten(
        self, route: Route, upstream: Upstream, request: Request, read: _Read, trace: Trace | None
    ) -> Rewritten:
        return self._rewriting.run(
            route,
            upstream,
            read.document,
            read.dialect,
            read.model,
            request.header,
            trace,
            request.is_wanted,
            request.path,
        )

    def _dialect(self, path: str) -> Dialect | None:
        """Return what is spoken at a path, in whichever case, by any of its names."""
        found = dialect_for_path(path)
        if found is None:
            dialects = map(dialect_for_path, self.table.bases.names(path.lower()))
            found = next((dialect for dialect in dialects if dialect is not None), None)
        return found

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
        self, route: Route, request: Request, read: _Read, rewritten: Rewritten, urgency: UrgencyDecision
    ) -> tuple[LaneDecision, DeferralPlan | None]:
        if urgency.value is Urgency.INTERACTIVE:
            return interactive_lane(route, read.dialect, self._capabilities), None
        asked = Asked(
            dialect=read.dialect,
            document=rewritten.document,
            upstream=rewritten.upstream,
            model=rewritten.model,
            is_stream=read.is_stream,
            header=request.header,
            method=request.method,
            is_named_so=lambda path: path in self.table.bases.names(request.path.lower()),
        )
        return lane_for(route, urgency.value, asked, self._capabilities, self._deferring, self._clock.wall)


def _asking_usage(dialect: Dialect, document: Document) -> Document:
    try:
        return dialect.ask_usage(document)
    except TooManyParts:
        return document


_USAGE_FIELD = "stream_options"
_TIER_FIELDS = frozenset({"service_tier", "background"})
_UNMATCHED = UrgencyDecision(Urgency.INTERACTIVE, "no route matched")
_UNMATCHED_LANE = LaneDecision(Lane.STREAM, "no route matched")
_UNCLASSIFIED = UrgencyDecision(Urgency.INTERACTIVE, "classifying failed")
_UNCLASSIFIED_LANE = LaneDecision(Lane.STREAM, "classifying failed")
_SERVED = UrgencyDecision(Urgency.INTERACTIVE, "batch API of Weir")
SERVED_LANE = LaneDecision(Lane.BATCH, "batch API of Weir")
"""Of what Weir's own batch API answers; told from other lanes by being this very object."""
