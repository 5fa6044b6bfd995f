"""What a policy would do to many requests: sums over a file, in the order in which the requests came.

Every step is measured against a world without it: the same requests as they were before that step. Each world
has a prefix cache of its own, so that what a step saves is net of the cache hits that it costs. Money is that
of the input, of requests whose price is known; how many others there are is said. What output will cost is
not guessed at.
"""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import Any

import msgspec

from proxy.core.decision import StepReport, StepStatus
from proxy.core.document import Document
from proxy.core.errors import ProxyError
from proxy.core.json_values import as_number
from proxy.core.stages import Stage, Trace
from proxy.core.upstream import Provider
from proxy.dialects import dialect_for_path
from proxy.dialects.dialect import Dialect
from proxy.explanation.prompt_cost import Prompt, SeenPrefixes
from proxy.explanation.single import read_prompts, stages_of
from proxy.pipeline import Decision, Pipeline, Request

_MOST_NAMES = 10


class _Figure(msgspec.Struct, frozen=True):
    """One prompt in one world; no dollars where no price is known."""

    tokens: int
    cached: int
    usd: float | None


class _Sums:
    """Input of the requests seen so far: tokens, those of them that no cache held, and dollars."""

    __slots__ = ("tokens", "uncached", "usd")

    def __init__(self) -> None:
        self.tokens = 0
        self.uncached = 0
        self.usd = 0.0

    def add(self, tokens: int, cached: int, usd: float) -> None:
        self.tokens += tokens
        self.uncached += tokens - cached
        self.usd += usd


class _Change:
    """Sums before and after; dollars only of requests whose price is known on both sides."""

    __slots__ = ("after", "before", "unpriced")

    def __init__(self) -> None:
        self.before = _Sums()
        self.after = _Sums()
        self.unpriced = 0

    def add(self, before: _Figure, after: _Figure) -> None:
        is_priced = before.usd is not None and after.usd is not None
        self.unpriced += not is_priced
        for sums, figure in ((self.before, before), (self.after, after)):
            sums.add(figure.tokens, figure.cached, figure.usd or 0.0 if is_priced else 0.0)

    def said(self, has_prices: bool) -> dict[str, Any]:
        before, after = self.before, self.after
        said: dict[str, Any] = {
            "tokens": {"before": before.tokens, "after": after.tokens},
            "uncached_tokens": {"before": before.uncached, "after": after.uncached},
        }
        if has_prices:
            said["usd"] = {"before": before.usd, "after": after.usd, "unpriced_requests": self.unpriced}
        return said


class _StepSums:
    __slots__ = ("change", "reasons", "statuses")

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.change = _Change()


