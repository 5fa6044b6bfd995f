"""One event as it is told: OpenAI's own shape, so that its SDKs read it (`client.webhooks.unwrap`). Pure.

Owns ids and bytes. What ended is named by its id only: no body of a request or an answer is ever told.
Shapes: `openai` 3.57 types/webhooks.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to one thing.

    type     one of `core.webhook.EVENT_TYPES`
    subject  id of the response, batch or job, as its caller knows it
    created  when it ended, in seconds since the epoch
    """

    type: str
    subject: str
    created: float

    @property
    def id(self) -> str:
        """The same for the same ending, whoever tells it and however often: receivers know it again."""
        seed = f"{self.type}\n{self.subject}\n{self.created!r}".encode()
        return f"evt_{hashlib.sha256(seed).hexdigest()[:_ID_DIGITS]}"

    def body(self) -> bytes:
        """Return the body, the same bytes at every try."""
        told = {
            "id": self.id,
            "object": "event",
            "created_at": int(self.created),
            "type": self.type,
            "data": {"id": self.subject},
        }
        return json.dumps(told, separators=(",", ":")).encode()
