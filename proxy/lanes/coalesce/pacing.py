"""Who goes next when only so many may be in flight: arrival order, aged by urgency. Pure arithmetic.

What can wait longer yields to what is needed sooner, but only for half of the time that it may wait at all:
then it counts as if it had come first. So nobody starves, whatever arrives behind it.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_YIELDED_SHARE = 0.5


class Terms(msgspec.Struct, frozen=True):
    """How one request may be made to wait.

    most_in_flight  it waits while so many of its key are in flight
    yields          it lets others that came a little later go first
    """

    most_in_flight: int
    max_wait_seconds: float
    may_wait: bool = True
    yields: bool = False


class _Queued(msgspec.Struct, Generic[T], frozen=True):
    rank: float
    due_at: float
    most_in_flight: int
    member: T


@dataclass(slots=True)
class Pacer(Generic[T]):
    """The requests of one key. Each leaves once: as `arrive` says, in a list, or through `leave`."""

    in_flight: int = 0
    is_draining: bool = False
    _queue: list[_Queued[T]] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self._queue and not self.in_flight

    @property
    def due_at(self) -> float | None:
        """When somebody must leave, however many are in flight; `None` if nothing waits."""
        return min((queued.due_at for queued in self._queue), default=None)

    def arrive(self, member: T, terms: Terms, now: float) -> bool:
        """Take a request; return whether it leaves at once. One that may not wait is in flight, too."""
        is_free = self.in_flight < terms.most_in_flight and not self._queue
        if is_free or not terms.may_wait or self.is_draining or terms.max_wait_seconds <= 0:
            self.in_flight += 1
            return True
        rank = now + (terms.max_wait_seconds * _YIELDED_SHARE if terms.yields else 0.0)
        queued = _Queued(rank, now + terms.max_wait_seconds, terms.most_in_flight, member)
        insort(self._queue, queued, key=lambda each: each.rank)
        return False

    def returned(self) -> list[T]:
        """Take note that one is over; return who leaves in its place."""
        self.in_flight -= 1
        left: list[T] = []
        while self._queue and self.in_flight < self._queue[0].most_in_flight:
            self.in_flight += 1
            left.append(self._queue.pop(0).member)
        return left

    def expired(self, now: float) -> list[T]:
        """Return those that have waited as long as they may."""
        due = [queued.member for queued in self._queue if queued.due_at <= now]
        self._queue = [queued for queued in self._queue if queued.due_at > now]
        self.in_flight += len(due)
        return due

    def drain(self) -> list[T]:
        """Return all that wait, in order; from now on nothing waits any more."""
        self.is_draining = True
        return self.expired(float("inf"))

    def leave(self, member: T) -> None:
        """Forget a request that waits: its caller is gone."""
        self._queue = [queued for queued in self._queue if queued.member is not member]
