"""What a batch's files say, whatever their order and shape; every job gets an outcome."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from proxy.jobs.unpacking import LineOutcome, OutcomeKind, Unpacked, unpack


def response_line(job_id: str, status: Any = 200, body: bytes = b'{"id":"x"}', **fields: Any) -> bytes:
    head = orjson.dumps({"id": "batch_req_1", "custom_id": job_id, "error": None, **fields})
    answer = b'"response":{"status_code":%b,"request_id":"req_1","body":%b}}'
    return head[:-1] + b"," + answer % (orjson.dumps(status), body)


def error_line(job_id: str, code: str) -> bytes:
    error = {"code": code, "message": "told by the provider"}
    return orjson.dumps({"custom_id": job_id, "response": None, "error": error})


def one(line: bytes) -> LineOutcome:
    return unpack([line], ["a"], "batch:1").outcomes["a"]


def test_answers_find_their_jobs_in_any_order_and_keep_their_bytes() -> None:
    lines = [response_line(f"job-{number}", body=b'{"n": %d.00, "n":1}' % number) for number in range(20)]
    random.Random(3).shuffle(lines)
    found = unpack(lines, [f"job-{number}" for number in range(20)], "batch:1")
    assert list(found.outcomes) == [f"job-{number}" for number in range(20)]
    for number in range(20):
        outcome = found.outcomes[f"job-{number}"]
        assert outcome.kind is OutcomeKind.ANSWER
        assert outcome.answer is not None
        assert outcome.answer.body == b'{"n": %d.00, "n":1}' % number
        assert outcome.answer.source == "batch:1"
        assert ("x-request-id", "req_1") in outcome.answer.headers


def test_seven_answers_two_errors_and_one_in_neither_file() -> None:
    """567-labs/instructor#2657: only the output file was read."""
    ids = [f"job-{number}" for number in range(10)]
    output = [response_line(job_id) for job_id in reversed(ids[:7])]
    errors = [error_line(ids[7], "batch_expired"), response_line(ids[8], 400, b'{"error":{"code":"bad"}}')]
    kinds = [outcome.kind for outcome in unpack([*output, *errors], ids, "batch:1").outcomes.values()]
    assert kinds == [OutcomeKind.ANSWER] * 7 + [
        OutcomeKind.EXPIRED,
        OutcomeKind.FAILED,
        OutcomeKind.MISSING,
    ]


def test_an_error_file_alone_fails_each_job_with_its_own_error() -> None:
    """ProjectTech4DevAI/kaapi-backend#723: a completed batch without output was reported as success."""
    lines = [
        response_line(f"j{n}", 400, b'{"error":{"message":"m%d","code":"c%d"}}' % (n, n)) for n in range(3)
    ]
    found = unpack(lines, ["j0", "j1", "j2"], "batch:1").outcomes
    assert [outcome.error.code for outcome in found.values() if outcome.error] == ["c0", "c1", "c2"]
    assert {outcome.answer.status for outcome in found.values() if outcome.answer} == {400}


@pytest.mark.parametrize("status", [408, 429, 498, 500, 502, 503, 504, 529])
def test_a_line_that_failed_for_reasons_of_the_moment_may_be_tried_again(status: int) -> None:
    outcome = one(response_line("a", status, b'{"error":{"code":"rate_limit_exceeded","message":"m"}}'))
    assert outcome.kind is OutcomeKind.RETRY
    assert outcome.error is not None
    assert outcome.error.code == "rate_limit_exceeded"


def test_an_account_without_money_is_not_tried_again() -> None:
    line = response_line("a", 429, b'{"error":{"code":"insufficient_quota"}}')
    assert one(line).kind is OutcomeKind.FAILED


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("batch_expired", OutcomeKind.EXPIRED),
        ("batch_cancelled", OutcomeKind.CANCELLED),
        ("invalid_request_error", OutcomeKind.FAILED),
        ("model_not_found", OutcomeKind.FAILED),
        ("insufficient_quota", OutcomeKind.FAILED),
        ("server_error", OutcomeKind.RETRY),
        ("something_new", OutcomeKind.RETRY),
    ],
)
def test_lines_without_a_response_are_judged_by_their_code(code: str, kind: OutcomeKind) -> None:
    outcome = one(error_line("a", code))
    assert outcome.kind is kind
    assert outcome.answer is None
    assert outcome.error is not None
    assert outcome.error.code == code


