from __future__ import annotations

from proxy.sim.errors import ApiError, Family, error_body, failure, missing, retry_after_headers


def test_openai_shape() -> None:
    assert error_body(Family.OPENAI, missing("messages"), "req_1") == {
        "error": {
            "message": "Missing required parameter: 'messages'.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "missing_required_parameter",
        }
    }


def test_anthropic_shape_puts_the_field_into_the_message() -> None:
    body = error_body(Family.ANTHROPIC, missing("model"), "req_1")
    assert body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "model: Missing required parameter: 'model'."},
        "request_id": "req_1",
    }


def test_anthropic_types_follow_the_status() -> None:
    def type_of(status: int) -> object:
        body = error_body(Family.ANTHROPIC, failure(status), "")
        assert isinstance(body["error"], dict)
        return body["error"]["type"]

    found = [type_of(status) for status in (401, 429, 500, 529, 418)]
    assert found == [
        "authentication_error",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
        "invalid_request_error",
    ]


def test_a_failure_on_request_may_carry_code_and_retry_after() -> None:
    error = failure(429, "resource_unavailable", 0.25)
    assert (error.status, error.code) == (429, "resource_unavailable")
    assert error.headers == (("retry-after", "1"), ("retry-after-ms", "250"))
    assert failure(503).headers == ()


def test_retry_after_is_rounded_up_to_whole_seconds() -> None:
    assert retry_after_headers(2.0)[0] == ("retry-after", "2")
    assert retry_after_headers(2.1)[0] == ("retry-after", "3")


def test_an_error_can_be_printed() -> None:
    assert str(ApiError(404, "No", code="c")) == "404 c: No"
