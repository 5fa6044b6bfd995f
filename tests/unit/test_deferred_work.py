from __future__ import annotations

import pytest

from proxy.core.upstream import Upstream
from proxy.deferred_work import PolicyDirectory, keeping
from proxy.jobs.opening import DEFAULT
from proxy.jobs.worker.ports import RouteRules
from proxy.policy.model import BatchPolicy, Match, PolicySet, Route
from proxy.settings import Settings

UPSTREAM = Upstream("openai", "https://api.example/v1")
PLAIN = Route("plain", Match())
NIGHTLY = Route("nightly", Match(), batch=BatchPolicy(flush_jobs=7, flush_after_seconds=3.0, min_jobs=2))


def policies(*routes: Route) -> PolicySet:
    return PolicySet("v", {"openai": UPSTREAM}, "openai", routes)


def test_a_file_is_used_only_where_a_route_defers() -> None:
    assert keeping(Settings(), policies(PLAIN)) is None
    kept = keeping(Settings(), policies(PLAIN, NIGHTLY))
    assert kept is not None
    assert (kept.setting, kept.vault, kept.is_given) == (DEFAULT, None, False)


def test_an_operator_decides_otherwise() -> None:
    assert keeping(Settings(store="off"), policies(NIGHTLY)) is None
    kept = keeping(Settings(store="redis://h:1", secret_key="k" * 40), policies(PLAIN))
    assert kept is not None
    assert kept.is_given
    assert kept.vault is not None


def test_a_key_that_could_be_guessed_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="shorter than") as refusal:
        keeping(Settings(store="sqlite:x", secret_key="hunter2"), policies())
    assert "hunter2" not in str(refusal.value)
    assert "hunter2" not in repr(Settings(secret_key="hunter2"))


def test_the_worker_hears_of_the_policies_in_force() -> None:
    now = [policies(NIGHTLY)]
    directory = PolicyDirectory(lambda: now[0])
    assert directory.upstream("openai") is UPSTREAM
    assert directory.rules("nightly") == RouteRules(7, 3.0, 2)
    now[0] = policies(PLAIN)
    assert directory.rules("nightly") == RouteRules()
    assert directory.upstream("gone") is None
