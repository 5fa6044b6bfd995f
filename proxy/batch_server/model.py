"""The values of Weir's own batch API: files and batches. Frozen; times are seconds since the epoch.

Owns what is kept. Refuses to know how it is shown (`objects`) and where it is kept (`store`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

HeaderFields = tuple[tuple[str, str], ...]
"""Names and values of header fields, in order, duplicates kept."""


class FilePurpose(Enum):
    """What a file is for."""

    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, kept as numbered chunks. Callers see it once it is complete.

    id           `file-` and 32 hexadecimal digits
    owner        keyed digest of the submitter's credentials: whoever shows the same may see it
    expires      when it is deleted
    size_bytes   of its content, in `chunk_count` chunks numbered from zero
    """

    id: str
    owner: str
    purpose: FilePurpose
    filename: str
    created: float
    expires: float
    size_bytes: int = 0
    chunk_count: int = 0
    is_complete: bool = False


class BatchStatus(Enum):
    """Where a batch stands for whoever works on it. The caller's wish to cancel is kept apart."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


LIVE_STATUSES = frozenset({BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING})


@dataclass(frozen=True, slots=True)
class LineProblem:
    """Why a batch failed its validation, in OpenAI's words; `line` counts from 1, `None`: the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Tokens of all answers of a batch so far."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """What the worker on a batch knows of it; written as a whole, under its lease.

    total                        lines of the input, 0 until it is validated
    completed, failed            lines with an answer below 300, and all others that are recorded
    model                        the model of all lines, empty where they name several
    output_*, error_*            what the two result files consist of by now
    """

    status: BatchStatus = BatchStatus.VALIDATING
    total: int = 0
    completed: int = 0
    failed: int = 0
    model: str = ""
    problems: tuple[LineProblem, ...] = ()
    tokens: TokenSums = TokenSums()
    output_bytes: int = 0
    output_chunks: int = 0
    error_bytes: int = 0
    error_chunks: int = 0
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class BatchLease:
    """The right to work on one batch for a while; `token` grows with every claim of it."""

    batch_id: str
    worker: str
    token: int
    until: float


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """A batch of a caller that Weir itself works off. What stands before `progress` never changes.

    id                 `batch_` and 32 hexadecimal digits
    owner              as a file's
    upstream           name of the upstream that `/v1/batches` led to; a line's own route may lead elsewhere
    endpoint           the path of every line
    window             `completion_window` as the caller wrote it
    expires            when the window ends
    metadata           the caller's
    output_seconds     how long the result files are kept after `created`
    output_file_id, error_file_id    reserved from the start; shown once the batch ended and they have content
    headers            of the creating request: what lines send along and routes match, none of it secret
    credential         the caller's own, sealed (`jobs.credentials`); erased at the end; `None`: none needed
    webhook            name of the configured webhook that hears of its end, empty for none
    cancelling_at      when its caller asked for its end
    due                when a worker has to take it up
    notice_due         when its end has to be told to `webhook`; `None`: never, or told
    notice_tries       how often that has failed
    purge_at           when every trace of it is deleted
    """

    id: str
    owner: str
    upstream: str
    endpoint: str
    input_file_id: str
    window: str
    created: float
    expires: float
    output_file_id: str
    error_file_id: str
    output_seconds: float
    purge_at: float
    metadata: tuple[tuple[str, str], ...] | None = None
    headers: HeaderFields = ()
    credential: bytes | None = field(default=None, repr=False)
    webhook: str = ""
    progress: Progress = Progress()
    cancelling_at: float | None = None
    due: float = 0.0
    notice_due: float | None = None
    notice_tries: int = 0
    lease: BatchLease | None = None

    @property
    def is_live(self) -> bool:
        """It has not ended yet."""
        return self.progress.status in LIVE_STATUSES


@dataclass(frozen=True, slots=True)
class Recorded:
    """Lines that have their results, with what they add to the two files, and the progress that follows.

    lines            their numbers, from zero
    output, errors   whole lines of JSON with their ends; empty: nothing is added to that file
    progress         with counts, bytes and chunks after it
    """

    lines: tuple[int, ...]
    output: bytes = field(repr=False)
    errors: bytes = field(repr=False)
    progress: Progress
