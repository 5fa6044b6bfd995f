from __future__ import annotations

import pytest

from proxy.policy.builtin import builtin, builtin_upstream
from proxy.policy.findings import PolicyErrors
from proxy.policy.model import Provider, Secret


def test_passes_everything_to_one_upstream() -> None:
    policies = builtin("http://127.0.0.1:9000/v1/", "sk-1")
    assert policies.routes == ()
    upstream = policies.upstreams[policies.default_upstream]
    assert (upstream.base_url, upstream.api_key) == ("http://127.0.0.1:9000/v1", Secret("sk-1"))
    assert len(policies.version) == 12


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_the_callers_credentials_pass(key: str | None) -> None:
    assert builtin_upstream("https://api.openai.com/v1", key).api_key is None


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.openai.com/v1", Provider.OPENAI),
        ("https://api.anthropic.com/v1", Provider.ANTHROPIC),
        ("https://mine.openai.azure.com/openai/v1", Provider.AZURE),
        ("https://openrouter.ai/api/v1", Provider.OPENROUTER),
        ("http://localhost:8000/v1", Provider.GENERIC),
        ("https://api.openai.com.evil.example/v1", Provider.GENERIC),
    ],
)
def test_guesses_the_provider_from_the_host(url: str, provider: Provider) -> None:
    assert builtin_upstream(url).provider is provider


@pytest.mark.parametrize(("url", "key"), [("localhost:8000", None), ("http://h/v1", "sk-1\n")])
def test_refuses_what_cannot_work_without_showing_the_key(url: str, key: str | None) -> None:
    with pytest.raises(PolicyErrors) as raised:
        builtin(url, key)
    assert str(raised.value).startswith("environment:1:1: ")
    assert "sk-1" not in str(raised.value)
