"""Natural batching: who waits, who leaves together and why, for the requests of one key. Pure arithmetic.

    nothing in flight            leaves at once, alone
    something in flight          waits; all that wait leave together when a call returns, when the first of
                                 them has waited its `max_wait`, or when one more would not fit
    larger than a call may be    leaves at once, alone and unchanged
    draining                     leaves at once

It owns no timer and never looks at a clock: whoever does asks for `due_at` and says when it has come.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from proxy.core.decision import ClosedBy

T = TypeVar("T")


class Load(msgspec.Struct, frozen=True):
    """What a request weighs in one upstream call. `tokens` may be an upper bound."""

    items: int
    tokens: int
    bytes: int

    def plus(self, other: Load) -> Load:
        """Return the weight of both together."""
        return Load(self.items + other.items, self.tokens + other.tokens, self.bytes + other.bytes)


class Bounds(msgspec.Struct, frozen=True):
    """What one upstream call may carry, and how long a request may wait for others.

    `learnt_items` is how many inputs the upstream has said to take; what closes a call for that alone is
    closed by the limit, not by the policy.
    """

    max_items: int
    max_tokens: int
    max_bytes: int
    max_wait_seconds: float
    learnt_items: int = sys.maxsize

    @property
    def most_items(self) -> int:
        """How many inputs a call may have."""
        return min(self.max_items, self.learnt_items)

    def hold(self, load: Load) -> bool:
        """Tell whether a call may carry so much."""
        return load.items <= self.learnt_items and self._would_hold(load)

    def closes(self, load: Load) -> ClosedBy:
        """Return why a call that may not carry more than this, or not this, leaves."""
        is_learnt = load.items >= self.learnt_items < self.max_items and self._would_hold(load)
        return ClosedBy.LIMIT if is_learnt else ClosedBy.FULL

    def _would_hold(self, load: Load) -> bool:
        return (
            load.items <= self.max_items and load.tokens <= self.max_tokens and load.bytes <= self.max_bytes
        )

    def tightened(self, other: Bounds) -> Bounds:
        """Return what both allow."""
        if self is other:
            return self
        return Bounds(
            min(self.max_items, other.max_items),
            min(self.max_tokens, other.max_tokens),
            min(self.max_bytes, other.max_bytes),
            min(self.max_wait_seconds, other.max_wait_seconds),
            min(self.learnt_items, other.learnt_items),
        )


_NOTHING = Load(0, 0, 0)
_BOUNDLESS = Bounds(*(3 * (sys.maxsize,)), float("inf"))


class Batch(msgspec.Struct, Generic[T], frozen=True):
    """Requests that leave in one upstream call, in the order in which they came."""

    members: tuple[T, ...]
    closed_by: ClosedBy


class _Waiting(msgspec.Struct, Generic[T], frozen=True):
    member: T
    load: Load
    bounds: Bounds
    due_at: float


@dataclass(slots=True)
class Window(Generic[T]):
    """The requests of one key. Every request leaves once: in a batch, or through `leave`.

    Each request brings its own bounds, since routes with different policies may meet here: a batch keeps
    those of all its members. `due_at` says when what waits has to leave, in the seconds that `arrive` was
    given; `None` while nothing waits.
    """

    in_flight: int = 0
    is_draining: bool = False
    due_at: float | None = None
    _waiting: list[_Waiting[T]] = field(default_factory=list)
    _total: Load = _NOTHING
    _bounds: Bounds = _BOUNDLESS

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self._waiting and not self.in_flight

    def arrive(self, member: T, load: Load, bounds: Bounds, now: float) -> tuple[Batch[T], ...]:
        """Take a request; return the batches that leave because of it, in order."""
        if self.is_draining:
            return (self._alone(member, ClosedBy.SHUTDOWN),)
        if not bounds.hold(load):
            return (self._alone(member, bounds.closes(load)),)
        if not self.in_flight and not self._waiting:
            return (self._alone(member, ClosedBy.IDLE),)
        batches: tuple[Batch[T], ...] = ()
        both, together = self._bounds.tightened(bounds), self._total.plus(load)
        if not both.hold(together):
            batches = self._close(both.closes(together))
        self._add(_Waiting(member, load, bounds, now + bounds.max_wait_seconds))
        if self._total.items >= self._bounds.most_items:
            batches += self._close(self._bounds.closes(self._total))
        elif bounds.max_wait_seconds <= 0:
            batches += self._close(ClosedBy.MAX_WAIT)
        return batches

    def returned(self) -> tuple[Batch[T], ...]:
        """Take note that a batch's call is over; return what leaves in its place."""
        self.in_flight -= 1
        return self._close(ClosedBy.RETURNED)

    def expired(self) -> tuple[Batch[T], ...]:
        """Take note that `due_at` has come; return what leaves."""
        return self._close(ClosedBy.MAX_WAIT)

    def drain(self) -> tuple[Batch[T], ...]:
        """Return what waits; from now on nothing waits any more."""
        self.is_draining = True
        return self._close(ClosedBy.SHUTDOWN)

    def leave(self, member: T) -> None:
        """Forget a request that waits: its caller is gone."""
        left = [each for each in self._waiting if each.member is not member]
        self._forget()
        for each in left:
            self._add(each)

    def _alone(self, member: T, closed_by: ClosedBy) -> Batch[T]:
        self.in_flight += 1
        return Batch((member,), closed_by)

    def _add(self, newcomer: _Waiting[T]) -> None:
        self._waiting.append(newcomer)
        self._total = self._total.plus(newcomer.load)
        self._bounds = self._bounds.tightened(newcomer.bounds)
        self.due_at = newcomer.due_at if self.due_at is None else min(self.due_at, newcomer.due_at)

    def _close(self, closed_by: ClosedBy) -> tuple[Batch[T], ...]:
        if not self._waiting:
            return ()
        members = tuple(each.member for each in self._waiting)
        self._forget()
        self.in_flight += 1
        return (Batch(members, closed_by),)

    def _forget(self) -> None:
        self._waiting = []
        self._total, self._bounds, self.due_at = _NOTHING, _BOUNDLESS, None
