"""Owns what a route's steps did to requests that say nothing any of them reads: the same, every time.

Most requests set none of the parameters that caps, stops and rules look at. For them the steps' outcome
depends on the route, the model and the API shape only, and is worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from proxy.core.decision import StepReport, StepStatus
from proxy.core.document import Document
from proxy.policy.model import PolicySet, Route

_MAX_ENTRIES = 4_096
_MAX_MODEL_CHARS = 200

Key = tuple[str, str, str, frozenset[str]]
"""Route, API shape, model, and the parameters that the upstream is known to refuse for it."""


class Recalled(msgspec.Struct, frozen=True):
    """What the steps did: members appended to the body, and how they said it."""

    appended: Mapping[str, bytes]
    reports: tuple[StepReport, ...]
    added: frozenset[str]


class Recall:
    """The outcomes of one policy set. Forgetting any of them costs time only."""

    def __init__(self, policies: PolicySet) -> None:
        self._reads = {route.name: _reads(route) for route in policies.routes if route.steps}
        self._known: dict[Key, Recalled] = {}

    def applies(self, route: Route, document: Document) -> bool:
        """Tell whether the steps of `route` find nothing to read in `document`."""
        reads = self._reads.get(route.name)
        return (
            reads is not None
            and not document.has_any(reads)
            and not document.duplicates
            # Keys that a lenient server reads as others are for the steps to judge.
            and not (route.enforces and document.has_odd_keys())
        )

    def get(self, key: Key) -> Recalled | None:
        """Return what is known."""
        return self._known.get(key)

    def keep(self, key: Key, after: Document, reports: tuple[StepReport, ...], added: frozenset[str]) -> None:
        """Remember an outcome, unless a step failed in it."""
        if len(key[2]) > _MAX_MODEL_CHARS or any(report.status is StepStatus.FAILED for report in reports):
            return
        if len(self._known) >= _MAX_ENTRIES:
            self._known.clear()
        self._known[key] = Recalled(after.appended(), reports, added)


def _reads(route: Route) -> frozenset[str] | None:
    read: frozenset[str] = frozenset()
    for bound in route.steps:
        names = bound.step.reads(bound.config)
        if names is None:
            return None
        read |= names
    return read
