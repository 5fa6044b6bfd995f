"""Who is let in, and with what: the caller's key, the model, the length of the prompt.

It owns refusals that do not depend on an API shape. Keys are compared and hashed, never kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.sim.counts import unknown_model
from proxy.sim.errors import ApiError, Family, failure, invalid
from proxy.sim.scenario import Scenario
from proxy.sim.text import digest_of
from proxy.sim.work import Work


def caller_of(headers: Mapping[str, str], scenario: Scenario) -> str:
    """Return a digest of the caller's key. Raises ApiError (401) for one that is not accepted."""
    given = headers.get("authorization", "").removeprefix("Bearer ").strip()
    key = given or headers.get("x-api-key", "") or headers.get("api-key", "")
    if scenario.api_keys and key not in scenario.api_keys:
        raise failure(401)
    return digest_of((key,))


def check_model(work: Work, family: Family, scenario: Scenario) -> None:
    """Raise ApiError for a model that the provider does not have (404) or a prompt too long for it (400)."""
    if scenario.only_listed_models and work.model and work.model not in scenario.models:
        raise unknown_model(work.model)
    limit = scenario.context_tokens
    wanted = work.input_tokens + work.requested_tokens
    if not limit or wanted <= limit:
        return
    if family is Family.ANTHROPIC:
        raise ApiError(400, f"prompt is too long: {wanted} tokens > {limit} maximum")
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested {wanted} tokens "
        f"({work.input_tokens} in the messages, {work.requested_tokens} in the completion). "
        "Please reduce the length of the messages or completion."
    )
    raise invalid("messages", message, "context_length_exceeded")
