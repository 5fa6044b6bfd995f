"""Owns which webhook hears of the end of a request's answer. A caller gives a name, never an address."""

from __future__ import annotations

from collections.abc import Callable

from proxy.core.errors import UNKNOWN_WEBHOOK
from proxy.policy.findings import did_you_mean
from proxy.policy.model import PolicySet, Route
from proxy.policy.rewriting import PolicyRefusal

WEBHOOK_HEADER = "x-weir-webhook"
"""The request header by which a caller names a webhook, where its route allows that."""

_LONGEST_SHOWN = 64


def named_webhook(route: Route, header: Callable[[str], str | None]) -> str:
    """Return the webhook that a caller names, empty where it names none or may not."""
    return (header(WEBHOOK_HEADER) or "").strip() if WEBHOOK_HEADER in route.allow_caller else ""


def check_named_webhook(route: Route, header: Callable[[str], str | None], policies: PolicySet) -> None:
    """Raise PolicyRefusal (400) for a caller that names a webhook which is not configured."""
    name = named_webhook(route, header)
    if name and name not in policies.webhooks:
        hint = did_you_mean(name, policies.webhooks)
        shown = name[:_LONGEST_SHOWN].encode("ascii", "backslashreplace").decode()
        message = f"{WEBHOOK_HEADER} names the webhook {shown}, which is not configured here. {hint}".rstrip()
        raise PolicyRefusal(UNKNOWN_WEBHOOK, message, route=route.name)
