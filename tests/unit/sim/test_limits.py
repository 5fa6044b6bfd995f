from __future__ import annotations

import pytest

from proxy.core.clock import ManualClock
from proxy.sim.errors import Family
from proxy.sim.limits import RateLimits, duration, limit_headers
from proxy.sim.scenario import LimitRules


def test_no_limits_no_readings() -> None:
    assert RateLimits(LimitRules(), ManualClock()).admit("a", 1_000_000) == ((), None)


def test_requests_beyond_the_limit_are_refused_until_the_bucket_refills() -> None:
    clock = ManualClock()
    limits = RateLimits(LimitRules(requests_per_minute=2), clock)
    assert [limits.admit("a", 0)[1] for _ in range(2)] == [None, None]
    refusal = limits.admit("a", 0)[1]
    assert refusal is not None
    assert (refusal.status, refusal.type, refusal.code) == (429, "requests", "rate_limit_exceeded")
    assert dict(refusal.headers) == {"retry-after": "30", "retry-after-ms": "30000"}
    clock.advance(30)
    assert limits.admit("a", 0)[1] is None
    assert limits.admit("a", 0)[1] is not None


def test_a_refused_request_costs_nothing() -> None:
    clock = ManualClock()
    limits = RateLimits(LimitRules(requests_per_minute=60, tokens_per_minute=100), clock)
    limits.admit("a", 80)
    readings, refusal = limits.admit("a", 50)
    assert refusal is not None
    assert refusal.type == "tokens"
    assert [(reading.kind, reading.remaining) for reading in readings] == [("requests", 59), ("tokens", 20)]


def test_callers_have_limits_of_their_own() -> None:
    limits = RateLimits(LimitRules(requests_per_minute=1), ManualClock())
    assert limits.admit("a", 0)[1] is None
    assert limits.admit("b", 0)[1] is None
    assert limits.admit("a", 0)[1] is not None


def test_what_can_never_fit_gets_no_retry_after() -> None:
    limits = RateLimits(LimitRules(tokens_per_minute=100), ManualClock())
    refusal = limits.admit("a", 101)[1]
    assert refusal is not None
    assert refusal.headers == ()
    assert "too large" in refusal.message


def test_each_family_spells_its_headers() -> None:
    clock = ManualClock()
    readings, _ = RateLimits(LimitRules(requests_per_minute=10), clock).admit("a", 0)
    assert limit_headers(Family.OPENAI, readings, clock.wall()) == [
        ("x-ratelimit-limit-requests", "10"),
        ("x-ratelimit-remaining-requests", "9"),
        ("x-ratelimit-reset-requests", "6s"),
    ]
    assert limit_headers(Family.ANTHROPIC, readings, clock.wall()) == [
        ("anthropic-ratelimit-requests-limit", "10"),
        ("anthropic-ratelimit-requests-remaining", "9"),
        ("anthropic-ratelimit-requests-reset", "2023-11-14T22:13:26Z"),
    ]


@pytest.mark.parametrize(
    ("seconds", "spelt"), [(0, "0ms"), (0.012, "12ms"), (1.5, "1.5s"), (59, "59s"), (360, "6m0s")]
)
def test_durations_are_spelt_as_openai_does(seconds: float, spelt: str) -> None:
    assert duration(seconds) == spelt
