"""The words in which Weir explains itself: urgency, lane, step outcomes and the reasons for each."""

from __future__ import annotations

from enum import Enum

import msgspec


class Abandoned(Exception):
    """Nobody waits for a decision any more: raised out of deciding, which then ends without one."""


class Urgency(Enum):
    """How soon a request's answer is needed: a property of the request."""

    INTERACTIVE = "interactive"
    SOON = "soon"
    DEFERRABLE = "deferrable"

    # Members are singletons; the inherited hash costs a Python call on the path of every request.
    __hash__ = object.__hash__


class Lane(Enum):
    """How a request is carried: Weir's decision."""

    STREAM = "stream"
    COALESCE = "coalesce"
    BATCH = "batch"

    # Members are singletons; the inherited hash costs a Python call on the path of every request.
    __hash__ = object.__hash__


class Strategy(Enum):
    """How the coalesce lane carries requests together."""

    MERGE = "merge"
    SHARE = "share"
    SAMPLE = "sample"
    WARM = "warm"
    PACE = "pace"

    # Members are singletons; the inherited hash costs a Python call on the path of every request.
    __hash__ = object.__hash__


class ClosedBy(Enum):
    """Why a pool left: nothing was in flight, the call before it returned, a bound was met, or a shutdown.

    `full` is a bound of the policy, `limit` one that the upstream has taught.
    """

    IDLE = "idle"
    RETURNED = "returned"
    MAX_WAIT = "max_wait"
    FULL = "full"
    LIMIT = "limit"
    SHUTDOWN = "shutdown"

    # Members are singletons; the inherited hash costs a Python call on the path of every request.
    __hash__ = object.__hash__


class StepStatus(Enum):
    """What a step did to a request."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"
    FAILED = "failed"
    REJECTED = "rejected"

    # Members are singletons; the inherited hash costs a Python call on the path of every request.
    __hash__ = object.__hash__


class UrgencyDecision(msgspec.Struct, frozen=True):
    """An urgency and the rule that decided it."""

    value: Urgency
    reason: str


class LaneDecision(msgspec.Struct, frozen=True):
    """A lane and why it was chosen, or why the lane that the table wanted was not."""

    value: Lane
    reason: str


class Pooled(msgspec.Struct, frozen=True):
    """How the coalesce lane carried a request: with how many callers in one micro-batch, and what closed it.

    `size` counts the callers, this one included. `is_leader` is true for the one whose request (or whose
    place in the merged one) made the upstream call; a call saved is counted for every other.
    """

    strategy: Strategy
    size: int
    closed_by: ClosedBy
    is_leader: bool


class Deferred(msgspec.Struct, frozen=True):
    """How the batch lane carried a request: as which job, by which of the provider's tiers.

    `cost_usd` is what was paid for the job until its answer was given, `None` where that is not known.
    `is_attached`: the job was begun for an earlier request, of which this is taken for a retry.
    """

    job_id: str
    tier: str = ""
    cost_usd: float | None = None
    is_attached: bool = False


class StepReport(msgspec.Struct, frozen=True):
    """One step's outcome as the headers, the log and `explain` show it.

    `detail` holds ordered key/value pairs such as `("set", 300)`; `reason` says why a step was skipped,
    failed or rejected. `added` names the parameters that it introduced.
    """

    name: str
    status: StepStatus
    reason: str = ""
    detail: tuple[tuple[str, str | int], ...] = ()
    added: tuple[str, ...] = ()

    def without(self, param: str) -> StepReport:
        """Return the outcome once the upstream has refused a parameter that the step may have added."""
        if param not in self.added:
            return self
        reason = f"the upstream refuses {param}"
        left = tuple(name for name in self.added if name != param)
        if left:
            return StepReport(self.name, self.status, reason, self.detail, left)
        return StepReport(self.name, StepStatus.SKIPPED, reason)

    def taken_back(self) -> StepReport:
        """Return the outcome once the upstream was sent what the caller wrote instead."""
        if self.status is not StepStatus.APPLIED:
            return self
        return StepReport(self.name, StepStatus.SKIPPED, "the upstream refused the rewritten request")

    @staticmethod
    def of_failure(name: str, problem: BaseException) -> StepReport:
        """Return the outcome of something that raised. Raises what ends the process, or the decision.

        Only the type is told, since messages may hold what a caller wrote. A panic in a compiled library
        arrives as a BaseException of its own kind: that is a failure like any other.
        """
        if isinstance(problem, (KeyboardInterrupt, SystemExit, Abandoned)):
            raise problem
        return StepReport(name, StepStatus.FAILED, type(problem).__name__)
