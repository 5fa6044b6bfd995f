"""What an answer to a line means."""

from __future__ import annotations

import pytest

from proxy.batch_server.capacity import LineEnd
from proxy.batch_server.line_values import LineAnswer
from proxy.batch_server.verdicts import Again, reason, verdict
from proxy.core.errors import (
    INTERNAL,
    REJECTED_BY_POLICY,
    TOO_MANY_REQUESTS,
    UPSTREAM_BUSY,
    UPSTREAM_CLOSED,
    UPSTREAM_CONNECT,
    UPSTREAM_FIRST_BYTE_TIMEOUT,
    UPSTREAM_PROTOCOL,
    ErrorCode,
    ProxyError,
)


def answer(status: int = 200, failure: ProxyError | None = None) -> LineAnswer:
    return LineAnswer("local", status, "req", b"{}", 1.0, failure)


@pytest.mark.parametrize(
    ("status", "again", "end"),
    [
        (200, Again.NEVER, LineEnd.ANSWERED),
        (400, Again.NEVER, LineEnd.OTHER),
        (404, Again.NEVER, LineEnd.OTHER),
        (408, Again.SOMETIMES, LineEnd.OTHER),
        (429, Again.ALWAYS, LineEnd.BUSY),
        (500, Again.SOMETIMES, LineEnd.OTHER),
        (502, Again.SOMETIMES, LineEnd.NO_ANSWER),
        (503, Again.ALWAYS, LineEnd.BUSY),
        (504, Again.SOMETIMES, LineEnd.NO_ANSWER),
    ],
)
def test_statuses(status: int, again: Again, end: LineEnd) -> None:
    assert verdict(answer(status)) == (again, end)
    assert reason(answer(status)) == str(status)


@pytest.mark.parametrize(
    ("kind", "again", "end"),
    [
        (UPSTREAM_CONNECT, Again.ALWAYS, LineEnd.NO_ANSWER),
        (UPSTREAM_FIRST_BYTE_TIMEOUT, Again.SOMETIMES, LineEnd.NO_ANSWER),
        (UPSTREAM_CLOSED, Again.SOMETIMES, LineEnd.NO_ANSWER),
        (UPSTREAM_PROTOCOL, Again.SOMETIMES, LineEnd.OTHER),
        (UPSTREAM_BUSY, Again.ALWAYS, LineEnd.BUSY),
        (TOO_MANY_REQUESTS, Again.ALWAYS, LineEnd.OTHER),
        (REJECTED_BY_POLICY, Again.NEVER, LineEnd.OTHER),
        (INTERNAL, Again.SOMETIMES, LineEnd.OTHER),
    ],
)
def test_failures(kind: ErrorCode, again: Again, end: LineEnd) -> None:
    failed = answer(kind.status, ProxyError(kind, "no"))
    assert verdict(failed) == (again, end)
    assert reason(failed) == kind.code


def test_what_is_known_not_to_have_arrived_is_sent_for_as_long_as_there_is_time() -> None:
    lost = ProxyError(UPSTREAM_CLOSED, "no", never_arrived=True)
    assert verdict(answer(502, lost)) == (Again.ALWAYS, LineEnd.NO_ANSWER)
