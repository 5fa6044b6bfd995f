"""A conversation as whoever shortens or compares it must see it: elements, groups and turns over raw spans.

    elements   messages or items, as they stand in the request
    groups     runs of elements that stay or go together: calls and their results, reasoning and what follows
    turns      a person's messages and all that answers them, up to the next person's message

Nothing is decoded but what decides this, and nothing is changed: dropping is `Document.keep_elements` with
`Conversation.key`. Which elements belong together follows the refusals of the three APIs: results without
their calls, calls without their results, reasoning without what follows it, thinking that is not replayed as
a whole. Results that the caller itself sent without their calls, and everything not understood, stay.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from proxy.core.document import Document
from proxy.dialects.chat_elements import read_chat_element
from proxy.dialects.dialect import Dialect
from proxy.dialects.elements import Element, Role
from proxy.dialects.marking import with_plain_letters
from proxy.dialects.messages_elements import read_messages_element
from proxy.dialects.responses_elements import read_responses_element

__all__ = [
    "Conversation",
    "Element",
    "Group",
    "Role",
    "Turn",
    "conversation_fields",
    "has_cache_mark",
    "read_conversation",
]

_READERS = {
    "chat": ("messages", read_chat_element),
    "responses": ("input", read_responses_element),
    "messages": ("messages", read_messages_element),
}
_FIXED = {"chat": (), "responses": ("instructions",), "messages": ("system",)}
_SERVER_SIDE = frozenset({"previous_response_id", "conversation"})
_CACHE_MARKS = (b'"cache_control"', b'"prompt_cache_breakpoint"')


class Group(msgspec.Struct, frozen=True):
    """Elements `start` to `end` (exclusive) that stay or go together.

    kind     whose group it is: SYSTEM, USER, ASSISTANT (with the results of its calls) or OPAQUE
    stays    it may never be dropped
    speaks   a person's words are in it
    """

    start: int
    end: int
    kind: Role
    stays: bool
    speaks: bool


class Turn(msgspec.Struct, frozen=True):
    """An exchange: indices of its groups in order, system groups left out.

    asks   how many of them, from the first, are the person's; 0 only for what stands before any person's
           message
    """

    groups: tuple[int, ...]
    asks: int


class Conversation(msgspec.Struct, frozen=True):
    """What a request says so far.

    dialect      whose conversation it is
    key          the field that holds the elements
    raws         the elements' bytes
    groups       cover all elements, in order
    fixed        values of the fields that hold system text apart from the elements (raw JSON)
    is_partial   earlier turns live at the server
    """

    dialect: str
    key: str
    raws: tuple[bytes, ...]
    elements: tuple[Element, ...]
    groups: tuple[Group, ...]
    turns: tuple[Turn, ...]
    fixed: tuple[bytes, ...]
    is_partial: bool

    def marked_until(self) -> int:
        """Return how many leading elements stand under the caller's own cache markers; 0 without any."""
        for index in range(len(self.raws) - 1, -1, -1):
            if has_cache_mark(self.raws[index]):
                return index + 1
        return 0


def has_cache_mark(raw: bytes) -> bool:
    """Tell whether the caller marked the end of a prefix that is to be cached somewhere in a value."""
    plain = with_plain_letters(raw)
    return any(mark in plain for mark in _CACHE_MARKS)


def conversation_fields(dialect: Dialect) -> tuple[str, ...]:
    """Return the fields that hold a conversation: first its elements, then system text."""
    known = _READERS.get(dialect.name)
    return () if known is None else (known[0], *_FIXED[dialect.name])


def read_conversation(document: Document, dialect: Dialect) -> Conversation | None:
    """Return the conversation of a request; `None` when its API has none or it is no list of elements."""
    known = _READERS.get(dialect.name)
    raws = None if known is None else document.elements(known[0])
    if known is None or raws is None:
        return None
    key, read = known
    elements = tuple(read(raw) for raw in raws)
    groups = _grouped(elements, is_thinking_whole=dialect.name == "messages")
    fixed = (document.get(name) for name in _FIXED[dialect.name])
    return Conversation(
        dialect.name,
        key,
        raws,
        elements,
        groups,
        _turns(groups),
        tuple(raw for raw in fixed if raw is not None and raw != b"null"),
        dialect.name == "responses" and document.has_any(_SERVER_SIDE) and _continues(document),
    )


