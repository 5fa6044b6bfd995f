"""What the worker is told by others and tells others: upstreams, a route's wishes, figures.

Owns the ports and the worker's settings. Refuses to know policies and metrics themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from proxy.core.price import OfferLookup, PriceLookup
from proxy.core.upstream import Upstream
from proxy.jobs.model import Batch, Booking, Job
from proxy.jobs.tiers import CALLS_AT_ONCE


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. Durations are seconds.

    name               of this worker: no two may share one
    lease              how long a killed worker's work lies before another takes it over
    calls, batches     how many single calls and batch steps go on at once
    notices            how many ends are told at once
    idle               longest time without a look at the store
    backoff, backoff_most   first and longest wait after failures of a provider
    poll, poll_most    first and longest time between two looks at what a provider works on
    uncertain          before a creation whose outcome is unknown is looked for
    batch_jobs         most jobs in one batch
    batch_tries        how often a job goes through batches before another tier takes it
    flex_misses        how often flex may have no capacity before another cheap tier takes the job
    splits             how often a batch that exceeds a quota is halved
    beat               how often a worker tells its clock and hears the others'
    clean_tries        how often the deletion of a provider's files is tried
    """

    name: str
    lease_seconds: float = 30.0
    calls: int = CALLS_AT_ONCE
    batches: int = 8
    notices: int = 16
    idle_seconds: float = 1.0
    backoff_seconds: float = 2.0
    backoff_most_seconds: float = 300.0
    poll_seconds: float = 5.0
    poll_most_seconds: float = 60.0
    uncertain_seconds: float = 10.0
    batch_jobs: int = 5_000
    batch_tries: int = 3
    flex_misses: int = 5
    splits: int = 6
    clean_tries: int = 8
    purge_every_seconds: float = 60.0
    pace_lifetime_seconds: float = 5.0
    beat_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class RouteRules:
    """What a route wants of the packing of its jobs; `min_jobs`: fewer do not make a batch."""

    flush_jobs: int = 500
    flush_after_seconds: float = 60.0
    min_jobs: int = 1


class Directory(Protocol):
    """Whoever knows the policies that are in force now."""

    def upstream(self, name: str) -> Upstream | None:
        """Return an upstream, `None` when there is none of that name any more."""
        ...

    def rules(self, route: str) -> RouteRules:
        """Return a route's rules; the defaults for a route that is gone."""
        ...


class Prices(PriceLookup, OfferLookup, Protocol):
    """Whoever knows prices and offers."""


class Trouble(Enum):
    """What went wrong and was dealt with: counted, never fatal."""

    STORE = "store_unavailable"
    LEASE_LOST = "lease_lost"
    PROVIDER = "provider_unavailable"
    RATE_LIMITED = "rate_limited"
    CREDENTIALS = "credentials_refused"
    CAPACITY_MISS = "capacity_miss"
    QUOTA = "quota_refusal"
    REFUSED = "batch_refused"
    GONE = "batch_gone"
    MISSING_LINE = "missing_line"
    UNKNOWN_LINE = "unknown_line"
    DUPLICATE_LINE = "duplicate_line"
    DUPLICATE_BATCH = "duplicate_batch"
    LOST_CALL = "lost_call"
    CLOCK_AHEAD = "clock_ahead"
    INTERNAL = "internal_error"


class Watch(Protocol):
    """Whoever counts. Calls must not raise and return at once."""

    def ended(self, job: Job) -> None:
        """A job has ended; `job.ended_as` says how."""
        ...

    def rescue_begun(self, job: Job) -> None:
        """A direct call was begun because the job's tier is late."""
        ...

    def batch_sent(self, batch: Batch, jobs: int) -> None:
        """A provider accepted a batch."""
        ...

    def booked(self, job: Job, booking: Booking) -> None:
        """An execution was booked, once."""
        ...

    def trouble(self, kind: Trouble, upstream: str) -> None:
        """Something went wrong; `upstream` is empty for what concerns none."""
        ...


class SilentWatch:
    """Counts nothing."""

    def ended(self, job: Job) -> None:
        """See `Watch`."""

    def rescue_begun(self, job: Job) -> None:
        """See `Watch`."""

    def batch_sent(self, batch: Batch, jobs: int) -> None:
        """See `Watch`."""

    def booked(self, job: Job, booking: Booking) -> None:
        """See `Watch`."""

    def trouble(self, kind: Trouble, upstream: str) -> None:
        """See `Watch`."""
