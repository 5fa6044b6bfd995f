from __future__ import annotations

from proxy.webhooks.health import FAILING_SECONDS, FAILURES, PROBE_SECONDS, Health


def failing(count: int, over_seconds: float, begin: float = 1000.0) -> tuple[Health, float]:
    health, now = Health(), begin
    for number in range(count):
        now = begin + over_seconds * number / (count - 1)
        health = health.failed(now, is_gone=False)
    return health, now


def test_many_failures_within_an_hour_disable_nothing() -> None:
    health, _ = failing(10 * FAILURES, FAILING_SECONDS - 1)
    assert not health.is_disabled


def test_few_failures_over_long_disable_nothing() -> None:
    assert not failing(FAILURES - 1, 100 * FAILING_SECONDS)[0].is_disabled


def test_failures_in_a_row_over_an_hour_disable() -> None:
    health, now = failing(FAILURES, FAILING_SECONDS)
    assert health.is_disabled
    assert health.wait_seconds(now) == PROBE_SECONDS


def test_a_410_disables_at_once() -> None:
    health = Health().failed(5.0, is_gone=True)
    assert health.is_disabled


def test_a_disabled_address_is_probed_once_an_hour() -> None:
    health = Health().failed(0.0, is_gone=True)
    assert health.wait_seconds(PROBE_SECONDS - 1) == 1.0
    assert health.wait_seconds(PROBE_SECONDS) == 0.0
    probing = health.probing(PROBE_SECONDS)
    assert probing.wait_seconds(PROBE_SECONDS) == PROBE_SECONDS, "nobody else probes meanwhile"
    assert probing.failed(PROBE_SECONDS + 5, is_gone=False).wait_seconds(PROBE_SECONDS + 5) == PROBE_SECONDS


def test_an_enabled_address_never_waits() -> None:
    health = Health().failed(0.0, is_gone=False)
    assert health.probing(0.0) is health
    assert health.wait_seconds(0.0) == 0.0
