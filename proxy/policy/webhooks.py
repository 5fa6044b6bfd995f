"""Owns the `webhooks` section of a policy file: its keys, and the spelling of its names, URLs and secrets."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any
from urllib.parse import urlsplit

from proxy.core.globs import fits
from proxy.core.upstream import Secret
from proxy.core.webhook import EVENT_TYPES, SECRET_PREFIX
from proxy.policy.findings import did_you_mean
from proxy.policy.kinds import DURATION, Text
from proxy.policy.records import Key, ListOf, Record
from proxy.policy.values import Misspelled, http_url

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_LEAST_KEY_BYTES = 24
"""Standard Webhooks asks for 24 to 64 bytes."""
_MOST_TIMEOUT_SECONDS = 20.0
"""Well below the time for which a notice is leased to whoever tells it."""
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1", re.ASCII)


def webhook_name(text: str) -> str:
    """Return the name of a webhook: callers write it into a header, and it stands in metrics."""
    if _NAME.fullmatch(text) is None:
        raise ValueError("the name of a webhook has 1 to 64 letters, digits, dots, dashes and underscores")
    return text


def webhook_url(text: str) -> str:
    """Return the URL that is called."""
    parts = http_url(text)
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of a webhook carries no credentials: calls are signed with its secret")
    if "#" in text:
        raise ValueError("the URL of a webhook has no fragment")
    return text


def odd_webhook_url(url: str) -> str:
    """Return what is odd about a URL that can be used, or nothing."""
    parts = urlsplit(url)
    if parts.scheme == "https" or _LOOPBACK.fullmatch(parts.hostname or "") is not None:
        return ""
    return "plain http to another machine: whoever is in between can read and swallow what is told"


def signing_secret(text: str) -> str:
    """Return a secret: `whsec_` and the base64 of its key."""
    advice = "write whsec_ and the output of: openssl rand -base64 32"
    if not text.startswith(SECRET_PREFIX):
        raise Misspelled(f"a signing secret begins with {SECRET_PREFIX}", advice)
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise Misspelled(f"what follows {SECRET_PREFIX} is not base64", advice) from None
    if len(key) < _LEAST_KEY_BYTES:
        raise Misspelled(f"the key of a signing secret has at least {_LEAST_KEY_BYTES} bytes", advice)
    return text


def event_pattern(text: str) -> str:
    """Return a glob that fits at least one type of event."""
    if not any(fits(text, kind) for kind in EVENT_TYPES):
        raise Misspelled("no event is of this type", did_you_mean(text, EVENT_TYPES))
    return text


def _built(given: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"url": given["url"], "secrets": tuple(map(Secret, given["secret"]))}
    if "events" in given:
        fields["events"] = given["events"]
    if "timeout" in given:
        if not 0 < given["timeout"] <= _MOST_TIMEOUT_SECONDS:
            raise ValueError(f"timeout must be above 0 and at most {_MOST_TIMEOUT_SECONDS:.0f}s")
        fields["timeout_seconds"] = given["timeout"]
    return fields


WEBHOOK: Record[dict[str, Any]] = Record(
    {
        "url": Key(
            Text(webhook_url, secret=True, odd=odd_webhook_url), "What is called with POST.", required=True
        ),
        "secret": Key(
            ListOf(Text(signing_secret, secret=True), or_one=True, may_be_empty=False),
            "Signs every call: `whsec_…`, or a list of them while one is being replaced.",
            required=True,
        ),
        "events": Key(
            ListOf(Text(event_pattern), or_one=True, may_be_empty=False), "Types of events, `*` globs."
        ),
        "timeout": Key(DURATION, "Longest that one call may take."),
    },
    _built,
    "An address that hears of what ended.",
)
"""Fields of `Webhook` less its name."""
