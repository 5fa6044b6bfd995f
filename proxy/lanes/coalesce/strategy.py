"""The contract of a strategy: one way of carrying requests together."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.lanes.lane import Call, Outgoing, Pooling


@runtime_checkable
class Waits(Protocol):
    """A call that may have to wait before it is sent."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for others now."""
        ...


def is_waiting(call: Call | None) -> bool:
    """Tell whether a call waits for others before it is sent."""
    return isinstance(call, Waits) and call.is_waiting


class Carrier(Protocol):
    """A strategy at work. Every request that it was given ends once, whatever happens to the others."""

    def carry(
        self, key: bytes, pooling: Pooling, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler
    ) -> Call:
        """Carry a request among those with the same `key`; `reply` may be told before this returns.

        Sets `exchange.pooled`, and adds a deliberate wait to `exchange.queue_seconds`.
        """
        ...

    def flush(self) -> None:
        """Send what waits now, and let nothing wait any more: the process is about to end."""
        ...
