"""Understand an event stream on its way through, and take out only what Weir itself asked for.

Bytes are forwarded as they came. Events are parsed until first content has been seen; after that only those
that contain one of the dialect's markers. The steady state is a few byte searches per read.
"""

from __future__ import annotations

import re

import msgspec

from proxy.core.document import Document, DocumentError
from proxy.core.sse import EventSplitter, event_data
from proxy.core.usage import Usage
from proxy.dialects.dialect import Dialect
from proxy.dialects.marking import has_escaped_letters, is_marked

MAX_EVENT_BYTES = 1024 * 1024
"""Longer events pass unread: memory per stream stays bounded."""

_MAX_WITHHELD_BYTES = 16 * 1024
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_SEQUENCE_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})')
_USAGE_KEY = b'"usage"'
_NULL_USAGE = b',"usage":null'
_HAS_ID = re.compile(rb"(?:\A|\A\xef\xbb\xbf|[\r\n])id(?=[:\r\n])")


class EventTap:
    """What one stream has said so far. `removes_usage` takes the usage-only event out again.

    Without `removes_usage` every byte is forwarded at once. With it the bytes of an unfinished event are
    withheld until it is complete or too long to be a usage event. `watches_ids` keeps `has_id` true to the
    last event; without it only the events that are read anyway are looked at.
    """

    __slots__ = (
        "_dialect",
        "_end_key",
        "_forwarded_bytes",
        "_is_skipping",
        "_last",
        "_markers",
        "_removes_usage",
        "_splitter",
        "finish_reason",
        "finished",
        "has_content",
        "has_error",
        "has_events",
        "has_id",
        "is_terminal",
        "usage",
    )

    def __init__(self, dialect: Dialect, removes_usage: bool, watches_ids: bool = False) -> None:
        self._dialect = dialect
        self._end_key = dialect.end_key
        self._markers = (*dialect.markers, b"id:") if watches_ids else dialect.markers
        self._removes_usage = removes_usage
        self._splitter = EventSplitter()
        self._forwarded_bytes = 0
        self._is_skipping = False
        self._last = b""
        self.has_content = False
        self.has_events = False
        self.has_error = False
        self.has_id = False
        self.is_terminal = False
        self.finish_reason = ""
        self.finished: set[int] = set()
        self.usage: Usage | None = None

    @property
    def is_between_events(self) -> bool:
        """Whether everything forwarded so far ends with a complete event."""
        return not self._splitter.carry_bytes or (self._removes_usage and self._forwarded_bytes == 0)

    def feed(self, data: bytes) -> bytes:
        """Read `data` and return what is to be forwarded now."""
        if self.has_content and not self._splitter.carry_bytes and data.endswith(_EVENT_ENDS):
            if is_marked(data, self._markers, self._end_key):
                return self._read(data)
            self._last = data
            if not self._removes_usage or _USAGE_KEY not in data:
                return data
            if data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
                return _without_null_usage(data)
        return self._read(data)

    def _read(self, data: bytes) -> bytes:
        kept: list[bytes] = []
        for event in self._splitter.feed(data):
            self._take(event, kept)
        carry_bytes = self._splitter.carry_bytes
        if carry_bytes > MAX_EVENT_BYTES:
            self._skip_rest(self._splitter.carry, kept)
        elif self._removes_usage and carry_bytes > _MAX_WITHHELD_BYTES:
            withheld_bytes = carry_bytes - self._forwarded_bytes
            is_new = withheld_bytes <= len(data)
            kept.append(data[-withheld_bytes:] if is_new else self._splitter.carry[self._forwarded_bytes :])
            self._forwarded_bytes = carry_bytes
        return b"".join(kept) if self._removes_usage else data

    def _take(self, event: bytes, kept: list[bytes]) -> None:
        forwarded_bytes, self._forwarded_bytes = self._forwarded_bytes, 0
        if self._is_skipping:
            self._is_skipping = False
            kept.append(event[forwarded_bytes:])
            return
        self._last = event
        is_usage_only = self._matters(event) and self._learn(event)
        if forwarded_bytes:
            kept.append(event[forwarded_bytes:])
        elif self._removes_usage and not is_usage_only:
            kept.append(_without_null_usage(event) if _USAGE_KEY in event else event)

    def _matters(self, event: bytes) -> bool:
        """Tell whether an event may say more than that the content goes on."""
        if not self.has_content:
            return True
        return is_marked(event, self._markers, self._end_key)

    def _learn(self, event: bytes) -> bool:
        """Read an event; return whether it carries usage and nothing else."""
        facts = self._dialect.read_event(event)
        if facts.first_content:
            self.has_content = True
        if facts.usage is not None:
            self.usage = _latest(self.usage, facts.usage)
        if facts.finish_reason is not None:
            self.finish_reason = facts.finish_reason
            self.finished.update(facts.finished)
        if facts.terminal:
            self.is_terminal = True
        if facts.error:
            self.has_error = True
        if not self.has_events and event_data(event):
            self.has_events = True
        if not self.has_id and b"id" in event and _HAS_ID.search(event):
            self.has_id = True
        return facts.usage_only

    def _skip_rest(self, carry: bytes, kept: list[bytes]) -> None:
        """Forget an overlong event but for its last bytes, which may be half of its end."""
        self.has_content = self.has_events = True
        tail = carry[-4:]
        kept.append(carry[self._forwarded_bytes :])
        self._splitter = EventSplitter()
        self._splitter.feed(tail)
        self._forwarded_bytes = len(self._splitter.carry)
        self._is_skipping = True

    def finish(self) -> bytes:
        """Read a last event without its blank line, as nothing follows; return what of it was withheld."""
        carry = self._splitter.carry
        if not carry:
            return b""
        kept: list[bytes] = []
        forwarded_bytes = self._forwarded_bytes
        self._take(carry, kept)
        self._forwarded_bytes = forwarded_bytes
        return b"".join(kept) if self._removes_usage else b""

    def next_sequence_number(self) -> int | None:
        """Return the number that follows the last event's, where events are numbered (Responses)."""
        numbers = _SEQUENCE_NUMBER.findall(self._last[-MAX_EVENT_BYTES:])
        return int(numbers[-1]) + 1 if numbers else None

    def drop_unfinished(self) -> bytes | None:
        """Forget an unfinished event; return what of it has reached the caller, `None` if nothing has.

        Empty for one whose beginning is not known any more.
        """
        carry = self._splitter.carry
        half = carry[: self._forwarded_bytes] if self._removes_usage else carry
        is_skipping, self._is_skipping = self._is_skipping, False
        self._splitter = EventSplitter()
        self._forwarded_bytes = 0
        return b"" if is_skipping else half or None


