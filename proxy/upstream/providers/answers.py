"""What a provider's answer to one of our own calls means: a JSON object, or one of the port's errors.

Owns the reading of statuses and error bodies in OpenAI's shape and of Retry-After. Refuses to quote more of
an answer than its error message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.core.json_values import decode
from proxy.upstream.providers.batch_api import (
    BatchApiError,
    CredentialsRefused,
    FileRefused,
    NotFound,
    RateLimited,
    Unavailable,
    Unsupported,
)
from proxy.upstream.providers.client import Reply

_LONGEST_MESSAGE = 500


def checked(reply: Reply, *, whole_api: bool = False) -> Reply:
    """Return a good answer; raise what a bad one means.

    `whole_api`: the path names no single thing, so that 404 says that there is no such API.
    """
    status = reply.status
    if status < 300:
        return reply
    code, message = error_of(reply.body)
    told = f"status {status}{': ' if message else ''}{message}"
    match status:
        case 401 | 403:
            raise CredentialsRefused(told)
        case 404 if not whole_api or code is not None:
            raise NotFound(told)
        case 404 | 405 | 501:
            raise Unsupported(told)
        case 408 | 409 | 425:
            raise Unavailable(told)
        case 429:
            raise RateLimited(told, retry_after_seconds(reply.headers))
        case 413:
            raise FileRefused("too_large", told)
        case _ if 400 <= status < 500:
            raise FileRefused(code or "invalid_request", told)
        case _:
            raise Unavailable(told)


def error_of(body: bytes) -> tuple[str | None, str]:
    """Return code (or type, lower-case) and message of an error body; `None` for a body of another shape."""
    value = decode(body)
    error = value.get("error") if isinstance(value, dict) else None
    if error is None and isinstance(value, dict) and isinstance(value.get("message"), str):
        error = value  # Mistral's errors have no envelope
    if isinstance(error, str):
        return None, error[:_LONGEST_MESSAGE]
    if not isinstance(error, dict):
        return None, ""
    code = error.get("code") or error.get("type")
    message = error.get("message")
    return (
        str(code).lower() if code is not None else None,
        message[:_LONGEST_MESSAGE] if isinstance(message, str) else "",
    )


def json_object(reply: Reply) -> dict[str, Any]:
    """Return the object of a good answer; raise `Unavailable` for anything else, such as a page of HTML."""
    value = decode(reply.body)
    # Together wraps what it creates.
    if isinstance(value, dict) and "id" not in value and isinstance(value.get("job"), dict):
        value = value["job"]
    if not isinstance(value, dict):
        raise Unavailable(f"status {reply.status} without a JSON object")
    if "error" in value and value["error"] and "id" not in value and "data" not in value:
        raise BatchApiError(error_of(reply.body)[1] or "an error with a good status")
    return value


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return what `retry-after-ms` or `retry-after` (in seconds) says; a date counts for nothing."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * factor
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None