def _continues(document: Document) -> bool:
    return any(document.get(name) not in (None, b"null") for name in _SERVER_SIDE)


class _Forming(msgspec.Struct):
    """A group while more may join it; `end` is the last element so far, exclusive."""

    start: int
    end: int
    kind: Role
    stays: bool
    speaks: bool
    calls: bool


class _Grouping:
    """Forms groups from elements in order. Joining only ever concerns the newest groups, so it is linear."""

    def __init__(self, elements: tuple[Element, ...], is_thinking_whole: bool) -> None:
        self.groups: list[_Forming] = []
        self._starts: list[int] = []
        self._elements = elements
        self._is_thinking_whole = is_thinking_whole
        self._calls: dict[str, int] = {}
        self._reasoning_at: int | None = None
        self._called_at: int | None = None

    def add(self, index: int, element: Element) -> None:
        previous = self._elements[index - 1] if index else None
        match element.role:
            case Role.USER:
                self._reasoning_at = None
                self._open(index, element)
            case Role.ASSISTANT:
                self._add_assistant(index, element, previous)
            case Role.TOOL:
                self._add_result(index, element)
            case Role.OPAQUE if previous is not None and previous.is_reasoning:
                self._join(index - 1, index, element)
            case _:
                self._open(index, element, stays=True)

    def _add_assistant(self, index: int, element: Element, previous: Element | None) -> None:
        if element.call_id is not None:
            self._calls[element.call_id] = index
        elif element.calls:
            self._called_at = index
        is_split = element.is_reasoning and not self._is_thinking_whole
        if previous is not None and previous.role is Role.ASSISTANT:
            self._join(index - 1, index, element)
        elif self._reasoning_at is not None and not is_split:
            self._join(self._reasoning_at, index, element)
        else:
            self._open(index, element)
        if element.is_reasoning:
            self._reasoning_at = index

    def _add_result(self, index: int, element: Element) -> None:
        if element.call_id is not None:
            called_at = self._calls.get(element.call_id)
            if called_at is not None:
                self._join(called_at, index, element)
                return
        elif self._called_at is not None:
            # Usually right behind its call; some servers take what was said in between.
            self._join(self._called_at, index, element)
            return
        self._open(index, element, stays=True)

    def _open(self, index: int, element: Element, *, stays: bool = False) -> None:
        kind = Role.OPAQUE if element.role is Role.TOOL else element.role
        self.groups.append(_Forming(index, index + 1, kind, stays, element.speaks, element.calls))
        self._starts.append(index)

    def _join(self, since: int, index: int, element: Element) -> None:
        """Make one group of all elements from the group of `since` to `index`."""
        first = bisect_right(self._starts, since) - 1
        joined = self.groups[first]
        for later in self.groups[first + 1 :]:
            joined.speaks |= later.speaks
            joined.calls |= later.calls
            # What a person or the system said in between cannot be told apart from what must stay together.
            joined.stays |= later.stays or later.kind is Role.USER
        del self.groups[first + 1 :], self._starts[first + 1 :]
        joined.end = index + 1
        joined.speaks |= element.speaks
        joined.calls |= element.calls
        joined.stays |= element.role is Role.OPAQUE


def _grouped(elements: tuple[Element, ...], is_thinking_whole: bool) -> tuple[Group, ...]:
    grouping = _Grouping(elements, is_thinking_whole)
    for index, element in enumerate(elements):
        grouping.add(index, element)
    return tuple(
        Group(group.start, group.end, group.kind, group.stays, group.speaks) for group in grouping.groups
    )


def _turns(groups: tuple[Group, ...]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    members: list[int] = []
    asks = 0
    for index, group in enumerate(groups):
        if group.kind is Role.SYSTEM:
            continue
        if group.kind is Role.USER:
            if len(members) > asks:
                turns.append(Turn(tuple(members), asks))
                members, asks = [], 0
            asks += 1
        members.append(index)
    if members:
        turns.append(Turn(tuple(members), asks))
    return tuple(turns)
