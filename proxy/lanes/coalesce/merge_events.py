"""The event stream of a merged completions call, dealt out to its callers. Pure.

Chunks of different prompts come interleaved and are told apart by `choices[].index`. A chunk for one caller
keeps its bytes but for index and `id`; what is about no prompt (comments, `[DONE]`) goes to everybody. Usage
comes once, for the whole call and at its end: each caller gets its part, in an event of its own. An error
event may quote anybody's prompt and is nobody's, unless it says that it is about all, as a rate limit does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.core.document import Document, DocumentError
from proxy.core.json_values import decode
from proxy.core.sse import EventSplitter, event_data
from proxy.lanes.coalesce.merge_answers import Mould, index_of, with_index, with_own_id
from proxy.lanes.coalesce.merge_prompts import prompt_lists
from proxy.lanes.coalesce.merge_usage import divide_usage

MAX_EVENT_BYTES = 1024 * 1024

_ABOUT_ALL = re.compile(r"rate_?limit|quota|overloaded|unavailable|\b(?:401|402|429|503)\b", re.IGNORECASE)
_CLASSES = ("type", "code", "status")
_NOTHING = (None, b"null")
_BOM = b"\xef\xbb\xbf"

Dealt = dict[int, list[bytes]]
"""Bytes for each member, by its number."""


class Undealable(Exception):
    """The stream says something that cannot be anybody's: an index that nobody has, an event without end."""


