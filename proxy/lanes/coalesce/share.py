"""Identical requests in flight share one upstream call.

Owns which calls may be joined. The first request of its kind leaves at once and as its caller wrote it,
headers included; who comes while it is in flight gets its answer from the beginning, and nobody ever waits
for others. Requests whose forms cannot be served from one call get a call per form.
"""

from __future__ import annotations

import asyncio

from proxy.core.clock import Clock
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.http.head import ResponseHead
from proxy.lanes.coalesce.share_call import SharedCall
from proxy.lanes.coalesce.share_member import Member
from proxy.lanes.coalesce.share_rules import Serving, ShareLimits, form_of
from proxy.lanes.lane import Call, Lane, Outgoing, Pooling

_LIMITS = ShareLimits()


class ShareCarrier:
    """Carries requests that are the same but for their form and their metadata."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        direct: Lane,
        limits: ShareLimits = _LIMITS,
    ) -> None:
        self.limits = limits
        self._loop = loop
        self._clock = clock
        self._direct = direct
        self._joinable: dict[bytes, list[SharedCall]] = {}
        self._kept_bytes = 0
        self._lagging_bytes = 0

    def carry(
        self, key: bytes, pooling: Pooling, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler
    ) -> Call:
        """Join a call in flight, or make one."""
        form = form_of(pooling, outgoing)
        for shared in self._joinable.get(key, ()):
            how = shared.serving(outgoing, form)
            if how is not None:
                return shared.add(outgoing, exchange, reply, form, how)
        shared = SharedCall(self, key, pooling, form, exchange)
        self._joinable.setdefault(key, []).append(shared)
        member = shared.add(outgoing, exchange, reply, form, Serving.RAW)
        shared.start(self._direct, outgoing)
        return member

    def flush(self) -> None:
        """Nothing waits here."""

    @property
    def calls(self) -> int:
        """How many calls may be joined now."""
        return sum(map(len, self._joinable.values()))

    @property
    def kept_bytes(self) -> int:
        """What is kept for late joiners now."""
        return self._kept_bytes

    @property
    def lagging_bytes(self) -> int:
        """What is set aside for callers that stay behind now."""
        return self._lagging_bytes

    # --- what shared calls ask for --------------------------------------------------------------------

    def now(self) -> float:
        """Return monotonic seconds."""
        return self._clock.monotonic()

    def may_keep(self, added_bytes: int) -> bool:
        """Grant memory within what all calls may keep."""
        if self._kept_bytes + added_bytes > self.limits.total:
            return False
        self._kept_bytes += added_bytes
        return True

    def give_back(self, kept_bytes: int) -> None:
        """Take memory back."""
        self._kept_bytes -= kept_bytes

    def may_lag(self, added_bytes: int) -> bool:
        """Grant memory within what all callers together may stay behind, or take some back."""
        if added_bytes > 0 and self._lagging_bytes + added_bytes > self.limits.lagging:
            return False
        self._lagging_bytes += added_bytes
        return True

    def closed(self, call: SharedCall) -> None:
        """Let nobody join a call any more."""
        calls = self._joinable.get(call.key)
        if calls is not None and call in calls:
            calls.remove(call)
            if not calls:
                del self._joinable[call.key]

    def alone(self, member: Member) -> None:
        """Send a caller's own request."""
        member.go_alone(self._direct, self._clock.monotonic())

    def later(self, member: Member, head: ResponseHead, kept: list[bytes]) -> None:
        """Tell a late joiner what it missed once the lane has returned its call."""
        member.replay(head, kept, self._loop)