def _latest(known: Usage | None, new: Usage) -> Usage:
    """Merge usage reports: what came last stands, what it leaves open stays (Anthropic sends two parts)."""
    if known is None:
        return new
    return Usage(
        new.input_tokens if new.input_tokens is not None else known.input_tokens,
        new.output_tokens if new.output_tokens is not None else known.output_tokens,
        new.cached_tokens if new.cached_tokens is not None else known.cached_tokens,
        new.cache_write_tokens if new.cache_write_tokens is not None else known.cache_write_tokens,
        new.reasoning_tokens if new.reasoning_tokens is not None else known.reasoning_tokens,
    )


class _Top(msgspec.Struct, gc=False):
    usage: object = msgspec.UNSET


_TOP = msgspec.json.Decoder(_Top)


def _without_null_usage(event: bytes) -> bytes:
    """Remove the top-level `"usage": null` that OpenAI adds to every chunk of a stream asked for usage.

    A caller that did not ask must not see it. What is not one JSON object on one line is left as it is.
    """
    data = event_data(event)
    if not data.startswith(b"{") or event.count(data) != 1:
        return event
    try:
        # The only `"usage"` there is, in an object that has one: no other place is left for it.
        is_only = event.count(_USAGE_KEY) == 1 and _NULL_USAGE in data and not has_escaped_letters(data)
        if is_only and _TOP.decode(data).usage is None:
            return event.replace(_NULL_USAGE, b"")
        document = Document.parse(data)
    except (msgspec.DecodeError, DocumentError, UnicodeDecodeError, RecursionError):
        return event
    if document.get("usage") != b"null":
        return event
    return event.replace(data, document.delete("usage").to_bytes())