class Dealer:
    """Takes the bytes of the merged stream and says what each member gets.

    `failure` is the data of an error event that may be about anybody's prompt: nothing behind it is dealt.
    `is_refused` says that an error about all was dealt to all, `is_done` that `[DONE]` has come; it is dealt
    to those whose every choice has come.
    """

    def __init__(self, mould: Mould) -> None:
        self.failure: bytes | None = None
        self.is_refused = False
        self.is_done = False
        self._mould = mould
        spans = mould.spans()
        self._owners = [
            (number, begin) for number, (begin, end) in enumerate(spans) for _ in range(begin, end)
        ]
        self._unseen = [set(range(begin, end)) for begin, end in spans]
        self._unfinished = [set(range(begin, end)) for begin, end in spans]
        self._has_begun = [False] * len(spans)
        self._prompts = [len(part.items) for part in mould.parts]
        self._splitter = EventSplitter()
        self._texts: list[list[str]] = [[] for _ in mould.parts]
        self._usage: tuple[bytes, Document] | None = None

    def has_begun(self, number: int) -> bool:
        """Tell whether something of a member's choices has come."""
        return self._has_begun[number]

    def is_answered(self, number: int) -> bool:
        """Tell whether something of each of a member's choices has come."""
        return not self._unseen[number]

    def is_finished(self, number: int) -> bool:
        """Tell whether the finish reason of each of a member's choices has come."""
        return not self._unfinished[number]

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
        if self.failure is not None:
            return
        data = event_data(event)
        try:
            chunk = Document.parse(data) if data.startswith(b"{") else None
        except DocumentError:
            chunk = None
        if chunk is not None:
            self._deal_chunk(event, chunk, dealt)
        elif data.startswith(b"[DONE]"):
            self._tell_usage(dealt)
            self.is_done = True
            for number in range(len(self._unseen)):
                if self.is_answered(number) or self.is_refused:
                    dealt.setdefault(number, []).append(event)
        elif data:
            # It may be half of somebody's text.
            raise Undealable
        else:
            self._to_all(event, dealt)

    def _deal_chunk(self, event: bytes, chunk: Document, dealt: Dealt) -> None:
        if _is_error(chunk):
            if _is_about_all(chunk):
                self.is_refused = True
                self._to_all(event, dealt)
            else:
                self.failure = chunk.raw
            return
        lists = prompt_lists(chunk, self._prompts)
        choices = chunk.array("choices")
        if lists is None:
            raise Undealable
        usage = chunk.get("usage")
        is_telling = usage is not None and usage.startswith(b"{")
        if is_telling:
            self._usage = event, _without(chunk, lists)
            chunk = chunk.set("usage", b"null")
        if choices or lists:
            self._deal_choices(event, chunk, choices or (), lists, dealt)
        elif choices is None and not is_telling:
            self._to_all(event, dealt)
        elif not is_telling:
            for number in range(len(self._unseen)):
                dealt.setdefault(number, []).append(with_data(event, with_own_id(chunk, number)))
        if is_telling and not choices:
            self._tell_usage(dealt)

    def _deal_choices(
        self,
        event: bytes,
        chunk: Document,
        choices: Sequence[bytes],
        lists: dict[str, list[bytes]],
        dealt: Dealt,
    ) -> None:
        by_member: dict[int, list[bytes]] = {}
        for choice in choices:
            number, own = self._own_choice(choice)
            by_member.setdefault(number, []).append(own)
        for parts in lists.values():
            for number, part in enumerate(parts):
                if part != b"[]":
                    by_member.setdefault(number, [])
        for number, own_choices in by_member.items():
            own_chunk = with_own_id(chunk, number)
            if choices and (len(own_choices) < len(choices) or number):
                own_chunk = own_chunk.set("choices", b"[" + b",".join(own_choices) + b"]")
            for name, parts in lists.items():
                own_chunk = own_chunk.set(name, parts[number])
            dealt.setdefault(number, []).append(with_data(event, own_chunk))

    def _own_choice(self, choice: bytes) -> tuple[int, bytes]:
        """Return whose a choice is, and the choice with the index that it has there. Raises Undealable."""
        index = index_of(choice)
        if index is None or index >= len(self._owners):
            raise Undealable
        number, begin = self._owners[index]
        self._has_begun[number] = True
        self._unseen[number].discard(index)
        value = decode(choice)
        if isinstance(value, dict):
            if isinstance(value.get("text"), str):
                self._texts[number].append(value["text"])
            if value.get("finish_reason") is not None:
                self._unfinished[number].discard(index)
        return number, choice if begin == 0 else with_index(choice, index - begin)

    def _tell_usage(self, dealt: Dealt) -> None:
        """Give everybody its part of the usage that was told, once."""
        told, self._usage = self._usage, None
        if told is None:
            return
        event, chunk = told
        mould, outputs = self._mould, self._mould.weigh(self._texts)
        whole = chunk.get("usage") or b"{}"
        usages = divide_usage(whole, mould.input_weights(), outputs, mould.most_outputs())
        for number, usage in enumerate(usages):
            own = with_own_id(chunk, number).set("choices", b"[]").set("usage", usage)
            dealt.setdefault(number, []).append(with_data(event, own))

    def _to_all(self, event: bytes, dealt: Dealt) -> None:
        for number in range(len(self._unseen)):
            dealt.setdefault(number, []).append(event)


def _is_error(chunk: Document) -> bool:
    # The second is how vLLM has said it.
    return chunk.get("error") not in _NOTHING or chunk.get("object") == b'"error"'


def _is_about_all(chunk: Document) -> bool:
    """Tell whether an error is no single prompt's: a limit, a bill, an outage. Messages may quote one."""
    error = chunk.value("error")
    said = error if isinstance(error, dict) else {name: chunk.value(name) for name in _CLASSES}
    return any(_ABOUT_ALL.search(str(said.get(name))) for name in _CLASSES)


def _without(chunk: Document, names: dict[str, list[bytes]]) -> Document:
    for name in names:
        chunk = chunk.delete(name)
    return chunk


def with_data(event: bytes, chunk: Document) -> bytes:
    """Return an event with other data; its other lines and its line ends stay."""
    if not chunk.edited:
        return event
    old, new = event_data(event), chunk.to_bytes()
    if event.count(old) == 1:
        return event.replace(old, new)
    lines: list[bytes] = []
    is_written = False
    for line in event.splitlines(keepends=True):
        text = line.rstrip(b"\r\n")
        if text.removeprefix(_BOM).partition(b":")[0] != b"data":
            lines.append(line)
        elif not is_written:
            is_written = True
            lines += [b"data: " + part + line[len(text) :] for part in new.split(b"\n")]
    return b"".join(lines)
