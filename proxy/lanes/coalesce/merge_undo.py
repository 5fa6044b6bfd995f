"""A merged call taken back: each of its requests is sent singly, as its caller wrote it, and only once.

It owns that there is no loop (what is sent here is never pooled again), that not all leave at the same
moment, and what the call that failed teaches about the upstream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from proxy.lanes.coalesce.limits import lesson
from proxy.lanes.coalesce.member import Alone, Member
from proxy.lanes.lane import Lane

SENT_AT_ONCE = 16
"""Single requests of one call in flight at the same time."""

_CLIENT_ERROR = 400


class Undo:
    """The members of one call on their single ways: a `Holder` for those that still wait for theirs.

    `refusal` is what the upstream said to the whole call, `None` if it answered what nobody can cut up.
    `learn` takes the most inputs that the upstream takes in one call; `None` where there is no lesson.
    """

    def __init__(
        self,
        direct: Lane,
        members: tuple[Member, ...],
        items: int,
        refusal: bytes | None,
        learn: Callable[[int], None] | None,
    ) -> None:
        self._direct = direct
        self._waiting = deque(member for member in members if not member.is_over)
        self._left = len(self._waiting)
        self._items = items
        self._refusal = refusal
        self._learn = learn
        self._failed_alone = 0
        self._in_flight = 0
        self._is_sending = False

    def run(self) -> None:
        """Send the first of them; each that ends makes room for another."""
        for member in self._waiting:
            member.holder = self
            exchange = member.exchange
            exchange.retries += 1
            if exchange.pooled is not None:
                # It makes a call of its own after all.
                exchange.pooled = msgspec.structs.replace(exchange.pooled, size=1, is_leader=True)
        self._send()

    def _send(self) -> None:
        if self._is_sending:
            # What could not even be sent is over within the loop below.
            return
        self._is_sending = True
        while self._waiting and self._in_flight < SENT_AT_ONCE:
            member = self._waiting.popleft()
            self._in_flight += 1
            Alone(member, partial(self._over, member)).start(self._direct)
        self._is_sending = False

    def _over(self, member: Member, status: int) -> None:
        self._in_flight -= 1
        # What was answered only without a policy's parameter may have been refused for that.
        is_taken = 0 < status < _CLIENT_ERROR and not member.exchange.taken_back
        self._count(is_failed=not is_taken)
        self._send()

    def _count(self, is_failed: bool) -> None:
        self._failed_alone += is_failed
        self._left -= 1
        if self._left == 0 and self._learn is not None:
            most = 1 if self._refusal is None else lesson(self._refusal, self._items, self._failed_alone)
            if most is not None and (self._refusal is not None or not self._failed_alone):
                self._learn(most)

    # --- holder of those that wait ---------------------------------------------------------------------

    def left(self, member: Member) -> None:
        """Forget a caller that is gone; what its request would have said nobody knows."""
        if member in self._waiting:
            self._waiting.remove(member)
            self._count(is_failed=True)

    def paused(self, member: Member) -> None:
        """Nothing comes yet."""

    def resumed(self, member: Member) -> None:
        """Nothing comes yet."""
