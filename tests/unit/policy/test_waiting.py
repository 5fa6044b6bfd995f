from __future__ import annotations

import pytest

from proxy.policy.model import Match, Route, UrgencyPolicy
from proxy.policy.waiting import answer_deadline, caller_patience_seconds

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z
ROUTE = Route(
    "r",
    Match(),
    urgency=UrgencyPolicy(deadline_seconds=3600.0),
    allow_caller=frozenset({"x-weir-deadline"}),
    caller_patience_seconds=42.0,
)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 42.0),
        ({"x-stainless-read-timeout": "600"}, 600.0),
        ({"x-stainless-timeout": "12.5"}, 12.5),
        ({"x-stainless-read-timeout": "5", "x-stainless-timeout": "9"}, 5.0),
        ({"x-stainless-read-timeout": "none", "x-stainless-timeout": "9"}, 9.0),
        ({"x-stainless-timeout": "-1"}, 42.0),
        ({"x-stainless-timeout": "0"}, 42.0),
        ({"x-stainless-timeout": "inf"}, 42.0),
        ({"x-stainless-timeout": "nan"}, 42.0),
        ({"x-stainless-timeout": "1e300"}, 30 * 86400.0),
    ],
)
def test_patience_is_the_callers_own_word_or_the_routes(headers: dict[str, str], seconds: float) -> None:
    assert caller_patience_seconds(ROUTE, headers.get) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2h", 7200.0),
        ("90s", 90.0),
        ("2023-11-14T22:14:20Z", 60.0),
        ("2023-11-14T23:14:20+01:00", 60.0),
        ("2020-01-01T00:00:00Z", 0.0),
        ("9999-12-31T00:00:00Z", 30 * 86400.0),
    ],
)
def test_a_deadline_is_a_duration_or_a_time(value: str, seconds: float) -> None:
    deadline = answer_deadline(ROUTE, value, NOW)
    assert (deadline.seconds, deadline.reason) == (seconds, "header x-weir-deadline")


@pytest.mark.parametrize(
    "value", ["", "tomorrow", "5", "2023-11-14T22:14:20", "0001-01-01T00:00:00+23:59x", "-2h"]
)
def test_an_unreadable_deadline_leaves_the_routes_own(value: str) -> None:
    deadline = answer_deadline(ROUTE, value, NOW)
    assert deadline.seconds == 3600.0
    assert "ignored" in deadline.reason


def test_a_deadline_counts_only_where_it_is_allowed() -> None:
    closed = Route("r", Match(), urgency=UrgencyPolicy(deadline_seconds=60.0))
    deadline = answer_deadline(closed, "2h", NOW)
    assert (deadline.seconds, deadline.reason) == (
        60.0,
        "x-weir-deadline ignored: the route does not allow it",
    )


def test_without_a_header_the_route_decides() -> None:
    assert answer_deadline(ROUTE, None, NOW).seconds == 3600.0
    assert answer_deadline(Route("r", Match()), None, NOW).seconds is None
