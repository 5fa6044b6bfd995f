"""What is kept for callers of a shared stream that read more slowly than it comes.

One slow caller must not slow the others, nor fill the memory: beyond a bound it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import methodcaller

from proxy.core.errors import SLOW_READER, ProxyError
from proxy.lanes.coalesce.member import Member

MAX_KEPT_BYTES = 1024 * 1024


class Lagging:
    """Passes bytes to members, or keeps them for those that have paused."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._kept: dict[Member, list[bytes]] = {member: [] for member in members if member.is_paused}
        self._ending: set[Member] = set()

    def give(self, member: Member, data: bytes) -> None:
        """Pass bytes on, or keep them; drop a member for which too much is kept."""
        kept = self._kept.get(member)
        if kept is None:
            member.tell(lambda reply: reply.body_received(data))
            return
        kept.append(data)
        if sum(map(len, kept)) > MAX_KEPT_BYTES:
            self.forget(member)
            message = "The caller did not take its part of a shared answer in time."
            member.fail(ProxyError(SLOW_READER, message))

    def end(self, member: Member) -> None:
        """End a member's answer, after what is kept for it."""
        if member in self._kept:
            self._ending.add(member)
        else:
            member.end()

    def pause(self, member: Member) -> None:
        """Keep from now on."""
        self._kept.setdefault(member, [])

    def resume(self, member: Member) -> None:
        """Pass on what was kept, unless the member pauses again over it."""
        kept = self._kept.pop(member, None)
        for position, data in enumerate(kept or ()):
            if member.is_paused:
                self._kept[member] = [*(kept or ())[position:]]
                return
            member.tell(methodcaller("body_received", data))
        if member in self._ending and member not in self._kept:
            self._ending.discard(member)
            member.end()

    def forget(self, member: Member) -> None:
        """Keep nothing for a member that is over."""
        self._kept.pop(member, None)
        self._ending.discard(member)
