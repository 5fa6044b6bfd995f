"""What an answer means for its job: the answer, a miss, later, another tier, or the last word."""

from __future__ import annotations

import json

import pytest

from proxy.jobs.model import Job, JobTier
from proxy.jobs.verdicts import Verdict, judge, judge_background, requeue

FLEX, DIRECT = JobTier.FLEX, JobTier.DIRECT


def error(code: str | None = None, message: str = "no", param: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": "t", "param": param, "code": code}}).encode()


@pytest.mark.parametrize(
    ("tier", "status", "body", "verdict"),
    [
        (FLEX, 200, b"{}", Verdict.ANSWER),
        (DIRECT, 200, b'{"object":"response","status":"failed","error":{"code":"x"}}', Verdict.ANSWER),
        (DIRECT, 200, b"<html>", Verdict.AGAIN),
        (DIRECT, 200, b"", Verdict.AGAIN),
        (FLEX, 200, error("server_error"), Verdict.AGAIN),
        (FLEX, 200, error("insufficient_quota"), Verdict.FINAL),
        (FLEX, 429, error("resource_unavailable"), Verdict.MISS),
        (FLEX, 498, error("capacity_exceeded"), Verdict.MISS),
        (FLEX, 498, b"", Verdict.MISS),
        (DIRECT, 429, error("resource_unavailable"), Verdict.AGAIN),
        (FLEX, 429, error("rate_limit_exceeded"), Verdict.AGAIN),
        (FLEX, 429, error("insufficient_quota"), Verdict.FINAL),
        (FLEX, 429, b"<html>", Verdict.AGAIN),
        (FLEX, 500, error(), Verdict.AGAIN),
        (FLEX, 529, b"", Verdict.AGAIN),
        (FLEX, 599, b"", Verdict.AGAIN),
        (FLEX, 401, error("invalid_api_key"), Verdict.CREDENTIALS),
        (FLEX, 403, b"", Verdict.CREDENTIALS),
        (FLEX, 400, error("x", param="service_tier"), Verdict.OTHER_TIER),
        (FLEX, 400, error("x", "Invalid service_tier for this model"), Verdict.OTHER_TIER),
        (
            JobTier.BACKGROUND_2H,
            400,
            error("x", param="background_options.completion_window"),
            Verdict.OTHER_TIER,
        ),
        (FLEX, 400, error("x", param="messages"), Verdict.FINAL),
        (DIRECT, 400, error("x", param="service_tier"), Verdict.FINAL),
        (FLEX, 404, error("model_not_found"), Verdict.FINAL),
        (FLEX, 301, b"", Verdict.FINAL),
        (FLEX, 400, b'{"error":"text"}', Verdict.FINAL),
        (FLEX, 400, b"[1]", Verdict.FINAL),
    ],
)
def test_answers_are_told_apart(tier: JobTier, status: int, body: bytes, verdict: Verdict) -> None:
    assert judge(tier, status, body).verdict is verdict


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (b'{"status":"queued"}', None),
        (b'{"status":"in_progress"}', None),
        (b'{"status":"completed"}', Verdict.ANSWER),
        (b'{"status":"incomplete"}', Verdict.ANSWER),
        (b'{"status":"failed","error":{"code":"server_error","message":"m"}}', Verdict.AGAIN),
        (b'{"status":"failed","error":{"code":"invalid_prompt","message":"m"}}', Verdict.FINAL),
        (b'{"status":"cancelled"}', Verdict.AGAIN),
        (b"[]", Verdict.AGAIN),
    ],
)
def test_background_responses_are_told_apart(body: bytes, verdict: Verdict | None) -> None:
    judged = judge_background(body)
    assert (None if judged is None else judged.verdict) is verdict


SECONDS = {JobTier.DIRECT: 10.0, JobTier.FLEX: 100.0, JobTier.BATCH: 1000.0}


def job(tier: JobTier, *tiers: JobTier, deadline: float = 2000.0) -> Job:
    return Job("j", "k", "o", "u", "/v1/x", "m", "a", 0.0, deadline, tier=tier, tiers=tiers)


def test_a_job_stays_with_its_tier_while_that_fits() -> None:
    to = requeue(job(JobTier.BATCH), 500.0, SECONDS, 30.0, may_stay=True)
    assert (to.next.tier, to.wait_seconds) == (JobTier.BATCH, 30.0)
    late = requeue(job(JobTier.BATCH, JobTier.FLEX), 1000.0, SECONDS, 30.0, may_stay=True)
    assert (late.next.tier, late.wait_seconds) == (JobTier.FLEX, 0.0)


def test_flex_is_asked_until_the_rescue() -> None:
    assert requeue(job(FLEX), 1950.0, SECONDS, 30.0, may_stay=True).next.tier is FLEX
    assert requeue(job(FLEX), 1970.0, SECONDS, 30.0, may_stay=True).next.tier is DIRECT


def test_a_job_that_may_not_stay_goes_on() -> None:
    to = requeue(job(FLEX, JobTier.BATCH), 0.0, SECONDS, 30.0, may_stay=False)
    assert (to.next.tier, to.next.left, to.wait_seconds) == (JobTier.BATCH, (), 0.0)


def test_a_direct_call_is_the_last_and_stays() -> None:
    assert requeue(job(DIRECT), 1999.0, SECONDS, 30.0, may_stay=True).wait_seconds == 30.0
