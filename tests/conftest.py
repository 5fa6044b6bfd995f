"""What every test shares: how hard hypothesis looks. Servers and builders are in tests/support."""

from __future__ import annotations

import os
import shutil

from hypothesis import HealthCheck, settings

# A slow or busy machine is not a bug: no deadlines, and no complaint about slow generation.
settings.register_profile(
    "default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
# For a night: HYPOTHESIS_PROFILE=thorough make test
settings.register_profile("thorough", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


def pytest_report_header() -> str | None:
    """Say what is left out on this machine; in CI nothing is (tests/support/jobs.py)."""
    if shutil.which("redis-server") or os.environ.get("CI"):
        return None
    return "job stores: no redis-server here, so Redis is left out and Valkey stands for it"
