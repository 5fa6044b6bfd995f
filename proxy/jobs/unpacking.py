"""What a provider's result files say about each job, in any order and both shapes. Pure.

Owns the reading of output and error lines in OpenAI's format and the rule what may be tried again. Every job
of the batch gets an outcome; lines that belong to none are told apart. Sources: `openai` 3.57
types/batch*.py, the vendor's batch guide (codes `batch_expired`, `batch_cancelled`), Groq (498), Anthropic
(529).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from proxy.core.document import Document, DocumentError
from proxy.core.json_values import decode
from proxy.jobs.model import Answer, HeaderFields, JobError

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 498, 500, 502, 503, 504, 529})
"""Statuses of a single line that say nothing against the request itself."""

# No money and no account do not come back by themselves.
FINAL_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "account_deactivated"})
# Codes of lines without a response that are no fault of the request.
_EXPIRED_CODES = frozenset({"batch_expired", "expired"})
_CANCELLED_CODES = frozenset({"batch_cancelled", "batch_canceled", "cancelled", "canceled"})
_REFUSED_WORDS = ("invalid", "not_found", "unsupported", "content_filter", "content_policy", "too_large")
_LONGEST_MESSAGE = 2000
_BODYLESS = frozenset({204, 205, 304})
_MOST_DIGITS = 9
_DEEPEST = 800
_BOM = b"\xef\xbb\xbf"


class OutcomeKind(Enum):
    """What became of one line.

    answer     the provider's answer, below 400
    failed     the provider's last word is an error: with an answer if it sent one
    retry      it may work another time
    expired    not executed before the window ended
    cancelled  not executed because the batch was cancelled
    missing    in neither file
    """

    ANSWER = "answer"
    FAILED = "failed"
    RETRY = "retry"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """What became of one job's line; `answer` where there was a response, whatever its status.

    may_have_run  nothing usable came, and the provider may have worked (and billed) all the same
    """

    kind: OutcomeKind
    answer: Answer | None = None
    error: JobError | None = None
    may_have_run: bool = False


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What the files of one batch say.

    outcomes     one per job of the batch
    duplicates   ids with more than one line: an answer below 400 counts, else the first
    unknown      ids in the files that are no job of the batch
    unreadable   how many lines were no object with a `custom_id`
    """

    outcomes: dict[str, LineOutcome]
    duplicates: tuple[str, ...]
    unknown: tuple[str, ...]
    unreadable: int


_NO_BODY = msgspec.Raw(b"null")


class _Response(msgspec.Struct):
    status_code: Any = None
    request_id: Any = None
    body: msgspec.Raw = _NO_BODY


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Line)


class _Told(msgspec.Struct):
    error: Any = None
    object: Any = None
    type: Any = None


_TOLD = msgspec.json.Decoder(_Told)

MISSING = LineOutcome(
    OutcomeKind.MISSING,
    error=JobError("missing_result", "the batch's files have no line for the job"),
    may_have_run=True,
)
"""The outcome of a job that no line is about."""


def unpack(lines: Iterable[bytes], job_ids: Collection[str], source: str) -> Unpacked:
    """Read the lines of every result file of a batch, output and error alike.

    `source` goes into each `Answer`. Blank lines count for nothing.
    """
    known = dict.fromkeys(job_ids)
    found: dict[str, LineOutcome] = {}
    duplicates: dict[str, None] = {}
    unknown: dict[str, None] = {}
    unreadable = 0
    for raw in lines:
        text = raw.removeprefix(_BOM).strip()
        if not text:
            continue
        line = read_line(text, source)
        if line is None:
            unreadable += 1
            continue
        job_id, outcome = line
        if job_id not in known:
            unknown[job_id] = None
            continue
        earlier = found.get(job_id)
        if earlier is not None:
            duplicates[job_id] = None
        if earlier is None or (OutcomeKind.ANSWER is outcome.kind is not earlier.kind):
            found[job_id] = outcome
    outcomes = {job_id: found.get(job_id, MISSING) for job_id in known}
    return Unpacked(outcomes, tuple(duplicates), tuple(unknown), unreadable)


def read_line(text: bytes, source: str) -> tuple[str, LineOutcome] | None:
    """Read one line that is not blank: the id of its job and what became of it; `None` for nonsense."""
    try:
        line: _Line | None = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        line = _read_tolerantly(text)
    return None if line is None else (line.custom_id, _outcome(line, source))


