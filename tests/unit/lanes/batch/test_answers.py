from __future__ import annotations

import json

import pytest

from proxy.core.errors import ProxyError
from proxy.dialects.chat import CHAT
from proxy.jobs.model import Answer, Booking, BookingKind, Job, JobError, JobState
from proxy.lanes.batch.answers import events, job_facts, paid_usd, progress, retry_seconds, ticket, whole
from tests.unit.lanes.batch.benches import ANSWER

JOB = Job(
    id="a" * 32,
    attach_key="k",
    owner="o",
    upstream="openai",
    endpoint="/v1/chat/completions",
    model="gpt-5-mini",
    account="acc",
    created=1000.0,
    deadline=4600.0,
)


def ended(state: JobState, error: JobError | None = None) -> Job:
    return Job(**{**{f: getattr(JOB, f) for f in Job.__slots__}, "state": state, "error": error})


def test_a_ticket_says_where_and_when_to_ask() -> None:
    head, body = ticket(JOB, 1000.0)
    assert head.status == 202
    assert head.fields[b"location"] == b"/weir/v1/jobs/" + b"a" * 32
    assert head.fields[b"preference-applied"] == b"respond-async"
    assert head.fields[b"content-length"] == str(len(body)).encode()
    assert json.loads(body)["status"] == "accepted"


@pytest.mark.parametrize(("age", "seconds"), [(0, 2), (100, 10), (600, 60), (80_000, 60)])
def test_nobody_is_told_to_wait_longer_than_a_minute(age: float, seconds: int) -> None:
    assert retry_seconds(JOB, 1000.0 + age) == seconds
    head, _ = progress(JOB, 1000.0 + age)
    assert head.fields[b"retry-after"] == str(seconds).encode()


def test_callers_learn_nothing_about_others_or_the_account() -> None:
    told = json.dumps(job_facts(JOB))
    assert '"acc"' not in told
    assert '"o"' not in told


def test_an_answer_keeps_its_status_body_and_type() -> None:
    answer = Answer(
        422, b"\x00odd", (("content-type", "text/plain"), ("x-request-id", "r"), ("Content-Length", "9"))
    )
    told = whole(JOB, answer)
    assert isinstance(told, tuple)
    head, body = told
    assert (head.status, body) == (422, b"\x00odd")
    assert head.fields == {b"content-type": b"text/plain", b"x-request-id": b"r", b"content-length": b"4"}


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [
        (JobState.CANCELLED, "job_cancelled", 410),
        (JobState.EXPIRED, "job_expired", 504),
        (JobState.FAILED, "job_failed", 502),
    ],
)
def test_what_ended_without_an_answer_has_an_error_of_its_own(
    state: JobState, code: str, status: int
) -> None:
    told = whole(ended(state, JobError("x", "the provider is gone")), None)
    assert isinstance(told, ProxyError)
    assert (told.kind.code, told.kind.status) == (code, status)


@pytest.mark.parametrize("body", [b'{"error":{}}', b"[]", b"no json", b'{"error":"slow down"}'])
def test_every_refusal_can_be_told_as_an_event(body: bytes) -> None:
    refusal = whole(JOB, Answer(429, body))
    assert isinstance(refusal, tuple)
    head, told = events(refusal, CHAT, False)
    assert head.status == 200
    error = json.loads(told.removeprefix(b"data: "))["error"]
    is_said = b"slow" in body
    assert error["message"] == ("slow down" if is_said else "The provider answered with status 429.")
    assert error["code"] == "status_429"


def test_odd_answers_are_not_told_as_events() -> None:
    odd = whole(JOB, Answer(200, b"[]"))
    assert isinstance(odd, tuple)
    assert events(odd, CHAT, False) is odd
    told = whole(JOB, Answer(200, ANSWER))
    assert isinstance(told, tuple)
    head, body = events(told, CHAT, True)
    assert b"content-length" not in head.fields
    assert body.endswith(b"data: [DONE]\n\n")


def test_an_unknown_cost_is_not_a_zero() -> None:
    known = Booking("j", "call:1", BookingKind.ANSWER, "flex", usd=0.5)
    assert paid_usd((known, Booking("j", "rescue", BookingKind.LOSER, "default", usd=1.0))) == 1.5
    assert paid_usd((known, Booking("j", "rescue", BookingKind.LOSER, "unknown"))) is None
    assert paid_usd(()) is None