class Corpus:
    """Sums up requests one after the other; memory grows with distinct prefixes only, up to a bound."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._worlds: dict[tuple[str, int], SeenPrefixes] = {}
        self._steps: dict[str, _StepSums] = {}
        self._total = _Change()
        self._counts: Counter[str] = Counter()
        self._routes: Counter[str] = Counter()
        self._urgencies: Counter[str] = Counter()
        self._lanes: Counter[str] = Counter()
        self._rejections: Counter[str] = Counter()
        self._lowered_tokens = 0
        self._unpriced_upstreams: dict[str, None] = {}
        self._unpriced_models: dict[str, None] = {}

    def add(self, request: Request) -> None:
        """Decide about a request as the proxy would, and add what came of it."""
        self._counts["requests"] += 1
        trace = Trace(remembers=True)
        candidates = self._pipeline.candidates(request.method, request.path, request.header)
        try:
            decision = self._pipeline.decide(request, candidates, trace)
        except ProxyError as error:
            self._rejections[error.message] += 1
            return
        self._count_decision(request, decision)
        stages = stages_of(request, decision, trace)
        if stages:
            self._measure(request, decision, stages)

    def _count_decision(self, request: Request, decision: Decision) -> None:
        route = decision.route
        self._routes["" if route is None else route.name] += 1
        if route is None:
            return
        self._urgencies[decision.urgency.value.value] += 1
        self._lanes[decision.lane.value.value] += 1
        if decision.document is None:
            self._counts["unread"] += 1
        elif any(report.status is StepStatus.APPLIED for report in decision.steps):
            self._counts["touched"] += 1
        for report in decision.steps:
            self._count_step(report)

    def _count_step(self, report: StepReport) -> None:
        sums = self._steps.get(report.name)
        if sums is None:
            sums = self._steps[report.name] = _StepSums()
        sums.statuses[report.status.value] += 1
        if report.reason:
            sums.reasons[report.reason] += 1

    def _measure(self, request: Request, decision: Decision, stages: list[Stage]) -> None:
        dialect = decision.dialect or dialect_for_path(request.path)
        route = decision.route.name if decision.route is not None else ""
        prompts = read_prompts(stages, dialect, self._pipeline)
        figures = [self._figure(prompt, (route, index)) for index, prompt in enumerate(prompts)]
        for report, before, after in zip(decision.steps, figures, figures[1:], strict=False):
            self._steps[report.name].change.add(before, after)
        self._total.add(figures[0], figures[-1])
        if figures[0].usd is None or figures[-1].usd is None:
            for stage, figure in ((stages[0], figures[0]), (stages[-1], figures[-1])):
                if figure.usd is None:
                    self._count_unpriced(stage)
        if dialect is not None:
            self._count_caps(stages[0].document, stages[-1].document, dialect)

    def _count_unpriced(self, stage: Stage) -> None:
        """Note what it is that a price is missing for: an upstream's provider, or else the model."""
        if stage.upstream.provider is Provider.GENERIC:
            self._unpriced_upstreams[stage.upstream.name] = None
        elif len(self._unpriced_models) < _MOST_NAMES:
            self._unpriced_models[stage.model] = None

    def _figure(self, prompt: Prompt, world: tuple[str, int]) -> _Figure:
        seen = self._worlds.get(world)
        if seen is None:
            seen = self._worlds[world] = SeenPrefixes()
        cached = seen.cached_tokens(prompt)
        return _Figure(prompt.tokens, cached, prompt.input_usd(cached))

    def _count_caps(self, before: Document, after: Document, dialect: Dialect) -> None:
        if before is after:
            return
        asked, left = _cap(before, dialect), _cap(after, dialect)
        if left is None or asked == left:
            return
        if asked is None:
            self._counts["cap_given"] += 1
        elif asked > left:
            self._counts["cap_lowered"] += 1
            self._lowered_tokens += int(asked - left) if isfinite(asked) else 0

    def summary(self) -> dict[str, Any]:
        """Return the sums as one object; see docs/explain.md for its fields."""
        counts = self._counts
        has_prices = self._pipeline.prices is not None
        said: dict[str, Any] = {
            "requests": counts["requests"],
            "touched": counts["touched"],
            "rejected": dict(self._rejections),
            "unmatched": self._routes[""],
            "unread": counts["unread"],
            "routes": {name: count for name, count in self._routes.items() if name},
            "urgency": dict(self._urgencies),
            "lane": dict(self._lanes),
            "caps": {
                "given": counts["cap_given"],
                "lowered": counts["cap_lowered"],
                "lowered_by_tokens": self._lowered_tokens,
            },
            "steps": [
                {"name": name, "status": dict(sums.statuses), "reasons": dict(sums.reasons)}
                | sums.change.said(has_prices)
                for name, sums in self._steps.items()
            ],
        } | self._total.said(has_prices)
        if has_prices:
            said["usd"]["unpriced_upstreams"] = list(self._unpriced_upstreams)
            said["usd"]["unpriced_models"] = list(map(_printable, self._unpriced_models))
        return said


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _cap(document: Document, dialect: Dialect) -> float | None:
    for name in dialect.cap_field_names:
        raw = document.get(name)
        number = None if raw is None else as_number(raw)
        if number is not None:
            return number
    return None
