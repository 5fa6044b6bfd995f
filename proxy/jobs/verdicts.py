"""What the answer to a single call means for its job, and where a job goes after a miss. Pure.

Owns the reading of refusals that concern a tier and not the request: no capacity for flex (OpenAI 429 with
`resource_unavailable`, Groq 498), a model without flex or windows (400 that names the field). Sources:
OpenAI's guides on flex processing and background mode, Groq's on flex, `openai` 3.57.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from proxy.core.json_values import decode
from proxy.jobs.model import Job, JobError, JobTier
from proxy.jobs.shaping import TIER_FIELDS
from proxy.jobs.tiers import NextTier, after_miss, rescue_at
from proxy.jobs.unpacking import FINAL_CODES, RETRIED_STATUSES, is_last_word, unusable

CAPACITY_CODES = frozenset({"resource_unavailable", "capacity_exceeded"})
_LONGEST_MESSAGE = 500


class Verdict(Enum):
    """What to do about an answer.

    answer       it is the answer
    miss         the tier has no capacity now
    again        it may work later
    credentials  the credential is refused: an operator may mend it
    other_tier   the tier does not carry this request
    final        the provider's last word, an error
    """

    ANSWER = "answer"
    MISS = "miss"
    AGAIN = "again"
    CREDENTIALS = "credentials"
    OTHER_TIER = "other_tier"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and the provider's error, where there is one."""

    verdict: Verdict
    error: JobError | None = None


def judge(tier: JobTier, status: int, body: bytes) -> Judged:
    """Say what an answer to a call in a tier means; one that says it worked is read as a batch's line is."""
    if status < 300:
        wrong = unusable(body)
        if wrong is None:
            return Judged(Verdict.ANSWER)
        return Judged(Verdict.FINAL if is_last_word(wrong) else Verdict.AGAIN, wrong)
    value = decode(body)
    found = value.get("error") if isinstance(value, dict) else None
    error: Mapping[str, object] = found if isinstance(found, dict) else {}
    code, message = error.get("code") or error.get("type"), error.get("message")
    told = JobError(
        str(code) if code else f"status_{status}",
        message[:_LONGEST_MESSAGE] if isinstance(message, str) else f"the provider answered {status}",
    )
    return Judged(_verdict(tier, status, told, error.get("param")), told)


def _verdict(tier: JobTier, status: int, told: JobError, param: object) -> Verdict:
    if status == 498 or (status == 429 and told.code in CAPACITY_CODES):
        return Verdict.AGAIN if tier is JobTier.DIRECT else Verdict.MISS
    if status in (401, 403):
        return Verdict.CREDENTIALS
    if told.code in FINAL_CODES:
        return Verdict.FINAL
    if status in RETRIED_STATUSES or status >= 500:
        return Verdict.AGAIN
    if tier is not JobTier.DIRECT and status in (400, 404, 422) and _names_the_tier(told, param):
        return Verdict.OTHER_TIER
    return Verdict.FINAL


def _names_the_tier(told: JobError, param: object) -> bool:
    field = str(param or "").partition(".")[0]
    return field in TIER_FIELDS or any(name in told.message for name in (*TIER_FIELDS, "completion_window"))


def judge_background(body: bytes) -> Judged | None:
    """Say what a polled response means; `None`: the provider still works on it."""
    value = decode(body)
    status = value.get("status") if isinstance(value, dict) else None
    if status in ("queued", "in_progress"):
        return None
    if status in ("completed", "incomplete"):
        return Judged(Verdict.ANSWER)
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        told = JobError(str(error.get("code")), str(error.get("message"))[:_LONGEST_MESSAGE])
    else:
        told = JobError("response_failed", f"the provider's response is {status}")
    passing = told.code in ("server_error", "rate_limit_exceeded", "response_failed")
    return Judged(Verdict.AGAIN if passing else Verdict.FINAL, told)


@dataclass(frozen=True, slots=True)
class Requeue:
    """Where a job goes: `next` carries it; not before `wait_seconds` from now."""

    next: NextTier
    wait_seconds: float


def requeue(
    job: Job,
    now: float,
    p95_seconds: Mapping[JobTier, float],
    wait_seconds: float,
    *,
    may_stay: bool,
) -> Requeue:
    """Return where a job goes after its tier failed: once more by it as long as that fits, else the next.

    `may_stay`: another try by the same tier makes sense. A call that can be overtaken by a rescue fits until
    then; a batch has to fit as a whole.
    """
    if may_stay and _fits_again(job, now + wait_seconds, p95_seconds):
        return Requeue(NextTier(job.tier, job.tiers), wait_seconds)
    return Requeue(after_miss(job.tiers, p95_seconds, job.deadline - now), 0.0)


def _fits_again(job: Job, then: float, p95_seconds: Mapping[JobTier, float]) -> bool:
    rescue = rescue_at(job.deadline, p95_seconds[JobTier.DIRECT])
    match job.tier:
        case JobTier.DIRECT:
            return True
        case JobTier.BATCH:
            return then + p95_seconds.get(JobTier.BATCH, float("inf")) <= rescue
        case JobTier.FLEX | JobTier.BACKGROUND_2H | JobTier.BACKGROUND_8H:
            return then < rescue
