"""What callers are told about jobs, as heads and bodies of answers. Pure.

progress   while a job waits: 202, and when to ask again
whole      an ended job: the provider's answer with its own status, else why there is none
events     a complete answer as the stream that its caller asked for
"""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import orjson

from proxy.core.errors import JOB_CANCELLED, JOB_EXPIRED, JOB_FAILED, ProxyError
from proxy.core.json_values import decode
from proxy.dialects.answer_events import answer_events
from proxy.dialects.dialect import Dialect
from proxy.http.head import Header, ResponseHead
from proxy.jobs.model import Answer, Booking, Job, JobState

JOBS_PATH = "/weir/v1/jobs"
MOST_RETRY_SECONDS = 60
"""Clients obey no longer wait, and some obey every one."""

_LEAST_RETRY_SECONDS = 2
_EVENTS = (("content-type", "text/event-stream; charset=utf-8"),)
_NOT_RELAYED = frozenset({"content-length", "content-encoding", "transfer-encoding", "connection"})

Whole = tuple[ResponseHead, bytes]


def job_path(job_id: str) -> str:
    """Return where a job is asked for."""
    return f"{JOBS_PATH}/{job_id}"


def json_answer(status: int, body: bytes, fields: tuple[tuple[str, str], ...] = ()) -> Whole:
    """Return an answer of Weir's own."""
    own = (("content-type", "application/json"), *fields)
    return _head(status, own, len(body)), body


def ticket(job: Job, now: float) -> Whole:
    """Return the acknowledgement of a job that was asked for with `Prefer: respond-async` (RFC 7240)."""
    return json_answer(
        202,
        progress_body(job),
        (
            ("location", job_path(job.id)),
            ("preference-applied", "respond-async"),
            ("retry-after", str(retry_seconds(job, now))),
        ),
    )


def progress(job: Job, now: float) -> Whole:
    """Return what is known about a job that has not ended."""
    return json_answer(202, progress_body(job), (("retry-after", str(retry_seconds(job, now))),))


def retry_seconds(job: Job, now: float) -> int:
    """Return when to ask again: soon for a young job, at most after a minute."""
    return round(min(MOST_RETRY_SECONDS, max(_LEAST_RETRY_SECONDS, (now - job.created) / 10)))


def progress_body(job: Job) -> bytes:
    """Return a job as JSON."""
    return orjson.dumps(job_facts(job))


def job_facts(job: Job) -> dict[str, Any]:
    """Return what a job's own caller may know about it."""
    ended_as = job.ended_as or (None if job.is_live else job.state)
    return {
        "id": job.id,
        "object": "weir.job",
        "status": job.state.value,
        "ended_as": None if ended_as is None else ended_as.value,
        "endpoint": job.endpoint,
        "model": _printable(job.model),
        "tier": job.tier.value,
        "created_at": _time(job.created),
        "updated_at": _time(job.updated),
        "deadline_at": _time(job.deadline),
        "ended_at": None if job.ended is None else _time(job.ended),
        "attempts": job.attempts,
        "error": None
        if job.error is None
        else {"code": job.error.code, "message": _printable(job.error.message)},
    }


def whole(job: Job, answer: Answer | None) -> Whole | ProxyError:
    """Return the ending of a job: the answer as it is, or what stands for it."""
    if answer is None:
        return no_answer(job)
    fields = tuple(field for field in answer.headers if field[0].lower() not in _NOT_RELAYED)
    if not any(name.lower() == "content-type" for name, _ in fields):
        fields = (("content-type", "application/json"), *fields)
    return _head(answer.status, fields, len(answer.body)), answer.body


def no_answer(job: Job) -> ProxyError:
    """Return the error that stands for the answer of a job without one."""
    said = job.error.message if job.error is not None else "no answer came"
    match job.ended_as or job.state:
        case JobState.CANCELLED:
            return ProxyError(JOB_CANCELLED, "This job was cancelled.")
        case JobState.EXPIRED:
            return ProxyError(JOB_EXPIRED, f"This job has no answer in time: {_printable(said)}.")
        case _:
            return ProxyError(JOB_FAILED, f"This job failed: {_printable(said)}.")


def events(answer: Whole, dialect: Dialect, includes_usage: bool) -> Whole:
    """Return a complete answer as events, a refusal as the error event of its API.

    Its caller's stream has begun, so that its status is spent; what cannot be told so comes as it is.
    """
    head, body = answer
    if head.status >= 300:
        event = _refusal_event(dialect, head.status, body)
        return _head(200, _EVENTS, len(event)), event
    told = answer_events(dialect.name, body, includes_usage)
    if told is None:
        return answer
    of_body = (b"content-type", b"content-length")
    headers: list[Header] = [header for header in head.headers if header[0] not in of_body]
    headers.append((b"content-type", b"Content-Type", b"text/event-stream; charset=utf-8"))
    return ResponseHead(head.status, head.reason, headers), told


def _refusal_event(dialect: Dialect, status: int, body: bytes) -> bytes:
    said = decode(body)
    error = said.get("error", said) if isinstance(said, dict) else None
    facts = error if isinstance(error, dict) else {"message": error}
    message = facts.get("message")
    if not isinstance(message, str) or not message:
        message = f"The provider answered with status {status}."
    code = facts.get("code") or facts.get("type")
    return dialect.error_event(message, code if isinstance(code, str) else f"status_{status}", None)


def paid_usd(bookings: tuple[Booking, ...]) -> float | None:
    """Return what was paid for a job, `None` as soon as any part of it is not known."""
    paid = [booking.usd for booking in bookings]
    known = [usd for usd in paid if usd is not None]
    return sum(known) if paid and len(known) == len(paid) else None


def _head(status: int, fields: tuple[tuple[str, str], ...], length_bytes: int) -> ResponseHead:
    headers: list[Header] = []
    for name, value in (*fields, ("content-length", str(length_bytes))):
        lower = name.lower()
        headers.append((lower.encode("latin-1"), _title(lower).encode("latin-1"), value.encode("latin-1")))
    try:
        reason = HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        reason = b""
    return ResponseHead(status, reason, headers)


def _title(name: str) -> str:
    return "-".join(part.capitalize() for part in name.split("-"))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
