"""No web page uses the admin API, whatever it calls this address; operators do as before."""

from __future__ import annotations

import pytest

from proxy.edge.admin_access import refusal

LISTEN = "127.0.0.1:8081"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8081", "localhost:8081", "LOCALHOST", "[::1]:8081", "10.2.3.4:8081", "weir:8081",
     "weir.localhost", "[fd00::1]"],
)  # fmt: skip
def test_addresses_and_own_names_are_served(host: str) -> None:
    assert refusal("/jobs", host, None, LISTEN) is None
    assert refusal("/jobs", host, f"http://{host}", LISTEN) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example:8081", "1.2.3"]
)
def test_a_name_that_a_page_may_have_for_its_own_is_refused(host: str) -> None:
    assert refusal("/jobs", host, None, LISTEN) is not None
    assert refusal("/explain", host, f"http://{host}", LISTEN) is not None


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:3000", ""])
def test_another_origin_is_refused(origin: str) -> None:
    assert refusal("/jobs/1/cancel", "127.0.0.1:8081", origin, LISTEN) is not None
    assert refusal("/jobs/1/cancel", "x", origin, "unix:/run/admin.sock") is not None


def test_the_name_that_is_listened_on_is_served() -> None:
    assert refusal("/jobs", "weir.internal.example:8081", None, "weir.internal.example:8081") is None
    assert refusal("/jobs", "anything.example", None, "unix:/run/admin.sock") is None


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_and_metrics_are_open(path: str) -> None:
    assert refusal(path, "prometheus.example", "https://grafana.example", LISTEN) is None
