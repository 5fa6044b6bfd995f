"""Whose end is told to a webhook, when that becomes due, and as which event. Pure.

Owns the rule that only promised answers are told: a held caller hears the end on its own connection.
`lua/prelude.lua` says the same for Redis.
"""

from __future__ import annotations

from proxy.core.json_values import decode
from proxy.jobs.model import Answer, Delivery, Job, JobState
from proxy.jobs.response_ids import response_id
from proxy.webhooks.event import Event
from proxy.webhooks.schedule import told_until

_RESPONSE_STATUSES = frozenset({"completed", "failed", "cancelled", "incomplete"})
_ENDINGS = {
    JobState.SUCCEEDED: "succeeded",
    JobState.RESCUED: "succeeded",
    JobState.EXPIRED: "expired",
    JobState.CANCELLED: "cancelled",
}


def is_wished(job: Job) -> bool:
    """Tell whether a job's end is to be told."""
    return bool(job.webhook) and job.delivery is not Delivery.HOLD


def needs_answer(job: Job) -> bool:
    """Tell whether only a job's answer says as which event its end is told."""
    return job.delivery is Delivery.BACKGROUND and job.answer_source is not None


def until(job: Job) -> float:
    """Return until when the end of a job is told."""
    return told_until(_ended(job), job.purge_at)


def event_of(job: Job, answer: Answer | None) -> Event:
    """Return the event of an ended job: a background response is told as its API would tell it."""
    if job.delivery is Delivery.BACKGROUND:
        return Event(f"response.{_response_status(job, answer)}", response_id(job.id), _ended(job))
    ending = _ENDINGS.get(job.ended_as or job.state, "failed")
    return Event(f"weir.job.{ending}", job.id, _ended(job))


def _response_status(job: Job, answer: Answer | None) -> str:
    """Return the status that polling the response shows."""
    if answer is not None and answer.status < 300:
        said = decode(answer.body)
        if isinstance(said, dict):
            status = said.get("status")
            return status if isinstance(status, str) and status in _RESPONSE_STATUSES else "completed"
    return "cancelled" if (job.ended_as or job.state) is JobState.CANCELLED else "failed"


def _ended(job: Job) -> float:
    return job.updated if job.ended is None else job.ended
