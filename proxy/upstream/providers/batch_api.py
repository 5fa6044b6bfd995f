"""The port to providers' batch APIs: what they take, what they are asked, what may go wrong.

One adapter per API shape is one file; `batch_apis` lists which provider speaks which. Everything that differs
between providers (names of states, dates, where lines travel, how results look) ends in the adapter:

    lines in      files (`takes_files`), or within `create`: then `upload` returns `None`
    lines out     always in OpenAI's shape of a result line; an adapter translates others
    states        `RemoteState`; an unknown word counts as still running

Errors that leave an adapter:

    BatchApiError
    ├── FileRefused      the provider took none of it: a code, and problems with single lines
    ├── RateLimited      come back later; `retry_after_seconds` where it says when
    ├── CredentialsRefused
    ├── NotFound         no such batch or file
    ├── Unsupported      the provider has no such API
    ├── Unavailable      no answer, or 5xx; `may_have_happened`: it is not known whether it was done
    └── InputChanged     the lines are not those that were announced; nothing was sent to its end
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LineProblem:
    """What is wrong with an input; `line` counts from 1, `None` where no line is named."""

    code: str
    message: str
    line: int | None = None


class BatchApiError(Exception):
    """The root of what an adapter raises. Messages are for operators and hold no credential."""


class FileRefused(BatchApiError):
    """The provider refuses a batch as a whole. `code` is the provider's, lower-case."""

    def __init__(self, code: str, message: str, problems: tuple[LineProblem, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.problems = problems


class RateLimited(BatchApiError):
    """Too many calls."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class CredentialsRefused(BatchApiError):
    """401 or 403."""


class NotFound(BatchApiError):
    """404 for a batch or a file that there was."""


class Unsupported(BatchApiError):
    """404, 405 or 501 for the API itself."""


class Unavailable(BatchApiError):
    """The provider did not do it or did not say so."""

    def __init__(self, message: str, *, may_have_happened: bool = True) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class InputChanged(BatchApiError):
    """A job was deleted while its line was on the way."""


class RefusalKind(Enum):
    """What a refusal of a whole batch calls for.

    quota     too much is enqueued: less, and later
    too_large it is beyond a limit: less
    lines     single lines are named
    other     another tier
    """

    QUOTA = "quota"
    TOO_LARGE = "too_large"
    LINES = "lines"
    OTHER = "other"


class RemoteState(Enum):
    """Where a batch stands at the provider. The last four are final."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Nothing more happens."""
        return self not in (RemoteState.RUNNING, RemoteState.CANCELLING)


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as the provider shows it. Times are seconds since the epoch, `None` where it says nothing.

    tag            our batch's id, from the provider's metadata
    input_file_id  what was made for its input, to be deleted after settlement: a file, or the batch itself
    endpoint       the path that its lines were for, where whoever asks for results knows it
    problems       why it failed
    total, completed, failed   of its lines
    """

    id: str
    state: RemoteState
    tag: str | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created: float | None = None
    expires: float | None = None
    total: int | None = None
    completed: int | None = None
    failed: int | None = None
    problems: tuple[LineProblem, ...] = ()
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at the provider."""

    id: str
    name: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class BatchInput:
    """What is to be submitted.

    tag         our batch's id, to be found by
    file_name   what its file is called at the provider
    size_bytes  of all lines
    lines       begins to yield the lines anew, in pieces of any size
    wait_seconds  how long the last of its jobs may wait: for providers that let one choose the window
    """

    tag: str
    file_name: str
    endpoint: str
    model: str
    size_bytes: int
    lines: Callable[[], AsyncIterator[bytes]]
    wait_seconds: float = 86_400.0


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """What one batch may hold; `None` is no limit that is known.

    gap_seconds  between two creations of one account
    """

    jobs: int
    bytes: int
    line_bytes: int | None = None
    tokens: int | None = None
    gap_seconds: float = 0.0


class BatchApi(Protocol):
    """A provider's batch API under one credential. All may raise `BatchApiError`."""

    limits: ApiLimits
    takes_files: bool
    """Lines are uploaded before the batch is created."""

    def line_url(self, endpoint: str) -> str | None:
        """Return what a line gives as `url`, `None` where lines have neither `method` nor `url`."""
        ...

    async def upload(self, batch: BatchInput) -> str | None:
        """Send the lines and return the file's id; `None` without files."""
        ...

    async def create(self, batch: BatchInput, file_id: str | None) -> RemoteBatch:
        """Create the batch. Never repeated by the adapter: no provider's creation is idempotent.

        Where the provider still checks the file, `Unavailable` that says that nothing was done.
        """
        ...

    async def find(
        self, tag: str, file_id: str | None, since: float, ids: Collection[str] = ()
    ) -> tuple[RemoteBatch, ...]:
        """Return batches with our tag, or made of our file, that were created after `since`, oldest first.

        `ids` are those of all lines that it may have been made with: at a provider that keeps no tag, results
        tell whose a batch is. As long as one that may be ours has none, `Unavailable`.
        """
        ...

    async def find_files(self, file_name: str) -> tuple[RemoteFile, ...]:
        """Return input files of that name; none where the provider cannot list them."""
        ...

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """Return how the batch stands."""
        ...

    async def cancel(self, batch_id: str) -> None:
        """Ask for it to be given up; again is no harm."""
        ...

    def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        """Yield the lines of every result file, output first, in OpenAI's shape, without their ends."""
        ...

    async def delete_file(self, file_id: str) -> None:
        """Delete a file; one that is gone is no error."""
        ...


QUOTA_CODES = frozenset({"token_limit_exceeded", "enqueued_token_limit_exceeded", "quota_exceeded"})
TOO_LARGE_CODES = frozenset(
    {"too_many_tasks", "too_many_requests_in_batch", "too_many_lines", "file_too_large", "request_too_large"}
    | {"max_file_size_exceeded", "payload_too_large", "too_large"}
)


def refusal_kind(refused: FileRefused) -> RefusalKind:
    """Tell what to do about a refusal, by its code; codes: guides of OpenAI and Azure."""
    codes = {refused.code, *(problem.code for problem in refused.problems)}
    if codes & QUOTA_CODES:
        return RefusalKind.QUOTA
    if codes & TOO_LARGE_CODES:
        return RefusalKind.TOO_LARGE
    if any(problem.line is not None for problem in refused.problems):
        return RefusalKind.LINES
    return RefusalKind.OTHER
