"""How many jobs become few batches: when a pool is sent, in which order, what one line of a file is. Pure.

Owns the arithmetic of a provider's limits, which are data. Refuses to know any provider: what a file is
called and how it travels is its adapter's. What comes back is `unpacking`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.core.document import Document, DocumentError
from proxy.core.json_edits import quoted
from proxy.jobs.changes import PoolSummary
from proxy.jobs.model import Job

STREAM_FIELDS = ("stream", "stream_options")
"""Fields of a body that batch workers refuse."""

_BOM = b"\xef\xbb\xbf"
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


class UnfitBody(ValueError):
    """A body that cannot be a line of a batch file."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a provider takes in one batch; `None` is no limit.

    jobs        lines
    bytes       of the file, line ends included
    tokens      of all jobs: what is left of the provider's quota of enqueued tokens
    line_bytes  of one line
    """

    jobs: int = 50_000
    bytes: int = 200_000_000
    tokens: int | None = None
    line_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FlushRule:
    """When a pool is sent: as soon as it has `jobs`, or `after_seconds` after its oldest job was ready."""

    jobs: int
    after_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Which jobs go together.

    batches    ids of each batch, in the order of its lines
    too_large  ids of jobs that exceed a limit on their own: they have to go another way
    later      ids of jobs for which the quota of tokens has no room now
    """

    batches: tuple[tuple[str, ...], ...]
    too_large: tuple[str, ...]
    later: tuple[str, ...]


def flush_reason(pool: PoolSummary, rule: FlushRule, limits: BatchLimits, now: float) -> str | None:
    """Return why a pool is to be sent now (`jobs`, `bytes`, `tokens`, `age`), `None`: not yet."""
    if pool.jobs >= min(rule.jobs, limits.jobs):
        return "jobs"
    if pool.body_bytes >= limits.bytes:
        return "bytes"
    if limits.tokens is not None and 0 < limits.tokens <= pool.input_tokens:
        return "tokens"
    if pool.jobs and now - pool.oldest >= rule.after_seconds:
        return "age"
    return None


def flush_at(pool: PoolSummary, rule: FlushRule) -> float:
    """Return the time at which the age of a pool sends it."""
    return pool.oldest + rule.after_seconds


def clean_body(body: bytes, dropped: Iterable[str] = STREAM_FIELDS) -> bytes:
    """Return a body as it stands in a line: without the fields of a stream, on one line, else as written.

    A line break outside of a string is white space and becomes a blank; inside one JSON does not allow it.
    Raises `UnfitBody` for what is no JSON object in UTF-8.
    """
    try:
        body.decode()
        document = Document.parse(body.removeprefix(_BOM))
    except (DocumentError, UnicodeDecodeError):
        raise UnfitBody("the body is not a JSON object in UTF-8") from None
    for name in dropped:
        document = document.delete(name)
    return document.to_bytes().translate(_ONE_LINE).strip()


def encode_line(custom_id: str, body: bytes, url: str | None, method: str = "POST") -> bytes:
    """Return one line of a batch file with its end; `body` (from `clean_body`) stands in it as it is.

    Without `url` the line has neither `method` nor `url`, as some providers want it.
    """
    return b"%b%b}\n" % (_before_body(custom_id, url, method), body)


def line_bytes(job: Job, url: str | None) -> int:
    """Return the length of a job's line with its end, from the length of its cleaned body alone."""
    return len(_before_body(job.id, url, job.method)) + job.body_bytes + 2


def _before_body(custom_id: str, url: str | None, method: str) -> bytes:
    where = b"" if url is None else b',"method":%b,"url":%b' % (quoted(method), quoted(url))
    return b'{"custom_id":%b%b,"body":' % (quoted(custom_id), where)


def plan(jobs: Iterable[Job], limits: BatchLimits, url: str | None) -> Plan:
    """Divide jobs of one group into batches within the limits.

    Those with a shared prefix lie together, so that a provider's prompt cache finds it again; within a prefix
    the oldest is first. Where the quota of tokens does not reach for all, the oldest go.
    """
    fitting, too_large = _apart(jobs, limits, url)
    chosen, later = _within_quota(fitting, limits.tokens)
    batches: list[tuple[str, ...]] = []
    batch: list[str] = []
    size = 0
    for job in sorted(chosen, key=lambda job: (job.prefix_key, job.created, job.id)):
        length = line_bytes(job, url)
        if batch and (len(batch) >= limits.jobs or size + length > limits.bytes):
            batches.append(tuple(batch))
            batch, size = [], 0
        batch.append(job.id)
        size += length
    if batch:
        batches.append(tuple(batch))
    return Plan(tuple(batches), tuple(too_large), tuple(later))


def _apart(jobs: Iterable[Job], limits: BatchLimits, url: str | None) -> tuple[list[Job], list[str]]:
    longest = limits.bytes if limits.line_bytes is None else min(limits.bytes, limits.line_bytes)
    fitting: list[Job] = []
    too_large: list[str] = []
    for job in jobs:
        if line_bytes(job, url) > longest:
            too_large.append(job.id)
        else:
            fitting.append(job)
    return fitting, too_large


def _within_quota(jobs: list[Job], quota: int | None) -> tuple[list[Job], list[str]]:
    if quota is None:
        return jobs, []
    chosen: list[Job] = []
    later: list[str] = []
    left = quota
    for job in sorted(jobs, key=lambda job: (job.created, job.id)):
        if job.input_tokens <= left:
            chosen.append(job)
            left -= job.input_tokens
        else:
            later.append(job.id)
    return chosen, later


def halves(job_ids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Divide a refused batch in two that keep its order; a single job cannot be divided and comes alone."""
    middle = (len(job_ids) + 1) // 2
    parts = (tuple(job_ids[:middle]), tuple(job_ids[middle:]))
    return tuple(part for part in parts if part)
