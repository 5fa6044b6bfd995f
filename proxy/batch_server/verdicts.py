"""What an answer to a line means: whether it is to be kept, and what it says about the upstream. Pure."""

from __future__ import annotations

from enum import Enum

from proxy.batch_server.capacity import LineEnd
from proxy.batch_server.line_values import LineAnswer
from proxy.core.errors import (
    INTERNAL,
    TOO_MANY_REQUESTS,
    UPSTREAM_BUSY,
    UPSTREAM_CLOSED,
    UPSTREAM_CONNECT,
    UPSTREAM_CONNECT_TIMEOUT,
    UPSTREAM_DNS,
    UPSTREAM_PROTOCOL,
    UPSTREAM_TLS,
    ProxyError,
    Source,
)

_BUSY = frozenset({429, 503})
_REQUEST_TIMEOUT = 408
_NEVER_REACHED = frozenset({UPSTREAM_CONNECT, UPSTREAM_CONNECT_TIMEOUT, UPSTREAM_DNS, UPSTREAM_TLS})


class Again(Enum):
    """Whether a line is tried again."""

    NEVER = "never"
    SOMETIMES = "sometimes"  # the line itself may be the reason: a few times
    ALWAYS = "always"  # as long as its batch has time


def verdict(answer: LineAnswer) -> tuple[Again, LineEnd]:
    """Judge an answer, by itself."""
    if answer.failure is not None:
        return _of_failure(answer.failure)
    status = answer.status
    if status in _BUSY:
        return Again.ALWAYS, LineEnd.BUSY
    if status == _REQUEST_TIMEOUT or status >= 500:
        return Again.SOMETIMES, LineEnd.NO_ANSWER if status in (502, 504) else LineEnd.OTHER
    return Again.NEVER, LineEnd.ANSWERED if status < 300 else LineEnd.OTHER


def _of_failure(failure: ProxyError) -> tuple[Again, LineEnd]:
    kind = failure.kind
    if kind in _NEVER_REACHED or (kind is UPSTREAM_CLOSED and failure.never_arrived):
        return Again.ALWAYS, LineEnd.NO_ANSWER
    if kind is UPSTREAM_BUSY:
        return Again.ALWAYS, LineEnd.BUSY
    if kind is TOO_MANY_REQUESTS:
        return Again.ALWAYS, LineEnd.OTHER
    if kind is UPSTREAM_PROTOCOL:
        # It answered, if badly: that a line is answered so is no reason to spare the upstream all others.
        return Again.SOMETIMES, LineEnd.OTHER
    if kind.source is Source.UPSTREAM:
        return Again.SOMETIMES, LineEnd.NO_ANSWER
    return (Again.SOMETIMES if kind is INTERNAL else Again.NEVER), LineEnd.OTHER


def reason(answer: LineAnswer) -> str:
    """Return a word for why a line is tried again: a status or an error code."""
    return str(answer.status) if answer.failure is None else answer.failure.kind.code
