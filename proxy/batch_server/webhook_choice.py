"""Which configured webhook hears of the end of a batch: the caller's, where its route allows one. Pure."""

from __future__ import annotations

from proxy.core.upstream import Upstream
from proxy.http.head import RequestHead
from proxy.policy.model import PolicySet
from proxy.policy.webhook_choice import check_named_webhook, named_webhook


def chosen_webhook(head: RequestHead, route: str, upstream: Upstream, policies: PolicySet) -> str:
    """Return the name of a webhook, empty for none. Raises PolicyRefusal (400) for an unknown one.

    `route` names the request's route, empty for none. Unless that allows the header, it says nothing.
    """

    def header(name: str) -> str | None:
        value = head.fields.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    usual = upstream.batch_api.webhook if upstream.batch_api is not None else ""
    taken = next((known for known in policies.routes if known.name == route), None)
    if taken is None:
        return usual
    check_named_webhook(taken, header, policies)
    return named_webhook(taken, header) or usual
