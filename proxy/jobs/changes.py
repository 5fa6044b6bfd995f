"""What is asked of a store and what it says: changes to jobs and batches, questions and their results.

Owns the shapes only; see `proxy.jobs.store` for what happens with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from proxy.jobs.model import Answer, Batch, BatchState, Booking, Group, Job, JobError, JobState, JobTier
from proxy.jobs.provider_text import storable
from proxy.jobs.transitions import BatchEvent, JobEvent


@dataclass(frozen=True, slots=True)
class JobChange:
    """One event for one or more jobs. What is `None` stays as it is.

    due       also gives the job's lease back: somebody looks at it again then
    ready     not before this it may be packed
    answer    of the first ending only: a job has one answer; `Job.answer_source` follows
    booking   booked with the change, once per job and `Booking.key`

    `answer` and `booking` go with a single id. Leaving a batch forgets `batch_id` and `provider_id`, `SUBMIT`
    counts an attempt, an ending erases the credential.
    """

    event: JobEvent
    job_ids: tuple[str, ...]
    due: float | None = None
    ready: float | None = None
    tier: JobTier | None = None
    tiers: tuple[JobTier, ...] | None = None
    provider_id: str | None = None
    error: JobError | None = None
    answer: Answer | None = field(default=None, repr=False)
    booking: Booking | None = None

    def __post_init__(self) -> None:
        if self.provider_id is not None:
            object.__setattr__(self, "provider_id", storable(self.provider_id))


@dataclass(frozen=True, slots=True)
class BatchMove:
    """One event for a batch. What is `None` stays as it is; `due` gives the lease back.

    Words of the provider are kept as stores can hold them: without lone surrogates.
    """

    event: BatchEvent
    due: float | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    provider_id: str | None = None
    ending: str | None = None
    submitted: float | None = None
    provider_expires: float | None = None
    input_bytes: int | None = None
    attempts: int | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        for name in ("input_file_id", "output_file_id", "error_file_id", "provider_id", "ending", "note"):
            said = getattr(self, name)
            if said is not None:
                object.__setattr__(self, name, storable(said))


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a submission: its own job, or the one that it was attached to."""

    job: Job
    is_new: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """What a batch's commit did.

    batch     as it stands now
    applied   ids of the jobs that moved
    refused   the others with where they stand (`None`: deleted): ended already, or in this batch no longer;
              neither answer nor booking of theirs was written
    """

    batch: Batch
    applied: tuple[str, ...]
    refused: Mapping[str, JobState | None]


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Which jobs to list, newest first; `None` is any. `cursor` is `Page.cursor` of the page before."""

    states: frozenset[JobState] | None = None
    upstream: str | None = None
    owner: str | None = None
    created_before: float | None = None
    limit: int = 100
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs; `cursor` leads to the next, `None` after the last. A page may be short and not the last."""

    jobs: tuple[Job, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """The accepted jobs of one group whose next tier is batch; `oldest` is the earliest `ready` of them."""

    group: Group
    jobs: int
    body_bytes: int
    input_tokens: int
    oldest: float


@dataclass(frozen=True, slots=True)
class Census:
    """How many jobs and batches stand where, and when the oldest job there was created. No key: none."""

    jobs: Mapping[JobState, int]
    oldest: Mapping[JobState, float]
    batches: Mapping[BatchState, int]
