"""Weir's own failures, and the one place that says how each looks to a caller.

    ProxyError                 status, code, type, source, retryable
    └── raised or handed to the edge, which renders it in OpenAI's shape

Codes are stable and listed in docs/errors.md. Upstream errors are not `ProxyError`s: they pass unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Source(Enum):
    """Whose fault a failure is."""

    DOWNSTREAM = "downstream"
    UPSTREAM = "upstream"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One row of docs/errors.md."""

    code: str
    status: int
    type: str
    source: Source


def _caller(code: str, status: int) -> ErrorCode:
    return ErrorCode(code, status, "invalid_request_error", Source.DOWNSTREAM)


def _upstream(code: str, status: int) -> ErrorCode:
    return ErrorCode(code, status, "upstream_error", Source.UPSTREAM)


BAD_REQUEST = _caller("bad_request", 400)
BAD_TARGET = _caller("bad_request_target", 400)
INVALID_BODY = _caller("invalid_body", 400)
REJECTED_BY_POLICY = _caller("rejected_by_policy", 400)
UNKNOWN_WEBHOOK = _caller("unknown_webhook", 400)
JOB_NO_STREAM = _caller("deferred_response_has_no_stream", 400)
INVALID_VALUE = _caller("invalid_value", 400)
MISSING_PARAMETER = _caller("missing_required_parameter", 400)
UNKNOWN_PARAMETER = _caller("unknown_parameter", 400)
BATCH_NEEDS_SECRET_KEY = _caller("batch_needs_secret_key", 400)
ADMIN_REFUSED = _caller("admin_access_refused", 403)
UNKNOWN_UPSTREAM = _caller("unknown_upstream", 404)
JOB_NOT_FOUND = _caller("job_not_found", 404)
FILE_NOT_FOUND = _caller("file_not_found", 404)
BATCH_NOT_FOUND = _caller("batch_not_found", 404)
METHOD_NOT_ALLOWED = _caller("method_not_allowed", 405)
BATCH_HAS_ENDED = _caller("batch_has_ended", 409)
JOB_CANCELLED = _caller("job_cancelled", 410)
REQUEST_TIMEOUT = _caller("request_timeout", 408)
BODY_TOO_LARGE = _caller("body_too_large", 413)
UNSUPPORTED_ENCODING = _caller("unsupported_content_encoding", 415)
TOO_MANY_REQUESTS = ErrorCode("too_many_concurrent_requests", 429, "rate_limit_error", Source.INTERNAL)
TOO_MANY_UPLOADS = ErrorCode("too_many_uploads", 429, "rate_limit_error", Source.INTERNAL)
HEADERS_TOO_LARGE = _caller("headers_too_large", 431)
METHOD_NOT_SUPPORTED = _caller("method_not_supported", 501)
INTERNAL = ErrorCode("internal_error", 500, "server_error", Source.INTERNAL)
JOB_UNREADABLE = ErrorCode("job_unreadable", 500, "server_error", Source.INTERNAL)
STORED_FILE_UNREADABLE = ErrorCode("stored_file_unreadable", 500, "server_error", Source.INTERNAL)
OVERLOADED = ErrorCode("overloaded", 503, "server_error", Source.INTERNAL)
BATCH_STORE_UNAVAILABLE = ErrorCode("batch_store_unavailable", 503, "server_error", Source.INTERNAL)
SHUTTING_DOWN = ErrorCode("shutting_down", 503, "server_error", Source.INTERNAL)
JOB_PENDING = ErrorCode("job_pending", 503, "server_error", Source.INTERNAL)
JOB_STORE_UNAVAILABLE = ErrorCode("job_store_unavailable", 503, "server_error", Source.INTERNAL)
SLOW_READER = ErrorCode("slow_reader", 503, "server_error", Source.DOWNSTREAM)
JOB_FAILED = _upstream("job_failed", 502)
JOB_EXPIRED = _upstream("job_expired", 504)
UPSTREAM_CONNECT = _upstream("upstream_connect_failed", 502)
UPSTREAM_DNS = _upstream("upstream_dns_failed", 502)
UPSTREAM_TLS = _upstream("upstream_tls_failed", 502)
UPSTREAM_PROTOCOL = _upstream("upstream_protocol_error", 502)
UPSTREAM_CLOSED = _upstream("upstream_closed", 502)
UPSTREAM_BUSY = _upstream("upstream_busy", 503)
UPSTREAM_CONNECT_TIMEOUT = _upstream("upstream_connect_timeout", 504)
UPSTREAM_FIRST_BYTE_TIMEOUT = _upstream("upstream_first_byte_timeout", 504)
UPSTREAM_IDLE_TIMEOUT = _upstream("upstream_idle_timeout", 504)
UPSTREAM_TOTAL_TIMEOUT = _upstream("upstream_total_timeout", 504)

CODES: tuple[ErrorCode, ...] = (
    BAD_REQUEST,
    BAD_TARGET,
    INVALID_BODY,
    REJECTED_BY_POLICY,
    UNKNOWN_WEBHOOK,
    JOB_NO_STREAM,
    INVALID_VALUE,
    MISSING_PARAMETER,
    UNKNOWN_PARAMETER,
    BATCH_NEEDS_SECRET_KEY,
    ADMIN_REFUSED,
    UNKNOWN_UPSTREAM,
    JOB_NOT_FOUND,
    FILE_NOT_FOUND,
    BATCH_NOT_FOUND,
    METHOD_NOT_ALLOWED,
    BATCH_HAS_ENDED,
    REQUEST_TIMEOUT,
    JOB_CANCELLED,
    BODY_TOO_LARGE,
    UNSUPPORTED_ENCODING,
    TOO_MANY_REQUESTS,
    TOO_MANY_UPLOADS,
    HEADERS_TOO_LARGE,
    METHOD_NOT_SUPPORTED,
    INTERNAL,
    JOB_UNREADABLE,
    STORED_FILE_UNREADABLE,
    OVERLOADED,
    BATCH_STORE_UNAVAILABLE,
    SHUTTING_DOWN,
    JOB_PENDING,
    JOB_STORE_UNAVAILABLE,
    SLOW_READER,
    JOB_FAILED,
    JOB_EXPIRED,
    UPSTREAM_CONNECT,
    UPSTREAM_DNS,
    UPSTREAM_TLS,
    UPSTREAM_PROTOCOL,
    UPSTREAM_CLOSED,
    UPSTREAM_BUSY,
    UPSTREAM_CONNECT_TIMEOUT,
    UPSTREAM_FIRST_BYTE_TIMEOUT,
    UPSTREAM_IDLE_TIMEOUT,
    UPSTREAM_TOTAL_TIMEOUT,
)


@dataclass(slots=True)
class ProxyError(Exception):
    """A failure that Weir itself answers with.

    `retry_after_seconds` becomes the `Retry-After` header; `param` names the offending field of the body.
    `retryable` says that the upstream has most likely not begun work, so that the same request may be sent
    again; `never_arrived` that it is known not to have received anything.
    """

    kind: ErrorCode
    message: str
    param: str | None = None
    retryable: bool = False
    never_arrived: bool = False
    retry_after_seconds: int | None = None

    def __str__(self) -> str:
        return f"{self.kind.code}: {self.message}"
