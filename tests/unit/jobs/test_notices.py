"""Which event the end of a job is, and whose end is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from proxy.core.webhook import EVENT_TYPES
from proxy.jobs.model import Answer, Delivery, Job, JobState
from proxy.jobs.notices import event_of, is_wished, needs_answer, until
from proxy.jobs.response_ids import response_id

JOB = Job(
    id="0" * 32,
    attach_key="a",
    owner="o",
    upstream="openai",
    endpoint="/v1/responses",
    model="gpt-5-mini",
    account="a",
    created=100.0,
    deadline=200.0,
    webhook="ops",
    ended=150.0,
    purge_at=10_000.0,
)
GOOD = Answer(200, b'{"id":"resp_1","status":"completed"}', (), "call:1")


def told(state: JobState, answer: Answer | None = None, delivery: Delivery = Delivery.TICKET) -> str:
    job = replace(JOB, state=JobState.DELIVERED, ended_as=state, delivery=delivery)
    return event_of(job, answer).type


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (JobState.SUCCEEDED, "weir.job.succeeded"),
        (JobState.RESCUED, "weir.job.succeeded"),
        (JobState.FAILED, "weir.job.failed"),
        (JobState.EXPIRED, "weir.job.expired"),
        (JobState.CANCELLED, "weir.job.cancelled"),
    ],
)
def test_a_ticket_is_told_as_a_job(state: JobState, kind: str) -> None:
    assert told(state) == kind
    assert kind in EVENT_TYPES


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_a_background_response_is_told_as_its_answer_says(status: str) -> None:
    answer = replace(GOOD, body=json.dumps({"status": status}).encode())
    kind = told(JobState.SUCCEEDED, answer, Delivery.BACKGROUND)
    assert kind == f"response.{status}"
    assert kind in EVENT_TYPES


@pytest.mark.parametrize(
    ("state", "answer", "kind"),
    [
        (JobState.RESCUED, GOOD, "response.completed"),
        (JobState.SUCCEEDED, replace(GOOD, body=b'{"id":"x"}'), "response.completed"),
        (JobState.SUCCEEDED, replace(GOOD, body=b'{"status":["completed"]}'), "response.completed"),
        (JobState.SUCCEEDED, replace(GOOD, body=b"<html>"), "response.failed"),
        (JobState.FAILED, replace(GOOD, status=400), "response.failed"),
        (JobState.EXPIRED, None, "response.failed"),
        (JobState.CANCELLED, None, "response.cancelled"),
    ],
)
def test_a_background_response_is_told_as_polling_shows_it(
    state: JobState, answer: Answer | None, kind: str
) -> None:
    assert told(state, answer, Delivery.BACKGROUND) == kind


def test_things_are_told_by_the_ids_that_their_callers_know() -> None:
    background = replace(JOB, delivery=Delivery.BACKGROUND, ended_as=JobState.SUCCEEDED)
    assert event_of(background, GOOD).subject == response_id(JOB.id)
    assert event_of(replace(JOB, ended_as=JobState.SUCCEEDED), None).subject == JOB.id


def test_only_promised_answers_with_a_webhook_are_told() -> None:
    assert is_wished(JOB)
    assert is_wished(replace(JOB, delivery=Delivery.BACKGROUND))
    assert not is_wished(replace(JOB, delivery=Delivery.HOLD))
    assert not is_wished(replace(JOB, webhook=""))


def test_only_what_says_more_is_read_for_it() -> None:
    assert not needs_answer(replace(JOB, answer_source="call:1"))
    assert needs_answer(replace(JOB, delivery=Delivery.BACKGROUND, answer_source="call:1"))
    assert not needs_answer(replace(JOB, delivery=Delivery.BACKGROUND))


def test_an_end_is_told_for_a_day_and_not_longer_than_it_is_kept() -> None:
    assert until(JOB) == 10_000.0
    assert until(replace(JOB, purge_at=1e9)) == 150.0 + 86_400.0
