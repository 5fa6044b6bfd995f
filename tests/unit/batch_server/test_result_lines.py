"""Result lines can be read by every reader of OpenAI's, whatever the answer was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch_server.result_lines import NotRun, answered_line, line_id, not_run_line, unanswered_line
from proxy.jobs.unpacking import OutcomeKind, read_line


def test_a_success_keeps_its_body_byte_for_byte() -> None:
    body = b'{"id":"x", "n":1.0e0, "u":"\\u00e9"}'
    result = answered_line("batch_1", 3, 'a"é', 200, "req_1", body)
    assert result.is_completed
    assert result.text.endswith(b"\n")
    assert result.text.count(b"\n") == 1
    assert body in result.text
    told = json.loads(result.text)
    assert told["custom_id"] == 'a"é'
    assert told["error"] is None
    assert told["response"] == {"status_code": 200, "request_id": "req_1", "body": json.loads(body)}
    assert told["id"] == line_id("batch_1", 3)
    assert told["id"].startswith("batch_req_")


def test_ids_are_stable_and_of_one_line() -> None:
    assert line_id("b", 1) == line_id("b", 1)
    assert len({line_id("b", 1), line_id("b", 2), line_id("c", 1), line_id("b1", 1)}) == 4


def test_a_pretty_answer_becomes_one_line() -> None:
    pretty = json.dumps({"id": "x", "text": "two\nlines"}, indent=2).replace("\n", "\r\n").encode()
    result = answered_line("b", 0, "a", 200, "r", pretty)
    assert result.text.count(b"\n") == 1
    assert b"\r" not in result.text
    assert json.loads(result.text)["response"]["body"] == {"id": "x", "text": "two\nlines"}


def test_a_refusal_is_an_error_with_its_body() -> None:
    body = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'
    result = answered_line("b", 0, "a", 400, "r", body)
    assert not result.is_completed
    assert json.loads(result.text)["response"]["body"]["error"]["code"] == "c"


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>busy</html>", b'{"cut":', b"[1]", b"\xff\xfe", b'{"n":NaN}', b'{"a":"\x01"}', b"x" * 9999],
)
@pytest.mark.parametrize("status", [200, 502])
def test_an_unreadable_answer_is_quoted_in_an_error(body: bytes, status: int) -> None:
    result = answered_line("b", 0, "a", status, "r", body)
    assert not result.is_completed
    told = json.loads(result.text)["response"]
    assert told["status_code"] == status
    assert told["body"]["error"]["code"] == "unreadable_answer"
    assert len(result.text) < 5000


def test_half_a_surrogate_pair_is_no_reason_to_lose_an_answer() -> None:
    result = answered_line("b", 0, "a", 200, "r", b'{"text":"\\ud83d"}')
    assert result.is_completed
    assert b"\\ud83d" in result.text


@given(st.integers(100, 599), st.binary(max_size=60), st.text(max_size=10))
def test_every_line_is_one_line_of_json(status: int, body: bytes, custom_id: str) -> None:
    text = answered_line("b", 0, custom_id, status, "r", body).text
    assert text.count(b"\n") == 1
    assert json.loads(text)["custom_id"] == custom_id


@pytest.mark.parametrize(
    ("why", "code", "kind"),
    [
        (NotRun.EXPIRED, "batch_expired", OutcomeKind.EXPIRED),
        (NotRun.CANCELLED, "batch_cancelled", OutcomeKind.CANCELLED),
    ],
)
def test_a_line_that_never_ran_says_why(why: NotRun, code: str, kind: OutcomeKind) -> None:
    result = not_run_line("b", 0, "a", why)
    told = json.loads(result.text)
    assert told["response"] is None
    assert told["error"]["code"] == code
    assert not result.is_completed
    # A Weir in front of this one reads it as it reads a provider's.
    read = read_line(result.text, "batch")
    assert read is not None
    assert read[1].kind is kind


def test_a_line_without_an_answer_says_why() -> None:
    told = json.loads(unanswered_line("b", 0, "a", "upstream_closed", "it hung up").text)
    assert told["error"] == {"code": "upstream_closed", "message": "it hung up"}
