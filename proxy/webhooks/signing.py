"""Signs what is told, as Standard Webhooks 1.0 says (github.com/standard-webhooks/standard-webhooks). Pure.

`webhook-signature` has one `v1,<base64 of an HMAC-SHA256>` per secret, separated by blanks, over
`<id>.<timestamp>.<body>`: while a secret is being replaced, receivers with either of them agree.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

from proxy.core.upstream import Secret
from proxy.core.webhook import SECRET_PREFIX


def signature(secret: Secret, event_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature. `timestamp`: seconds since the epoch, of this very try."""
    key = base64.b64decode(secret.reveal().removeprefix(SECRET_PREFIX))
    signed = b"%b.%d.%b" % (event_id.encode(), timestamp, body)
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


def signed_headers(
    secrets: Sequence[Secret], event_id: str, timestamp: int, body: bytes
) -> list[tuple[str, str]]:
    """Return the header fields that prove who tells it, and when."""
    return [
        ("webhook-id", event_id),
        ("webhook-timestamp", str(timestamp)),
        ("webhook-signature", " ".join(signature(each, event_id, timestamp, body) for each in secrets)),
    ]
