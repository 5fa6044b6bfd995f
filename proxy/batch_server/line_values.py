"""What goes into sending a line, and what comes of it. Frozen."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.batch_server.model import HeaderFields
from proxy.core.errors import ProxyError
from proxy.core.usage import Usage


@dataclass(frozen=True, slots=True)
class Sender:
    """What all lines of a batch have in common: where they go and in whose name. `headers` are secret."""

    batch_id: str
    endpoint: str
    headers: HeaderFields = field(repr=False)
    owner: str


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What came of sending a line.

    status          of the answer, or the one that a caller would have been told
    request_id      the upstream's, else the exchange's
    seconds         that the upstream took
    failure         why there is no answer of the upstream's; `body` then says so in OpenAI's shape
    """

    upstream: str
    status: int
    request_id: str
    body: bytes = field(repr=False)
    seconds: float
    failure: ProxyError | None = None
    retry_after_seconds: float | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The line goes to another upstream than the one whose turn it had; nothing was sent."""

    upstream: str
