"""What the worker says, counted: `proxy.jobs.worker.ports.Watch` over the process's metrics.

Owns which words become labels: those of providers only where they are known.
"""

from __future__ import annotations

from proxy.jobs.model import Batch, Booking, BookingKind, Job
from proxy.jobs.worker.ports import Trouble
from proxy.observe import catalogue
from proxy.observe.metrics import OTHER, Metrics

_TIERS = frozenset(
    {"default", "standard", "flex", "batch", "background_2h", "background_8h", "priority", "unknown"}
)


class MetricsWatch:
    """Counts what the worker says."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def ended(self, job: Job) -> None:
        """See `Watch`."""
        ended_as = job.ended_as or job.state
        self._metrics.add(catalogue.JOBS_ENDED, (job.route, job.tier.value, ended_as.value))
        if job.ended is not None:
            margin = max(0.0, job.deadline - job.ended)
            self._metrics.observe(catalogue.JOB_MARGIN, (job.tier.value,), margin)

    def rescue_begun(self, job: Job) -> None:
        """See `Watch`."""
        self._metrics.add(catalogue.JOB_RESCUES, (job.route, job.tier.value))

    def batch_sent(self, batch: Batch, jobs: int) -> None:
        """See `Watch`."""
        self._metrics.observe(catalogue.JOB_BATCH_SIZE, (batch.group.upstream,), jobs)

    def booked(self, job: Job, booking: Booking) -> None:
        """See `Watch`."""
        metrics = self._metrics
        tier = booking.tier if booking.tier in _TIERS else OTHER
        metrics.add(catalogue.JOB_EXECUTIONS, (job.route, tier, booking.kind.value))
        if booking.usd is not None:
            metrics.add(catalogue.JOB_USD, (job.route, tier), booking.usd)
        if booking.kind is BookingKind.ANSWER and booking.standard_usd is not None:
            metrics.add(catalogue.JOB_STANDARD_USD, (job.route,), booking.standard_usd)

    def trouble(self, kind: Trouble, upstream: str) -> None:
        """See `Watch`."""
        self._metrics.add(catalogue.JOB_TROUBLE, (kind.value, upstream))
