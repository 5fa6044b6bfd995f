"""What a caller's connection asks of those who serve it: the ports between `http.server` and the edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from proxy.core.errors import ProxyError
from proxy.http.deadlines import Deadlines
from proxy.http.head import RequestHead
from proxy.http.limits import ServerLimits

if TYPE_CHECKING:
    from proxy.http.server import ServerConnection


class RequestHandler(Protocol):
    """What the edge does with one request. Calls come in this order; `gone` may come at any time."""

    def head_received(self, head: RequestHead) -> None:
        """Take the head; the body follows."""
        ...

    def body_received(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        ...

    def request_ended(self) -> None:
        """Take note that the request is complete."""
        ...

    def writable(self, is_writable: bool) -> None:
        """Take note that the caller reads too slowly, or reads again."""
        ...

    def gone(self, reason: str) -> None:
        """Take note that the caller is gone; nothing more can be sent."""
        ...

    def refused(self, error: ProxyError) -> None:
        """Answer a request whose rest cannot be read; nothing was answered yet."""
        ...

    def crashed(self, problem: Exception) -> None:
        """Answer, if that is still possible, after one of these calls raised."""
        ...


class Service(Protocol):
    """What connections share."""

    limits: ServerLimits
    deadlines: Deadlines
    connections: set[ServerConnection]
    is_draining: bool

    def handler(self, connection: ServerConnection) -> RequestHandler:
        """Make the handler of the next request on `connection`."""
        ...

    def refuse(self, error: ProxyError) -> bytes:
        """Record a request that could not be read and return the whole response to send."""
        ...
