"""How the simulator refuses: one error type, rendered in the shape of the API that was called.

It owns the two error bodies (OpenAI's and Anthropic's) and refuses to decide when an error is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Family(Enum):
    """Whose conventions an endpoint follows: error bodies, request id and rate limit headers."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(eq=False)
class ApiError(Exception):
    """An answer other than 200. `param` names the offending field, `code` is the reason for machines.

    `is_html` is for the error of a gateway between caller and provider, which knows no API's shape.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    is_html: bool = False

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"


_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(family: Family, error: ApiError, request_id: str) -> dict[str, object]:
    """Return the JSON body with which `family` reports `error`."""
    match family:
        case Family.OPENAI:
            return openai_error(error)
        case Family.ANTHROPIC:
            return {"type": "error", "error": anthropic_error(error), "request_id": request_id}


def openai_error(error: ApiError) -> dict[str, object]:
    """Return `{"error": {message, type, param, code}}`."""
    return {
        "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code},
    }


def anthropic_error(error: ApiError) -> dict[str, object]:
    """Return `{type, message}`; Anthropic has no `param`, its messages begin with the field's name."""
    message = error.message
    if error.param and not message.startswith(error.param):
        message = f"{error.param}: {message}"
    if error.status in _ANTHROPIC_TYPES:
        return {"type": _ANTHROPIC_TYPES[error.status], "message": message}
    return {"type": "api_error" if error.status >= 500 else "invalid_request_error", "message": message}


def missing(param: str) -> ApiError:
    """Return OpenAI's refusal of a body without `param`."""
    return ApiError(
        400, f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def unsupported(param: str, advice: str = "") -> ApiError:
    """Return OpenAI's refusal of a parameter that the model does not take."""
    message = f"Unsupported parameter: '{param}' is not supported with this model."
    return ApiError(400, f"{message} {advice}".rstrip(), param=param, code="unsupported_parameter")


def unsupported_value(param: str, value: object) -> ApiError:
    """Return OpenAI's refusal of a value that the model does not take."""
    message = (
        f"Unsupported value: '{param}' does not support {value} with this model. "
        "Only the default (1) value is supported."
    )
    return ApiError(400, message, param=param, code="unsupported_value")


def invalid(param: str, message: str, code: str | None = "invalid_value") -> ApiError:
    """Return a 400 about one field."""
    return ApiError(400, message, param=param, code=code)


def failure(status: int, code: str | None = None, retry_after_seconds: float | None = None) -> ApiError:
    """Return the error that a provider answers `status` with when nothing is wrong with the request."""
    type_, default_code, message = _FAILURES.get(
        status,
        ("server_error", None, "The server had an error while processing your request. (simulated)")
        if status >= 500
        else ("invalid_request_error", None, f"The request was refused with status {status}. (simulated)"),
    )
    headers = () if retry_after_seconds is None else retry_after_headers(retry_after_seconds)
    if code is not None and code in _MESSAGES:
        type_, message = code, _MESSAGES[code]
    return ApiError(status, message, type_, None, code or default_code, headers)


def retry_after_headers(seconds: float) -> tuple[tuple[str, str], ...]:
    """Return both spellings of "come back in `seconds`": whole seconds, rounded up, and milliseconds."""
    whole_seconds = max(0, int(-(-seconds // 1)))
    return (("retry-after", str(whole_seconds)), ("retry-after-ms", str(max(0, round(seconds * 1000)))))


_FAILURES: Mapping[int, tuple[str, str | None, str]] = {
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided. (simulated)"),
    403: ("invalid_request_error", "permission_denied", "You may not do this. (simulated)"),
    404: ("invalid_request_error", "model_not_found", "The model does not exist. (simulated)"),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests. (simulated)"),
    498: ("capacity_exceeded", "capacity_exceeded", "Flex tier capacity exceeded. (simulated)"),
    503: ("service_unavailable_error", None, "The engine is currently overloaded. (simulated)"),
    529: ("overloaded_error", None, "Overloaded. (simulated)"),
}

# What is told apart by its code, not by its status.
_MESSAGES: Mapping[str, str] = {
    "resource_unavailable": "There is no flex capacity for this request now. (simulated)",
    "insufficient_quota": "You exceeded your current quota. (simulated)",
}
