from __future__ import annotations

from dataclasses import replace

from proxy.jobs.counting import MetricsWatch
from proxy.jobs.model import Booking, BookingKind, JobState, JobTier
from proxy.jobs.worker.ports import Trouble
from proxy.observe.metrics import Metrics, render
from tests.unit.lanes.batch.test_answers import JOB


def test_what_the_worker_says_is_counted_under_bounded_names() -> None:
    metrics = Metrics()
    watch = MetricsWatch(metrics)
    end = {"ended": JOB.deadline + 5, "ended_as": JobState.SUCCEEDED, "state": JobState.SUCCEEDED}
    job = replace(JOB, route="nightly", tier=JobTier.FLEX, **end)  # type: ignore[arg-type]
    watch.ended(job)
    watch.rescue_begun(job)
    watch.booked(job, Booking(job.id, "call:1", BookingKind.ANSWER, "flex", usd=0.5, standard_usd=1.0))
    watch.booked(job, Booking(job.id, "rescue", BookingKind.LOSER, "whatever a provider says"))
    watch.trouble(Trouble.QUOTA, "openai")
    page = render(metrics.snapshot()).decode()
    for line in (
        'weir_jobs_ended_total{ended_as="succeeded",route="nightly",tier="flex"} 1.0',
        'weir_job_deadline_margin_seconds_bucket{le="0.0",tier="flex"} 1.0',
        'weir_job_rescues_total{route="nightly",tier="flex"} 1.0',
        'weir_job_executions_total{kind="loser",route="nightly",tier="other"} 1.0',
        'weir_job_usd_total{route="nightly",tier="flex"} 0.5',
        'weir_job_standard_usd_total{route="nightly"} 1.0',
        'weir_job_trouble_total{kind="quota_refusal",upstream="openai"} 1.0',
    ):
        assert line in page
    assert "whatever" not in page
