"""Owns running a route's steps: in order, each guarded, with what they may know."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from proxy.core.decision import StepReport, StepStatus
from proxy.core.document import Document, TooManyParts
from proxy.core.errors import BODY_TOO_LARGE, REJECTED_BY_POLICY, ErrorCode, ProxyError
from proxy.core.prefixes import SentPrefix
from proxy.core.price import PriceLookup
from proxy.core.stages import Stage, Trace
from proxy.dialects import names_model
from proxy.dialects.dialect import Dialect
from proxy.dialects.unknown import UNKNOWN
from proxy.observe.prefixes import PrefixMemory
from proxy.policy.model import BoundStep, OnError, OnOversize, PolicySet, Route, Upstream
from proxy.policy.recall import Recall
from proxy.policy.watched import IsWanted, check_wanted, watched
from proxy.steps.step import Outcome, Rejected, StepContext, TokenCounting, skipped

HeaderLookup = Callable[[str], str | None]
Refusals = Callable[[str, str], frozenset[str]]
"""From upstream and model to the parameters that are known to be refused there."""

_CREDENTIALS = ("authorization", "x-api-key", "api-key", "openai-organization", "openai-project")
_SCOPE_BYTES = 16
_UNKNOWN_API = "unknown API shape"
_INTEGER_BITS = 64
_PRINTABLE_BITS = 14_000
_LONGEST_VALUE_CHARS = 64


@dataclass(slots=True)
class PolicyRefusal(ProxyError):
    """A request that its route refuses, with what had been found out by then."""

    route: str = ""
    model: str = ""
    steps: tuple[StepReport, ...] = ()


class Rewritten(msgspec.Struct, frozen=True):
    """What the steps made of a request: where it goes, as which model, with which body.

    `added` and `inner` are what may be taken back, as `Outcome` has them.
    """

    document: Document | None
    upstream: Upstream
    model: str
    reports: tuple[StepReport, ...] = ()
    added: frozenset[str] = frozenset()
    tokens: tuple[int, int] | None = None
    inner: frozenset[str] = frozenset()


class Rewriting:
    """The steps of a policy set, ready to run."""

    def __init__(
        self,
        policies: PolicySet,
        tokens: TokenCounting,
        refusals: Refusals,
        prices: PriceLookup | None,
        prefixes: PrefixMemory | None,
    ) -> None:
        self._upstreams = policies.upstreams
        self._recall = Recall(policies)
        self._tokens = tokens
        self._refusals = refusals
        self._prices = prices
        self._prefixes = prefixes

    def run(
        self,
        route: Route,
        upstream: Upstream,
        document: Document | None,
        dialect: Dialect | None,
        model: str,
        header: HeaderLookup,
        trace: Trace | None,
        is_wanted: IsWanted | None = None,
        path: str = "",
    ) -> Rewritten:
        """Apply the steps of `route`. Raises PolicyRefusal where one forbids the request.

        `document` is `None` where the body was not read, `dialect` where its shape is unknown: then the steps
        are skipped, but for those of a readable body that limit what callers may send. `trace`, if given, is
        filled. Raises Abandoned once `is_wanted` says no.
        """
        if not route.steps:
            return Rewritten(document, upstream, model)
        if document is None or (dialect is None and not route.enforces):
            reason = "the body is not a JSON object" if document is None else _UNKNOWN_API
            reports = tuple(StepReport(bound.step.name, StepStatus.SKIPPED, reason) for bound in route.steps)
            return Rewritten(document, upstream, model, reports)
        if dialect is None:
            dialect = UNKNOWN
        elif trace is None and self._recall.applies(route, document):
            return self._recalled(route, upstream, dialect, document, model, header)
        return self._apply_steps(
            route, upstream, dialect, document, model, header, trace, is_wanted, names_model(path)
        )

    def _recalled(
        self,
        route: Route,
        upstream: Upstream,
        dialect: Dialect,
        document: Document,
        model: str,
        header: HeaderLookup,
    ) -> Rewritten:
        """Do what the steps do to every such request; apply them to the first."""
        key = (route.name, dialect.name, model, self._refusals(upstream.name, model))
        known = self._recall.get(key)
        if known is None:
            rewritten = self._apply_steps(route, upstream, dialect, document, model, header, None)
            if rewritten.document is not None:
                self._recall.keep(key, rewritten.document, rewritten.reports, rewritten.added)
            return rewritten
        return Rewritten(document.with_appended(known.appended), upstream, model, known.reports, known.added)

    def _apply_steps(
        self,
        route: Route,
        upstream: Upstream,
        dialect: Dialect,
        document: Document,
        model: str,
        header: HeaderLookup,
        trace: Trace | None,
        is_wanted: IsWanted | None = None,
        is_model_named: bool = False,
    ) -> Rewritten:
        is_counting = route.counts_tokens
        tokens = watched(self._tokens, is_wanted)
        scope = self._scope(upstream, model, header) if is_counting else b""
        context = self._context(dialect, upstream, model, header, scope, tokens, is_model_named)
        document = document.without_duplicates()
        taken = _Taken()
        home = (upstream.name, model)
        for bound in route.steps:
            name = bound.step.name
            if is_wanted is not None:
                check_wanted(is_wanted)
            if trace is not None:
                trace.stages.append(Stage(document, upstream, model))
            try:
                outcome = _applied(bound, document, context)
                document = outcome.document
            except Rejected as rejection:
                taken.reports.append(StepReport(name, StepStatus.REJECTED, rejection.message))
                raise _refusal(route, model, taken.reports, rejection.message, rejection.param) from None
            except TooManyParts:
                reason = "the body has more parts than this step looks at"
                taken.reports.append(StepReport(name, StepStatus.SKIPPED, reason))
                if _must_look(route, bound):
                    raise _refusal(
                        route, model, taken.reports, f"{name}: {reason}.", None, BODY_TOO_LARGE
                    ) from None
                continue
            except BaseException as problem:
                taken.reports.append(StepReport.of_failure(name, problem))
                if route.on_error is OnError.REJECT:
                    message = f"The step {name} failed and this route rejects such requests."
                    raise _refusal(route, model, taken.reports, message, None) from None
                continue
            taken.take(name, outcome, scope)
            if outcome.model is not None or outcome.upstream is not None:
                model = outcome.model or model
                upstream = self._upstreams[outcome.upstream or upstream.name]
                scope = self._scope(upstream, model, header) if is_counting else b""
                context = self._context(dialect, upstream, model, header, scope, tokens, is_model_named)
        if taken.added and home != (upstream.name, model):
            document = taken.without(self._refusals(upstream.name, model), document)
        if trace is not None:
            trace.stages.append(Stage(document, upstream, model))
        if trace is None or trace.remembers:
            self._remember(taken.sent)
        added, inner = frozenset(taken.added), frozenset(taken.inner)
        return Rewritten(document, upstream, model, tuple(taken.reports), added, taken.tokens, inner)

    def _remember(self, sent: list[tuple[bytes, SentPrefix]]) -> None:
        for scope, prefix in sent:
            if self._prefixes is not None:
                self._prefixes.remember(scope, prefix)

    def _context(
        self,
        dialect: Dialect,
        upstream: Upstream,
        model: str,
        header: HeaderLookup,
        scope: bytes,
        tokens: TokenCounting,
        is_model_named: bool,
    ) -> StepContext:
        return StepContext(
            dialect,
            model,
            upstream.provider.value,
            tokens,
            self._refusals(upstream.name, model),
            header,
            self._prices,
            self._prefixes.scoped(scope) if scope and self._prefixes is not None else None,
            is_model_named,
        )

    def _scope(self, upstream: Upstream, model: str, header: HeaderLookup) -> bytes:
        """Return a digest of whose prompt cache it is: nothing is shared between credentials."""
        if self._prefixes is None:
            return b""
        parts = (upstream.name, model, *(header(name) or "" for name in _CREDENTIALS))
        return hashlib.blake2b(repr(parts).encode(), digest_size=_SCOPE_BYTES).digest()


class _Taken(msgspec.Struct):
    """What the steps so far have said."""

    reports: list[StepReport] = []
    added: set[str] = set()
    inner: set[str] = set()
    sent: list[tuple[bytes, SentPrefix]] = []
    tokens: tuple[int, int] | None = None

    def take(self, name: str, outcome: Outcome, scope: bytes) -> None:
        """Note the outcome of a step; `scope` is whose prompt cache it was about."""
        if outcome.added:
            self.added.update(outcome.added)
            self.added.difference_update(outcome.required)
        if outcome.inner:
            self.inner.update(outcome.inner)
        detail = outcome.detail and _short(outcome.detail)
        self.reports.append(StepReport(name, outcome.status, outcome.reason, detail, outcome.added))
        if outcome.tokens is not None:
            self.tokens = (self.tokens or outcome.tokens)[0], outcome.tokens[1]
        if outcome.sent is not None:
            self.sent.append((scope, outcome.sent))

    def without(self, refused: frozenset[str], document: Document) -> Document:
        """Take back what was added before the model was chosen, where that one is known to refuse it."""
        for param in sorted(self.added & refused):
            document = document.delete(param)
            self.reports = [report.without(param) for report in self.reports]
            self.added.discard(param)
        return document


def _applied(bound: BoundStep, document: Document, context: StepContext) -> Outcome:
    """Apply a step; to an API of unknown shape only one that limits what callers may send."""
    if context.dialect is UNKNOWN and not bound.step.enforces(bound.config):
        return skipped(document, _UNKNOWN_API)
    return bound.step.apply(document, bound.config, context)


def _must_look(route: Route, bound: BoundStep) -> bool:
    """Tell whether a body that a step cannot look at as a whole must be refused, as one too large is."""
    match route.on_oversize:
        case OnOversize.REJECT:
            return True
        case OnOversize.PASS:
            return False
        case OnOversize.AUTO:
            return bound.step.enforces(bound.config)


def _short(detail: tuple[tuple[str, str | int], ...]) -> tuple[tuple[str, str | int], ...]:
    """Return details as they may be shown: callers write numbers of thousands of digits."""
    for _, value in detail:
        if isinstance(value, str) or value.bit_length() >= _INTEGER_BITS:
            return tuple((key, _short_value(value)) for key, value in detail)
    return detail


def _short_value(value: str | int) -> str | int:
    if isinstance(value, int):
        if value.bit_length() < _INTEGER_BITS:
            return value
        value = str(value) if value.bit_length() <= _PRINTABLE_BITS else "beyond all bounds"
    return value if len(value) <= _LONGEST_VALUE_CHARS else value[:_LONGEST_VALUE_CHARS] + "..."


def _refusal(
    route: Route,
    model: str,
    reports: list[StepReport],
    message: str,
    param: str | None,
    kind: ErrorCode = REJECTED_BY_POLICY,
) -> PolicyRefusal:
    """Return what is raised where a step forbids a request, or failed and must not have."""
    return PolicyRefusal(kind, message, param, route=route.name, model=model, steps=tuple(reports))