def test_duplicates_and_unknown_ids_are_told_apart() -> None:
    lines = [
        error_line("a", "server_error"),
        response_line("a", body=b'{"first":1}'),
        response_line("a", body=b'{"second":1}'),
        response_line("somebody-elses"),
        b"nonsense",
        b'{"custom_id":7}',
        b"",
        b"  \r",
    ]
    found = unpack(lines, ["a"], "batch:1")
    answer = found.outcomes["a"].answer
    assert answer is not None
    assert answer.body == b'{"first":1}'
    assert found == Unpacked(found.outcomes, ("a",), ("somebody-elses",), 2)


@pytest.mark.parametrize(
    "line",
    [
        b'{"custom_id":"a"}',
        b'{"custom_id":"a","response":null,"error":null}',
        b'{"custom_id":"a","response":null,"error":{}}',
    ],
)
def test_a_line_that_says_nothing_may_be_tried_again(line: bytes) -> None:
    assert one(line).kind is OutcomeKind.RETRY


def test_odd_spellings_are_understood() -> None:
    assert one(response_line("a", "200")).kind is OutcomeKind.ANSWER
    assert one(b'{"custom_id":"a","response":{"body":{"id":1}}}').kind is OutcomeKind.ANSWER
    without_body = one(b'{"custom_id":"a","response":{"status_code":200}}')
    assert without_body.answer is not None
    assert without_body.answer.body == b"null"
    assert one(b"\xef\xbb\xbf" + response_line("a")).kind is OutcomeKind.ANSWER
    text = one(b'{"custom_id":"a","response":null,"error":"it broke"}')
    assert text.error is not None
    assert text.error.message == "it broke"
    nested = one(b'{"custom_id":"a","response":null,"error":{"error":{"type":"invalid_request_error"}}}')
    assert nested.kind is OutcomeKind.FAILED


def test_messages_that_no_store_takes_are_made_harmless() -> None:
    line = b'{"custom_id":"a","response":null,"error":{"code":"x\\ud800","message":"%b"}}' % (b"m" * 9000)
    error = one(line).error
    assert error is not None
    assert error.code == "x?"
    assert len(error.message) == 2000


def test_empty_files_leave_every_job_missing() -> None:
    found = unpack([], ["a", "b"], "batch:1")
    assert {outcome.kind for outcome in found.outcomes.values()} == {OutcomeKind.MISSING}


@pytest.mark.parametrize("body", [b'{"content":"cut \\ud83d"}', b'{"score":NaN}'])
def test_an_answer_that_strict_readers_refuse_is_an_answer_all_the_same(body: bytes) -> None:
    outcome = one(response_line("a", body=body))
    assert outcome.kind is OutcomeKind.ANSWER
    assert outcome.answer is not None
    assert outcome.answer.body == body
    assert ("x-request-id", "req_1") in outcome.answer.headers


def test_an_endless_nest_is_nonsense_and_no_crash() -> None:
    line = b'{"custom_id":"a","response":{"status_code":200,"body":' + b"[" * 100_000
    assert unpack([line], ["a"], "batch:1").unreadable == 1


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"null", OutcomeKind.RETRY, "unusable_result"),
        (b'"text"', OutcomeKind.RETRY, "unusable_result"),
        (b"[]", OutcomeKind.RETRY, "unusable_result"),
        (b'{"error":{"code":"server_error","message":"m"}}', OutcomeKind.RETRY, "server_error"),
        (b'{"error":{"code":"invalid_value","message":"m"}}', OutcomeKind.FAILED, "invalid_value"),
        (b'{"type":"error","error":{"type":"overloaded_error"}}', OutcomeKind.RETRY, "overloaded_error"),
    ],
)
def test_a_line_that_says_it_worked_and_holds_no_answer_is_none(
    body: bytes, kind: OutcomeKind, code: str
) -> None:
    outcome = one(response_line("a", body=body))
    assert outcome.kind is kind
    assert outcome.error is not None
    assert outcome.error.code == code
    assert outcome.may_have_run


@pytest.mark.parametrize(
    "body",
    [
        b' {"id":"x","error":null}',
        b'{"object":"response","status":"failed","error":{"code":"server_error"}}',
        b'{"data":[{"embedding":[NaN]}]}',
    ],
)
def test_what_an_api_answers_stays_an_answer(body: bytes) -> None:
    assert one(response_line("a", body=body)).kind is OutcomeKind.ANSWER


def test_a_line_without_response_and_error_may_have_run() -> None:
    outcome = one(orjson.dumps({"custom_id": "a", "response": None, "error": None}))
    assert (outcome.kind, outcome.may_have_run) == (OutcomeKind.RETRY, True)
