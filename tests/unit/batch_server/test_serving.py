"""What is told about served upstreams when a process begins to serve them."""

from __future__ import annotations

from dataclasses import replace

from proxy.batch_server.serving import served_told
from proxy.core.upstream import Secret, ServedBatchApi, Upstream
from proxy.policy.model import PolicySet

LOCAL = Upstream("local", "http://127.0.0.1:8000/v1", batch_api=ServedBatchApi())
CLOUD = Upstream("cloud", "https://api.example/v1")


def _told(*upstreams: Upstream, seals: bool = False) -> list[str]:
    by_name = {upstream.name: upstream for upstream in upstreams}
    return list(served_told(PolicySet("v", by_name, upstreams[0].name, ()), seals))


def test_names_the_upstreams_that_are_served_and_no_others() -> None:
    keyed = replace(LOCAL, api_key=Secret("sk-x"))
    assert _told(keyed, CLOUD) == ["files and batches for upstream local are served"]
    assert _told(CLOUD) == []


def test_says_what_callers_credentials_would_need() -> None:
    (line,) = _told(LOCAL)
    assert "WEIR_SECRET_KEY" in line
    assert "api_key" in line
    assert _told(LOCAL, seals=True) == ["files and batches for upstream local are served"]
