"""Owns what is there without any policy file: pass-through to one upstream."""

from __future__ import annotations

from urllib.parse import urlsplit

from proxy.policy import values
from proxy.policy.findings import Finding, PolicyErrors
from proxy.policy.fingerprint import version_of
from proxy.policy.model import PolicySet, Provider, Secret, Upstream

DEFAULT_NAME = "default"

PLACEHOLDER = Upstream(name=DEFAULT_NAME, base_url="http://upstream.invalid/v1")
"""Stands for the upstream that `weir serve` brings, where policies are only checked."""

_PROVIDER_BY_HOST = {
    "api.openai.com": Provider.OPENAI,
    "api.anthropic.com": Provider.ANTHROPIC,
    "generativelanguage.googleapis.com": Provider.GEMINI,
    "api.mistral.ai": Provider.MISTRAL,
    "api.groq.com": Provider.GROQ,
    "api.together.xyz": Provider.TOGETHER,
    "openrouter.ai": Provider.OPENROUTER,
}


def builtin_upstream(upstream_url: str, api_key: str | None = None) -> Upstream:
    """Return the upstream `default` for a URL given outside of policies, its provider guessed from the host.

    Without a key (or with an empty one) the callers' own credentials pass. Raises `PolicyErrors`.
    """
    try:
        base_url = values.base_url(upstream_url)
    except ValueError as error:
        raise PolicyErrors([Finding("environment", 1, 1, "upstream", str(error))]) from None
    try:
        key = Secret(values.credential(api_key)) if api_key else None
    except ValueError as error:
        raise PolicyErrors([Finding("environment", 1, 1, "api_key", str(error))]) from None
    host = urlsplit(base_url).hostname or ""
    provider = (
        Provider.AZURE
        if host.endswith(".openai.azure.com")
        else _PROVIDER_BY_HOST.get(host, Provider.GENERIC)
    )
    return Upstream(name=DEFAULT_NAME, base_url=base_url, api_key=key, provider=provider)


def builtin(upstream_url: str, api_key: str | None = None) -> PolicySet:
    """Return the set that passes everything to one upstream untouched. Raises `PolicyErrors`."""
    upstreams = {DEFAULT_NAME: builtin_upstream(upstream_url, api_key)}
    return PolicySet(
        version=version_of(upstreams, DEFAULT_NAME, ()),
        upstreams=upstreams,
        default_upstream=DEFAULT_NAME,
        routes=(),
    )
