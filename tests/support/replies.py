"""A handler of one response that notes what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.core.errors import ProxyError
from proxy.http.head import ResponseHead


@dataclass
class Reply:
    """A `ResponseHandler`. `faults` are calls that came after the end; `on_head` runs with the head."""

    heads: list[ResponseHead] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    events: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    error: ProxyError | None = None
    on_head: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        return "ended" in self.events or self.error is not None

    def _note(self, event: str) -> None:
        if self.is_over:
            self.faults.append(f"{event} after the end")
        self.events.append(event)

    def head_received(self, head: ResponseHead) -> None:
        self._note("head")
        self.heads.append(head)
        if self.on_head is not None:
            self.on_head()

    def body_received(self, data: bytes) -> None:
        self._note("body")
        self.body += data

    def flush(self) -> None:
        self._note("flush")

    def response_ended(self) -> None:
        self._note("ended")

    def failed(self, error: ProxyError) -> None:
        self._note(f"failed {error.kind.code}")
        self.error = error

    def upstream_writable(self, is_writable: bool) -> None:
        self._note(f"writable {is_writable}")
