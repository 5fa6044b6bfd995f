"""Every legal move of a job and of a batch, in two tables. Pure; what is not here does not happen.

Owns which event leads from where to where, retries included. Stores apply the tables, each in one atomic step
of its own; docs/jobs.md shows them, and a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from proxy.jobs.model import LIVE_JOB_STATES, BatchState, JobState


class IllegalTransition(Exception):
    """A move that the table does not know: a fault of the program, never of a race."""


class JobEvent(Enum):
    """What happens to jobs.

    pack          chosen for a batch
    submit        sent to the provider: its batch was created, or its single call begins
    progress      still with the provider
    begin_rescue  a direct call starts beside the tier's own work
    return        given back untried: its batch was split or abandoned, or another tier is to carry it
    retry         given back after a failure that may pass
    succeed       the provider's answer is here, of whatever status will not change
    rescue        the answer of the direct call is here
    fail          no answer will come
    expire        its deadline has passed
    cancel        its owner or an operator gave it up
    deliver       the caller has been given the ending
    reset         an operator tries it again
    """

    PACK = "pack"
    SUBMIT = "submit"
    PROGRESS = "progress"
    BEGIN_RESCUE = "begin_rescue"
    RETURN = "return"
    RETRY = "retry"
    SUCCEED = "succeed"
    RESCUE = "rescue"
    FAIL = "fail"
    EXPIRE = "expire"
    CANCEL = "cancel"
    DELIVER = "deliver"
    RESET = "reset"


class BatchEvent(Enum):
    """What happens to batches.

    upload    its input file is with the provider
    create    the provider accepted it, or was found to have done so
    postpone  nothing has changed; look again later
    end       the provider has finished with it
    settle    every job has left it
    refuse    the provider took none of it, and every job has left it
    abandon   it was never accepted, and every job has left it
    clean     the provider's files are deleted
    """

    UPLOAD = "upload"
    CREATE = "create"
    POSTPONE = "postpone"
    END = "end"
    SETTLE = "settle"
    REFUSE = "refuse"
    ABANDON = "abandon"
    CLEAN = "clean"


def _to(target: JobState, *sources: JobState) -> Mapping[JobState, JobState]:
    return dict.fromkeys(sources, target)


def _stay(*states: JobState) -> Mapping[JobState, JobState]:
    return {state: state for state in states}


_ACCEPTED, _PACKED, _SUBMITTED = JobState.ACCEPTED, JobState.PACKED, JobState.SUBMITTED
_LIVE = tuple(state for state in JobState if state in LIVE_JOB_STATES)
_ENDINGS = (
    JobState.SUCCEEDED,
    JobState.FAILED,
    JobState.EXPIRED,
    JobState.CANCELLED,
    JobState.RESCUED,
)

JOB_TRANSITIONS: Mapping[JobEvent, Mapping[JobState, JobState]] = {
    JobEvent.PACK: _to(_PACKED, _ACCEPTED),
    JobEvent.SUBMIT: _to(_SUBMITTED, _ACCEPTED, _PACKED),
    JobEvent.PROGRESS: _stay(_SUBMITTED),
    JobEvent.BEGIN_RESCUE: _stay(_PACKED, _SUBMITTED),
    JobEvent.RETURN: _to(_ACCEPTED, *_LIVE),
    JobEvent.RETRY: _to(_ACCEPTED, *_LIVE),
    JobEvent.SUCCEED: _to(JobState.SUCCEEDED, _SUBMITTED),
    JobEvent.RESCUE: _to(JobState.RESCUED, *_LIVE),
    JobEvent.FAIL: _to(JobState.FAILED, *_LIVE),
    JobEvent.EXPIRE: _to(JobState.EXPIRED, *_LIVE),
    JobEvent.CANCEL: _to(JobState.CANCELLED, *_LIVE),
    JobEvent.DELIVER: _to(JobState.DELIVERED, *_ENDINGS),
    JobEvent.RESET: _to(_ACCEPTED, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED),
}

_INTENT, _UPLOADED, _CREATED = BatchState.INTENT, BatchState.UPLOADED, BatchState.CREATED

BATCH_TRANSITIONS: Mapping[BatchEvent, Mapping[BatchState, BatchState]] = {
    BatchEvent.UPLOAD: {_INTENT: _UPLOADED, _UPLOADED: _UPLOADED},
    BatchEvent.CREATE: {_INTENT: _CREATED, _UPLOADED: _CREATED},
    BatchEvent.POSTPONE: {state: state for state in BatchState if state is not BatchState.CLEANED},
    BatchEvent.END: {_CREATED: BatchState.ENDED},
    BatchEvent.SETTLE: {BatchState.ENDED: BatchState.SETTLED},
    BatchEvent.REFUSE: dict.fromkeys((_INTENT, _UPLOADED, _CREATED, BatchState.ENDED), BatchState.REFUSED),
    BatchEvent.ABANDON: dict.fromkeys((_INTENT, _UPLOADED), BatchState.ABANDONED),
    BatchEvent.CLEAN: dict.fromkeys(
        (BatchState.SETTLED, BatchState.REFUSED, BatchState.ABANDONED), BatchState.CLEANED
    ),
}

EMPTYING: frozenset[BatchEvent] = frozenset({BatchEvent.SETTLE, BatchEvent.REFUSE, BatchEvent.ABANDON})
"""Events that need every job to have left the batch, in the same step at the latest."""

ENDING: frozenset[JobEvent] = frozenset(
    {JobEvent.SUCCEED, JobEvent.RESCUE, JobEvent.FAIL, JobEvent.EXPIRE, JobEvent.CANCEL}
)
"""Events that end a job: its credential is erased, whoever waits for it is told."""

LEAVING: frozenset[JobEvent] = ENDING | {JobEvent.RETURN, JobEvent.RETRY}
"""Events that take a job out of its batch."""


def job_target(event: JobEvent, state: JobState) -> JobState:
    """Return where an event leads. Raises `IllegalTransition` for a move that is not in the table."""
    target = JOB_TRANSITIONS[event].get(state)
    if target is None:
        raise IllegalTransition(f"a job that is {state.value} cannot {event.value}")
    return target


def batch_target(event: BatchEvent, state: BatchState) -> BatchState:
    """Return where an event leads. Raises `IllegalTransition` for a move that is not in the table."""
    target = BATCH_TRANSITIONS[event].get(state)
    if target is None:
        raise IllegalTransition(f"a batch that is {state.value} cannot {event.value}")
    return target


def job_sources(event: JobEvent) -> frozenset[JobState]:
    """Return the states in which an event may happen to a job."""
    return frozenset(JOB_TRANSITIONS[event])


def batch_sources(event: BatchEvent) -> frozenset[BatchState]:
    """Return the states in which an event may happen to a batch."""
    return frozenset(BATCH_TRANSITIONS[event])


def table_rows() -> Iterable[tuple[str, str, str, str]]:
    """Yield (job | batch, event, from, to) for every legal transition, in the order of the tables."""
    for job_event, job_moves in JOB_TRANSITIONS.items():
        for job_source, target in job_moves.items():
            yield "job", job_event.value, job_source.value, target.value
    for batch_event, batch_moves in BATCH_TRANSITIONS.items():
        for batch_source, batch_end in batch_moves.items():
            yield "batch", batch_event.value, batch_source.value, batch_end.value