def _read_tolerantly(text: bytes) -> _Line | None:
    # Half a surrogate pair, where an answer was cut within a character, and NaN are no reason to pay again.
    try:
        document = Document.parse(text, max_depth=_DEEPEST)
        custom_id = document.value("custom_id")
        raw = document.get("response")
        response = None if raw in (None, b"null") else Document.parse(raw or b"", max_depth=_DEEPEST)
    except DocumentError:
        return None
    if not isinstance(custom_id, str):
        return None
    if response is None:
        return _Line(custom_id, None, document.value("error"))
    body = response.get("body")
    told = _Response(
        response.value("status_code"),
        response.value("request_id"),
        _NO_BODY if body is None else msgspec.Raw(body),
    )
    return _Line(custom_id, told, document.value("error"))


def _outcome(line: _Line, source: str) -> LineOutcome:
    error = _error(line.error)
    if line.response is None:
        return _without_response(error)
    body = bytes(line.response.body)
    status = _status(line.response.status_code, is_error=error is not None)
    request_id = line.response.request_id
    headers: HeaderFields = (("content-type", "application/json"),)
    if isinstance(request_id, str) and request_id:
        headers += (("x-request-id", request_id),)
    answer = Answer(status, body, headers, source)
    if status < 400:
        wrong = unusable(body)
        if wrong is None:
            return LineOutcome(OutcomeKind.ANSWER, answer)
        return LineOutcome(_kind_of(wrong), answer, wrong, may_have_run=True)
    told = error or _error(decode(body)) or JobError(f"status_{status}", f"the line's status was {status}")
    if status in RETRIED_STATUSES and told.code not in FINAL_CODES:
        return LineOutcome(OutcomeKind.RETRY, answer, told)
    return LineOutcome(OutcomeKind.FAILED, answer, told)


def unusable(body: bytes) -> JobError | None:
    """Return what is wrong with the body of an answer that says it worked: every API answers with an object.

    One that holds an error and is nothing else is no answer; a response of the Responses API that failed is.
    """
    if not body.lstrip().startswith(b"{"):
        return JobError("unusable_result", "the answer says it worked, and its body is no JSON object")
    try:
        told = _TOLD.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Numbers and characters that are not quite JSON are no reason to pay again.
        return None
    is_more = told.object is not None or told.type not in (None, "error")
    return None if is_more else _error({"error": told.error} if told.error is not None else None)


def _kind_of(error: JobError) -> OutcomeKind:
    return OutcomeKind.FAILED if is_last_word(error) else OutcomeKind.RETRY


def is_last_word(error: JobError) -> bool:
    """Tell whether an error that came without a status of its own is about the request or the account."""
    return error.code in FINAL_CODES or any(word in error.code for word in _REFUSED_WORDS)


def _without_response(error: JobError | None) -> LineOutcome:
    if error is None:
        empty = JobError("empty_result", "the line has neither a response nor an error")
        return LineOutcome(OutcomeKind.RETRY, error=empty, may_have_run=True)
    if error.code in _EXPIRED_CODES:
        return LineOutcome(OutcomeKind.EXPIRED, error=error)
    if error.code in _CANCELLED_CODES:
        return LineOutcome(OutcomeKind.CANCELLED, error=error)
    return LineOutcome(_kind_of(error), error=error)


def _status(value: object, *, is_error: bool) -> int:
    # Some servers write the status as text, some leave it out of a line that worked.
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:_MOST_DIGITS])
    if isinstance(value, int) and not isinstance(value, bool) and 200 <= value <= 599:
        # A line has a body. After one of the others the caller would wait for an answer that never comes, or
        # read the body as the beginning of the next one.
        return value if value not in _BODYLESS else 200
    return 500 if is_error else 200


def _error(value: object) -> JobError | None:
    if isinstance(value, dict) and isinstance(value.get("error"), dict | str):
        value = value["error"]
    if isinstance(value, str) and value:
        return JobError("provider_error", _clipped(value))
    if not isinstance(value, dict) or not value:
        return None
    code = _clipped(str(value.get("code") or value.get("type") or "provider_error"))
    message = value.get("message")
    return JobError(code, _clipped(message) if isinstance(message, str) else code)


def _clipped(text: str) -> str:
    # Lone surrogates, which JSON may hold, no store takes.
    return text[:_LONGEST_MESSAGE].encode(errors="replace").decode()
