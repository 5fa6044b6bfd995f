from __future__ import annotations

import json
from dataclasses import replace

import pytest

from proxy.core.document import Document
from proxy.jobs.model import Answer, JobError, JobState
from proxy.jobs.response_ids import job_id_of, response_id
from proxy.lanes.batch.background import continues_deferred, is_own_id, response_object
from tests.unit.lanes.batch.test_answers import JOB

REQUEST = b'{"model":"gpt-5-mini","instructions":"Be brief.","metadata":{"a":"b"},"tools":[],"input":"x"}'


def test_an_id_leads_back_to_its_job() -> None:
    assert job_id_of(response_id(JOB.id)) == JOB.id
    for other in ("resp_123", "resp_weir_" + "g" * 32, "resp_weir_" + "a" * 31, ""):
        assert job_id_of(other) is None
    assert not is_own_id(7)
    assert continues_deferred(Document.parse(b'{"previous_response_id":"%b"}' % response_id(JOB.id).encode()))


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.ACCEPTED, "queued"),
        (JobState.PACKED, "queued"),
        (JobState.SUBMITTED, "in_progress"),
        (JobState.CANCELLED, "cancelled"),
        (JobState.FAILED, "failed"),
        (JobState.EXPIRED, "failed"),
    ],
)
def test_a_job_is_told_in_the_words_of_the_api(state: JobState, status: str) -> None:
    told = json.loads(response_object(replace(JOB, state=state), REQUEST, None))
    assert (told["id"], told["object"], told["status"]) == (response_id(JOB.id), "response", status)
    assert (told["instructions"], told["metadata"]) == ("Be brief.", {"a": "b"})
    assert told["output"] == []
    assert (told["error"] is not None) == (status == "failed")


def test_the_providers_answer_is_told_byte_for_byte_under_the_callers_id() -> None:
    body = b'{ "id":"resp_1", "background":false,"status":"completed","temperature":1.0 ,"output":[]}'
    answer = Answer(200, body)
    told = response_object(
        replace(JOB, state=JobState.DELIVERED, ended_as=JobState.SUCCEEDED), REQUEST, answer
    )
    expected = body.replace(b"resp_1", response_id(JOB.id).encode()).replace(b"false", b"true")
    assert told == expected


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_prompt"), (429, "server_error"), (500, "server_error")]
)
def test_a_refusal_becomes_a_failed_response(status: int, code: str) -> None:
    answer = Answer(status, b'{"error":{"message":"no such thing"}}')
    told = json.loads(response_object(replace(JOB, state=JobState.FAILED), REQUEST, answer))
    assert told["error"] == {"code": code, "message": "no such thing"}


def test_whatever_the_caller_wrote_there_is_an_object() -> None:
    odd = b'{"model":"x","instructions":"\\ud800"}'
    job = replace(JOB, error=JobError("x", "why"), state=JobState.FAILED)
    for request in (odd, b"", b"[]", None):
        told = json.loads(response_object(job, request, None))
        assert told["error"]["message"] == "why"
