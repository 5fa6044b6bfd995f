"""The values of deferred work: jobs, batches, answers, bookings. Frozen; times are seconds since the epoch.

Owns what a job is. Refuses to know how a job moves (`transitions`) and where it is kept (`store`). A body and
an answer may be megabytes while a job is looked at often, so both are kept and asked for apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum

from proxy.jobs.provider_text import relayable, storable

NEVER = 9_999_999_999.0
"""A time that does not come (in the year 2286): what is due then is due to nobody."""

HeaderFields = tuple[tuple[str, str], ...]
"""Names and values of header fields, in order, duplicates kept."""


class JobState(Enum):
    """Where a job stands. The order is that of a life without accidents."""

    ACCEPTED = "accepted"
    PACKED = "packed"
    SUBMITTED = "submitted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    RESCUED = "rescued"
    DELIVERED = "delivered"


LIVE_JOB_STATES = frozenset({JobState.ACCEPTED, JobState.PACKED, JobState.SUBMITTED})
ENDED_JOB_STATES = frozenset(JobState) - LIVE_JOB_STATES
"""What has an ending; `DELIVERED` remembers which in `Job.ended_as`."""


class BatchState(Enum):
    """Where a batch stands.

    intent     its jobs are chosen; the provider may know nothing, or more than we do
    uploaded   its input file is with the provider
    created    the provider has accepted it
    ended      the provider has finished with it, in whatever way; results are yet to be read
    settled    every job has left it; the provider's files are yet to be deleted
    refused    the provider took none of it; every job has left it
    abandoned  it was given up before the provider accepted it; every job has left it
    cleaned    nothing is left at the provider, no credential here
    """

    INTENT = "intent"
    UPLOADED = "uploaded"
    CREATED = "created"
    ENDED = "ended"
    SETTLED = "settled"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    CLEANED = "cleaned"


LIVE_BATCH_STATES = frozenset({BatchState.INTENT, BatchState.UPLOADED, BatchState.CREATED, BatchState.ENDED})
"""States in which a batch may hold jobs."""


class JobTier(Enum):
    """How a job can be carried, from dear and quick to cheap and slow."""

    DIRECT = "direct"
    FLEX = "flex"
    BACKGROUND_2H = "background_2h"
    BACKGROUND_8H = "background_8h"
    BATCH = "batch"


class Delivery(Enum):
    """How the caller meets the answer (DESIGN section 8)."""

    HOLD = "hold"
    TICKET = "ticket"
    BACKGROUND = "background"
    FILE = "file"


class LeaseKind(Enum):
    """What a lease is for: a job, a batch, or a role that one worker at a time plays."""

    JOB = "job"
    BATCH = "batch"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one thing for a while.

    subject   the id of a job or a batch, or the name of a role
    worker    who holds it
    token     grows with every claim of the subject: a write under an older one is refused
    until     when somebody else may claim the subject; later writes stand as long as nobody has
    """

    kind: LeaseKind
    subject: str
    worker: str
    token: int
    until: float


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """What may share a batch: one endpoint and one model, paid by one account at one upstream."""

    upstream: str
    account: str
    endpoint: str
    model: str

    @property
    def key(self) -> str:
        """One string that is equal for equal groups only."""
        return json.dumps([self.upstream, self.account, self.endpoint, self.model])


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job ended without an answer of the provider: a stable code and a sentence for people.

    Both may be the provider's words; lone surrogates are replaced.
    """

    code: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", storable(self.code))
        object.__setattr__(self, "message", storable(self.message))


@dataclass(frozen=True, slots=True)
class Job:
    """One deferred request. Up to `method` all but `deadline` stands from acceptance, the rest is progress.

    id             uuid in 32 hexadecimal digits: also the `custom_id`, legal at every provider
    attach_key     keyed digest of credentials, path, body and route: an SDK's retry finds its job by it
    owner          keyed digest of the submitter's credentials: whoever shows the same may see the job
    upstream       name of the upstream
    endpoint       path that the API knows, `/v1/chat/completions`
    model          as the body names it
    account        keyed digest of the credential that pays at the provider: jobs of two never share a batch
    prefix_key     sorts jobs so that those with a shared beginning lie together
    body_bytes     length of the stored body, which is what is sent: without fields that ask for a stream
    input_tokens   an estimate; counts against a provider's limit of enqueued tokens
    deadline       after it nobody wants the answer any more; later where a caller with more time joins
    route          name of the route, for metrics and bookings
    headers        header fields of the request that its tier needs, none of them secret
    is_borrowing   the caller's own credential is needed (`credential`), there is none of the upstream's
    method         of the request
    webhook        name of the configured webhook that hears of its end, empty for none

    delivery       how the caller meets the answer; what was promised to one of several is promised
    wanted         when the most impatient of several callers wants the answer; the rescue begins before it
    waiting        callers that wait or waited for it, less those that said that they left
    state          where it stands
    tier           what carries it now or, while it is accepted, will carry it next
    tiers          what may still carry it, cheapest first; `tier` may be none of them
    due            when a worker has to take the job up by itself: call, poll, rescue or expire it
    ready          not before this it may be packed
    attempts       how often it was sent to a provider; a rescue does not count
    rescue_begun   when a direct call was begun beside the tier's own work, else `None`
    batch_id       our batch that holds it
    provider_id    the provider's own id where a single call is polled (`resp_…`)
    credential     sealed; erased as soon as the job has ended
    error          why it has no answer, or what went wrong last
    answer_source  `Answer.source` of the answer that is stored, `None` where there is none
    ended_as       how it ended, which `DELIVERED` would otherwise hide
    ended, updated when it ended and when it moved last
    purge_at       when every trace of it is deleted
    lease          who works on it; a batch's worker needs only the batch's
    notice_due     when its end has to be told to `webhook`; `None`: never, not yet, or told
    notice_tries   how often that has failed
    notice_note    what became of it last, for people
    """

    id: str
    attach_key: str
    owner: str
    upstream: str
    endpoint: str
    model: str
    account: str
    created: float
    deadline: float
    prefix_key: str = ""
    body_bytes: int = 0
    input_tokens: int = 0
    delivery: Delivery = Delivery.TICKET
    route: str = ""
    headers: HeaderFields = ()
    is_borrowing: bool = False
    method: str = "POST"
    webhook: str = ""

    state: JobState = JobState.ACCEPTED
    tier: JobTier = JobTier.BATCH
    tiers: tuple[JobTier, ...] = ()
    due: float = NEVER
    ready: float = 0.0
    attempts: int = 0
    rescue_begun: float | None = None
    batch_id: str | None = None
    provider_id: str | None = None
    credential: bytes | None = field(default=None, repr=False)
    error: JobError | None = None
    answer_source: str | None = None
    ended_as: JobState | None = None
    ended: float | None = None
    updated: float = 0.0
    purge_at: float = NEVER
    lease: Lease | None = None
    wanted: float = NEVER
    waiting: int = 1
    notice_due: float | None = None
    notice_tries: int = 0
    notice_note: str = ""

    @property
    def wanted_by(self) -> float:
        """When the answer has to be there, at best for all who wait for it."""
        return min(self.wanted, self.deadline)

    @property
    def group(self) -> Group:
        """What it may be packed with."""
        return Group(self.upstream, self.account, self.endpoint, self.model)

    @property
    def is_live(self) -> bool:
        """It has not ended yet."""
        return self.state in LIVE_JOB_STATES


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch at a provider, from the intention to make it until nothing is left of it.

    id                uuid in 32 hexadecimal digits: the tag in the provider's metadata
    group             what its jobs have in common
    job_count         how many jobs were packed into it; which ones, the store tells
    input_bytes       of its lines with their ends
    input_tokens      the jobs' estimates, summed
    parent_id         the refused batch that it is a part of
    input_file_id, output_file_id, error_file_id, provider_id    the provider's names
    ending            the provider's word for how it ended
    provider_expires  when the provider gives up
    credential        sealed; erased when the batch is cleaned; `None` where the upstream has its own
    attempts          how often its present step failed; for backing off
    due               when a worker has to look at it
    note              what went wrong last, for people
    """

    id: str
    group: Group
    created: float
    job_count: int = 0
    input_bytes: int = 0
    input_tokens: int = 0
    parent_id: str | None = None
    is_borrowing: bool = False

    state: BatchState = BatchState.INTENT
    due: float = 0.0
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    provider_id: str | None = None
    ending: str | None = None
    submitted: float | None = None
    provider_expires: float | None = None
    credential: bytes | None = field(default=None, repr=False)
    attempts: int = 0
    note: str | None = None
    updated: float = 0.0
    purge_at: float = NEVER
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the provider answered: status, header fields worth relaying, body as it came.

    headers  those that a head can hold: printable ASCII, the others are left out
    source   which execution it is: `batch:<id>`, `call:<n>`, `rescue`
    tier     the provider's word for the tier that it used
    """

    status: int
    body: bytes = field(repr=False)
    headers: HeaderFields = ()
    source: str = ""
    tier: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", relayable(self.headers))


class BookingKind(Enum):
    """What was paid for.

    answer   the execution whose answer the caller gets
    failure  an execution that ended without a usable answer and was billed all the same
    loser    a second execution, after a rescue or a cancellation, whose answer nobody gets
    """

    ANSWER = "answer"
    FAILURE = "failure"
    LOSER = "loser"


@dataclass(frozen=True, slots=True)
class Booking:
    """The bill for one execution of one job.

    key           names the execution within its job (`batch:<id>`, `call:<n>`, `rescue`): booked once
    tier          the provider's word for the tier that it used
    usd           `None` where the price is not known
    standard_usd  what the same tokens cost without deferring; `None` where the price is not known
    """

    job_id: str
    key: str
    kind: BookingKind
    tier: str
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = None
    standard_usd: float | None = None
