"""The event stream of a merged completions call, dealt out to its callers. Pure.

Chunks of different prompts come interleaved and are told apart by `choices[].index`. A chunk for one caller
keeps its bytes but for index and `id`; what has no choices (comments, errors, `[DONE]`) goes to everybody.
Usage comes once, for the whole call and at its end: each caller gets its part, in an event of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.core.document import Document, DocumentError
from proxy.core.sse import EventSplitter, event_data
from proxy.lanes.coalesce.merge_answers import Mould, index_of, texts_of, with_index, with_own_id
from proxy.lanes.coalesce.merge_usage import divide_usage

MAX_EVENT_BYTES = 1024 * 1024

Dealt = dict[int, list[bytes]]
"""Bytes for each member, by its number."""


class Undealable(Exception):
    """The stream says something that cannot be anybody's: an index that nobody has, an event without end."""


class Dealer:
    """Takes the bytes of the merged stream and says what each member gets."""

    def __init__(self, mould: Mould) -> None:
        self._mould = mould
        self._owners = [
            (number, begin) for number, (begin, end) in enumerate(mould.spans()) for _ in range(begin, end)
        ]
        self._count = len(mould.parts)
        self._splitter = EventSplitter()
        self._texts: list[list[str]] = [[] for _ in mould.parts]
        self._usage: Document | None = None

    def feed(self, data: bytes) -> Dealt:
        """Return what the next bytes of the stream mean for each member. Raises Undealable."""
        dealt: Dealt = {}
        for event in self._splitter.feed(data):
            self._deal(event, dealt)
        if self._splitter.carry_bytes > MAX_EVENT_BYTES:
            raise Undealable
        return dealt

    def finish(self) -> Dealt:
        """Return what is left at the end of the stream: usage still to be told, an event without blank line.

        Half an event is nobody's, and each caller's relay sees what is missing.
        """
        dealt: Dealt = {}
        rest = self._splitter.carry
        if rest:
            try:
                self._deal(rest.rstrip(b"\r\n") + b"\n\n", dealt)
            except Undealable:
                pass
        self._tell_usage(dealt)
        return dealt

    def _deal(self, event: bytes, dealt: Dealt) -> None:
        data = event_data(event)
        try:
            chunk = Document.parse(data) if data.startswith(b"{") else None
        except DocumentError:
            chunk = None
        choices = None if chunk is None else chunk.array("choices")
        if chunk is None or choices is None:
            if data.startswith(b"[DONE]"):
                self._tell_usage(dealt)
            elif data and chunk is None:
                # It may be half of somebody's text.
                raise Undealable
            self._to_all(event, dealt)
            return
        usage = chunk.get("usage")
        if usage is not None and usage.startswith(b"{"):
            self._usage = chunk
            chunk = chunk.set("usage", b"null")
        if choices:
            self._deal_choices(event, data, chunk, choices, dealt)
        elif self._usage is None:
            self._to_all(event, dealt)
        else:
            self._tell_usage(dealt)

    def _deal_choices(
        self, event: bytes, data: bytes, chunk: Document, choices: Sequence[bytes], dealt: Dealt
    ) -> None:
        by_member: dict[int, list[bytes]] = {}
        for choice in choices:
            index = index_of(choice)
            if index is None or index >= len(self._owners):
                raise Undealable
            number, begin = self._owners[index]
            own = choice if begin == 0 else with_index(choice, index - begin)
            by_member.setdefault(number, []).append(own)
            self._texts[number] += texts_of([choice])
        for number, own_choices in by_member.items():
            own_chunk = with_own_id(chunk, number)
            if len(own_choices) < len(choices) or number:
                own_chunk = own_chunk.set("choices", b"[" + b",".join(own_choices) + b"]")
            dealt.setdefault(number, []).append(_with_data(event, data, own_chunk))

    def _tell_usage(self, dealt: Dealt) -> None:
        """Give everybody its part of the usage that was told, once."""
        chunk, self._usage = self._usage, None
        if chunk is None:
            return
        outputs = self._mould.weigh(self._texts)
        usages = divide_usage(chunk.get("usage") or b"{}", self._mould.input_weights(), outputs)
        for number, usage in enumerate(usages):
            own = with_own_id(chunk, number).set("choices", b"[]").set("usage", usage)
            dealt.setdefault(number, []).append(b"data: " + own.to_bytes() + b"\n\n")

    def _to_all(self, event: bytes, dealt: Dealt) -> None:
        for number in range(self._count):
            dealt.setdefault(number, []).append(event)


def _with_data(event: bytes, data: bytes, chunk: Document) -> bytes:
    """Return the event with other data; everything around it stays where the data is on one line."""
    if not chunk.edited:
        return event
    if event.count(data) == 1:
        return event.replace(data, chunk.to_bytes())
    return b"data: " + chunk.to_bytes() + b"\n\n"
