"""Which groups of a conversation go when it is too long: whole exchanges first, oldest first.

Owns the order of dropping and what may never be dropped. Counts nothing, knows no prices, edits nothing.

When whole exchanges are not enough (an agent's loop is one long exchange), the oldest calls with their
results go from inside those that stay. The person's messages, the last answer of an exchange, the newest
groups and whatever `Group.stays` says are kept, so that roles alternate as they did before.

A plan in blocks replays how the conversation grew: whenever it exceeded the budget, it was cut to the target
at once and then left alone until it exceeded the budget again. The plan depends on nothing but the
conversation, so the next request of it, in any process, begins with the same elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from proxy.dialects.conversation import Conversation, Role, Turn


class Limits(msgspec.Struct, frozen=True):
    """What a plan has to keep to, in tokens and groups.

    budget       more than this is too long
    target       what is left after a cut, at most; the budget itself unless cuts are made in blocks
    floor        a cut that is already within the budget does not go below this
    in_blocks    replay the growth of the conversation
    """

    budget: int
    target: int
    floor: int
    in_blocks: bool
    keep_first: int
    keep_last: int


class Plan(msgspec.Struct, frozen=True):
    """Indices of the groups to drop and the tokens that are left."""

    dropped: frozenset[int]
    tokens: int


def plan_drops(
    conversation: Conversation, group_tokens: Sequence[int], fixed_tokens: int, limits: Limits
) -> Plan:
    """Return what to drop; linear. The tokens that are left exceed the budget if the rest must stay."""
    planning = _Planning(conversation, group_tokens, fixed_tokens, limits)
    for index in range(len(conversation.groups)):
        planning.admit(index)
    return planning.finished()


class _Planning:
    """The conversation as it has grown so far. Positions count the groups that are not the system's."""

    def __init__(
        self, conversation: Conversation, group_tokens: Sequence[int], fixed_tokens: int, limits: Limits
    ) -> None:
        self._conversation = conversation
        self._group_tokens = group_tokens
        self._limits = limits
        self._tokens = fixed_tokens
        self._turns = conversation.turns
        self._order = [group for turn in self._turns for group in turn.groups]
        self._turn_of = [number for number, turn in enumerate(self._turns) for _ in turn.groups]
        self._ends = _turn_ends(self._turns)
        self._kept_until = self._first_asked() + limits.keep_first
        self._admitted = 0
        self._last_said: int | None = None
        self._dropped: set[int] = set()
        self._next_turn = 0
        self._next_inner = 0
        self._waiting: list[int] = []

    def _first_asked(self) -> int:
        """Return the position of the first group that is a person's."""
        groups = self._conversation.groups
        asked = (place for place, group in enumerate(self._order) if groups[group].kind is Role.USER)
        return next(asked, 0)

    def admit(self, index: int) -> None:
        """Let the conversation grow by one group."""
        group = self._conversation.groups[index]
        self._tokens += self._group_tokens[index]
        if group.kind is Role.SYSTEM:
            return
        if group.speaks:
            self._last_said = self._admitted
        self._admitted += 1
        # Requests end with what a person or a tool says; an answer alone is never sent.
        ends_with = self._conversation.elements[group.end - 1].role
        if self._limits.in_blocks and ends_with is not Role.ASSISTANT:
            self._cut()

    def finished(self) -> Plan:
        """Return the plan for the conversation as it is now."""
        self._cut()
        return Plan(frozenset(self._order[position] for position in self._dropped), self._tokens)

    def _cut(self) -> None:
        if self._tokens > self._limits.budget and self._admitted:
            self._drop_turns()
            self._drop_inside()

    def _drop_turns(self) -> None:
        current = self._turn_of[self._admitted - 1]
        while self._next_turn < current and self._tokens > self._limits.target:
            start, end = self._bounds(self._next_turn)
            if end > self._admitted - self._limits.keep_last or self._is_low_enough(range(start, end)):
                return
            if not self._is_kept(self._next_turn, start, end):
                for position in range(start, end):
                    self._drop(position)
            self._next_turn += 1

    def _is_low_enough(self, places: Iterable[int]) -> bool:
        """Tell whether dropping these positions as well would leave less than is worth caching."""
        if self._tokens > self._limits.budget:
            return False
        gone = (self._order[place] for place in places if place not in self._dropped)
        return self._tokens - sum(self._group_tokens[group] for group in gone) < self._limits.floor

    def _is_kept(self, number: int, start: int, end: int) -> bool:
        """Tell whether a turn may never go as a whole."""
        groups = self._conversation.groups
        is_among_first = self._turns[number].asks > 0 and start < self._kept_until
        return is_among_first or any(groups[self._order[place]].stays for place in range(start, end))

    def _drop_inside(self) -> None:
        """Drop groups inside the turns that stay, if whole turns did not do; what may be free later waits."""
        if self._tokens <= self._limits.budget:
            return
        waiting, self._waiting = self._waiting, []
        for position in waiting:
            self._drop_if_free(position)
        newest = self._admitted - self._limits.keep_last
        while self._next_inner < newest and self._tokens > self._limits.target:
            if self._is_low_enough((self._next_inner,)):
                return
            self._drop_if_free(self._next_inner)
            self._next_inner += 1

    def _drop_if_free(self, position: int) -> None:
        group = self._conversation.groups[self._order[position]]
        if group.kind is not Role.ASSISTANT or group.stays or position in self._dropped:
            return
        number = self._turn_of[position]
        is_among_first = self._turns[number].asks > 0 and position < self._kept_until
        if is_among_first or position == self._ends[number] - 1:
            return
        if position == self._last_said or self._tokens <= self._limits.target:
            self._waiting.append(position)
            return
        self._drop(position)

    def _drop(self, position: int) -> None:
        if position not in self._dropped:
            self._dropped.add(position)
            self._tokens -= self._group_tokens[self._order[position]]

    def _bounds(self, number: int) -> tuple[int, int]:
        return (self._ends[number - 1] if number else 0), self._ends[number]


def _turn_ends(turns: Sequence[Turn]) -> list[int]:
    return list(accumulate(len(turn.groups) for turn in turns))
