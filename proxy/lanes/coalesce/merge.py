"""Requests with inputs in a list travel in one upstream call: the window of each key, at work.

Owns the timers and which window a request enters. A request that is alone in its window is sent exactly as
it came; the arithmetic of windows, bodies and answers is elsewhere and pure.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

from proxy.core.clock import Clock
from proxy.core.decision import ClosedBy, Pooled, Strategy
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.lanes.coalesce.alarm import Alarm
from proxy.lanes.coalesce.limits import BatchLimits
from proxy.lanes.coalesce.member import Alone, Member
from proxy.lanes.coalesce.merge_answers import Weigh
from proxy.lanes.coalesce.merge_call import MergedCall, Merging
from proxy.lanes.coalesce.merge_parts import Part, part_of
from proxy.lanes.coalesce.taker import taker_of
from proxy.lanes.coalesce.window import Batch, Bounds, Load, Window
from proxy.lanes.lane import Call, Lane, Outgoing, Pooling
from proxy.steps.step import TokenCounting

INLINE_COUNT_BYTES = 16 * 1024
"""Texts up to this size are counted where an answer is cut up; beyond it their lengths stand for counts."""

THREAD_COUNT_BYTES = 1024 * 1024
"""The same for answers that are cut up in a thread."""


class MergeCarrier:
    """Carries requests whose inputs can be united."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        direct: Lane,
        otherwise: Lane,
        limits: BatchLimits,
        tokens: TokenCounting | None = None,
    ) -> None:
        """`direct` carries merged and single calls, `otherwise` requests whose inputs cannot be united."""
        self.loop = loop
        self.clock = clock
        self.direct = direct
        self.limits = limits
        self._otherwise = otherwise
        self._tokens = tokens
        self._pools: dict[bytes, _Pool] = {}
        self._is_draining = False

    @property
    def pools(self) -> int:
        """Keys that have something waiting or in flight."""
        return len(self._pools)

    def carry(
        self, key: bytes, pooling: Pooling, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler
    ) -> Call:
        """Send a request at once if nothing of its key is in flight, else with others."""
        dialect, policy = pooling.dialect.name, pooling.policy
        learnt = self._learnt_items(pooling, outgoing)
        # Looking for inputs in a body that will go alone anyway would only cost time.
        is_small = len(outgoing.body or b"") <= policy.max_bytes
        may_merge = is_small and min(learnt, policy.max_items) > 1
        part = part_of(dialect, pooling.document) if may_merge else None
        if part is None:
            return self._otherwise.carry(outgoing, exchange, reply)
        key += part.kind
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(self, key, pooling, self._is_draining)
        member = Member(outgoing, exchange, reply, self.clock.monotonic())
        load = Load(len(part.items), part.most_tokens, len(outgoing.body or b""))
        waits = policy.max_wait_seconds
        bounds = Bounds(policy.max_items, policy.max_tokens, policy.max_bytes, waits, learnt)
        pool.add(member, part, load, bounds)
        return member

    def _learnt_items(self, pooling: Pooling, outgoing: Outgoing) -> int:
        if not len(self.limits):
            # Nearly always, and then nobody's credentials need a digest.
            return sys.maxsize
        return self.limits.most(taker_of(outgoing, pooling.dialect.name, pooling.model))

    def flush(self) -> None:
        """Send what waits now; nothing waits from now on."""
        self._is_draining = True
        for pool in tuple(self._pools.values()):
            pool.drain()

    def forget(self, key: bytes) -> None:
        """Drop a pool that has nothing left."""
        self._pools.pop(key, None)

    def weigher(self, model: str, is_in_thread: bool) -> Weigh:
        """Return what weighs texts: their tokens, or their bytes where counting would take too long."""
        limit_bytes = THREAD_COUNT_BYTES if is_in_thread else INLINE_COUNT_BYTES
        return _weigher(self._tokens, model, limit_bytes)


def _weigher(tokens: TokenCounting | None, model: str, limit_bytes: int) -> Weigh:
    def by_length(texts: Sequence[str]) -> int:
        return sum(len(text.encode("utf-8", "replace")) for text in texts)

    def weigh(members: Sequence[Sequence[str]]) -> Sequence[int]:
        lengths = [by_length(texts) for texts in members]
        if tokens is None or sum(lengths) > limit_bytes:
            return lengths
        count: Callable[[str], int] = lambda text: tokens.count_text(text, model).tokens  # noqa: E731
        return [sum(map(count, texts)) for texts in members]

    return weigh


class _Pool:
    """The window of one key and its timer: a `Holder` for those that wait."""

    def __init__(self, carrier: MergeCarrier, key: bytes, pooling: Pooling, is_draining: bool) -> None:
        self._carrier = carrier
        self._key = key
        self._dialect = pooling.dialect.name
        self._model = pooling.model
        self._parts: dict[Member, Part] = {}
        self._window: Window[Member] = Window(is_draining=is_draining)
        self._alarm = Alarm(carrier.loop, carrier.clock, self._expired)

    def add(self, member: Member, part: Part, load: Load, bounds: Bounds) -> None:
        """Let a request in."""
        self._parts[member] = part
        member.holder = self
        self._send(self._window.arrive(member, load, bounds, member.arrived_at))

    def drain(self) -> None:
        """Send what waits."""
        self._send(self._window.drain())

    def _expired(self) -> None:
        self._send(self._window.expired())

    def _returned(self, status: int = 0) -> None:
        self._send(self._window.returned())

    def _send(self, batches: Sequence[Batch[Member]]) -> None:
        self._alarm.set(self._window.due_at)
        for batch in batches:
            self._send_one(batch)
        if self._window.is_idle:
            self._carrier.forget(self._key)

    def _send_one(self, batch: Batch[Member]) -> None:
        carrier, now = self._carrier, self._carrier.clock.monotonic()
        size = len(batch.members)
        for position, member in enumerate(batch.members):
            if batch.closed_by is not ClosedBy.IDLE:
                member.exchange.queue_seconds += now - member.arrived_at
            is_leader = position == 0
            member.exchange.pooled = Pooled(Strategy.MERGE, size, batch.closed_by, is_leader)
        parts = tuple(self._parts.pop(member) for member in batch.members)
        if size == 1:
            Alone(batch.members[0], self._returned).start(carrier.direct)
        else:
            merging = Merging(batch.members, parts, self._dialect, self._model)
            MergedCall(carrier, merging, self._returned).start()

    # --- holder of those that wait ---------------------------------------------------------------------

    def left(self, member: Member) -> None:
        """Forget a caller that is gone."""
        self._parts.pop(member, None)
        self._window.leave(member)
        exchange = member.exchange
        exchange.queue_seconds += self._carrier.clock.monotonic() - member.arrived_at
        self._send(())

    def paused(self, member: Member) -> None:
        """Nothing comes yet."""

    def resumed(self, member: Member) -> None:
        """Nothing comes yet."""
