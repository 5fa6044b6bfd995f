"""A webhook as an operator describes it: where it is called, how it is signed, which events it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.core.upstream import Secret

SECRET_PREFIX = "whsec_"
"""What a signing secret begins with (Standard Webhooks); base64 of its key follows."""

EVENT_TYPES = (
    *("response.completed", "response.failed", "response.cancelled", "response.incomplete"),
    *("batch.completed", "batch.failed", "batch.expired", "batch.cancelled"),
    *("weir.job.succeeded", "weir.job.failed", "weir.job.expired", "weir.job.cancelled"),
)
"""Every type of event that is ever sent. `response.*` and `batch.*` are OpenAI's own."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that hears of what ended.

    url      called with POST exactly as it stands; it may hold a token of its own, so it is never shown
    secrets  each signs every call, the newest first; several of them while one is being replaced
    events   globs over `EVENT_TYPES`
    timeout  for a whole call, in seconds
    """

    name: str
    url: str = field(repr=False)
    secrets: tuple[Secret, ...]
    events: tuple[str, ...] = ("*",)
    timeout_seconds: float = 10.0
