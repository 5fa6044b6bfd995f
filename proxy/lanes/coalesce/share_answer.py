"""What one shared call answers, in the forms that its callers asked for. Pure: no clock, no sockets.

Owns turning a complete answer into events and events into a complete answer, at most once each, and which
of an answer's headers go along. Every caller has the same credentials and the answer is the same for all:
all get the upstream's headers, its request id included; cookies only the one whose request was sent.
"""

from __future__ import annotations

import zlib

from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from proxy.core.sse import EventSplitter
from proxy.dialects.answer_events import answer_events
from proxy.dialects.assembled_answer import Assembled, Assembler, assembler, error_answer
from proxy.http.head import Header, ResponseHead
from proxy.lanes.coalesce.share_rules import Form, Serving, choices_asked
from proxy.lanes.lane import Pooling

_MAX_PLAIN_BYTES = 8 * 1024 * 1024
_INFLATED = frozenset({b"gzip", b"x-gzip", b"deflate"})
_OF_THE_BODY = frozenset({b"content-type", b"content-length", b"content-encoding", b"etag", b"digest"})

Whole = tuple[ResponseHead, bytes]


def head_for_joiner(head: ResponseHead) -> ResponseHead:
    """Return the head for callers whose own request was not the one that was sent."""
    if b"set-cookie" not in head.fields:
        return head
    headers = [header for header in head.headers if header[0] != b"set-cookie"]
    return ResponseHead(head.status, head.reason, headers)


class Answer:
    """One answer as it comes. `size_bytes` is what putting it together holds."""

    __slots__ = (
        "_asked",
        "_assembler",
        "_body",
        "_error",
        "_events",
        "_form",
        "_has_error",
        "_splitter",
        "head",
    )

    def __init__(self, asked: Pooling, form: Form) -> None:
        """`asked` is the request that is sent, in the form that it asks for."""
        self._asked = asked
        self._form = form
        self._assembler: Assembler | None = None
        self._splitter = EventSplitter()
        self._error: Assembled | None = None
        self._has_error = False
        self._events: dict[bool, bytes | None] = {}
        self._body: bytes | None = None
        self.head: ResponseHead | None = None

    @property
    def size_bytes(self) -> int:
        """Memory that is held besides the kept bytes."""
        return 0 if self._assembler is None else self._assembler.size_bytes + self._splitter.carry_bytes

    def begin(self, head: ResponseHead) -> None:
        """Take the head."""
        self.head = head

    def serving_now(self, how: Serving) -> Serving | None:
        """Return how a caller is served now that the head is known; `None` where it cannot be after all.

        Errors, and answers of another kind than was asked for, go to everyone as they are.
        """
        head = self.head
        if head is None or how is Serving.RAW or head.status >= 300:
            return Serving.RAW
        coding = head.fields.get(b"content-encoding", b"identity").lower()
        is_plain = coding in (b"identity", b"")
        kind = head.fields.get(b"content-type", b"").lower()
        if how is Serving.EVENTS:
            if not kind.startswith(b"application/json"):
                return Serving.RAW
            return how if is_plain or coding in _INFLATED else None
        if not kind.startswith(b"text/event-stream"):
            return Serving.RAW
        return how if is_plain else None

    @property
    def is_assembled(self) -> bool:
        """Whether the events are being put together."""
        return self._assembler is not None

    def assemble(self, kept: list[bytes]) -> None:
        """Begin to put the events together, those that have come already included."""
        if self._assembler is None:
            asked = self._asked
            self._assembler = assembler(asked.dialect.name, choices_asked(asked), self._form.has_usage)
            for data in kept:
                self.read(data)

    def read(self, data: bytes) -> None:
        """Read body bytes, where somebody needs them read."""
        whole = self._assembler
        if whole is None or self.head is None or self.serving_now(Serving.ASSEMBLED) is Serving.RAW:
            return
        for event in self._splitter.feed(data):
            self._take(whole, event)

    def _take(self, whole: Assembler, event: bytes) -> None:
        whole.take(event)
        if self._has_error or b"error" not in event:
            return
        facts = self._asked.dialect.read_event(event)
        # A terminal event that tells of a failure is the answer itself (Responses).
        if facts.error and not facts.terminal:
            self._has_error, self._error = True, error_answer(event)

    def whole(self, how: Serving, form: Form, kept: list[bytes]) -> Whole | ProxyError | None:
        """Return the complete answer for callers who did not ask for it as it came.

        `None` where the upstream has said all that it will in this form, and left out a part of the answer.
        """
        if how is Serving.EVENTS:
            return self._as_events(form, kept)
        whole = self.whole_despite(how)
        if whole is not None:
            return whole
        if self._has_error:
            return ProxyError(UPSTREAM_CLOSED, "The upstream reported a failure in the middle of its answer.")
        if self._assembler is not None and self._assembler.has_ended:
            return None
        message = "The upstream ended its stream before the answer was complete."
        return ProxyError(UPSTREAM_CLOSED, message)

    def whole_despite(self, how: Serving) -> Whole | None:
        """Return the answer put together from what came, `None` where a part of it is missing.

        An error that the stream told is the answer, however much of another one there is.
        """
        head, whole = self.head, self._assembler
        if how is not Serving.ASSEMBLED or head is None or whole is None:
            return None
        if self._splitter.carry_bytes:
            self._take(whole, self._splitter.carry)
            self._splitter = EventSplitter()
        if self._error is not None:
            return _with_body(head, self._error.status, b"application/json", self._error.body)
        if self._body is None and not self._has_error:
            self._body = whole.body()
        if self._body is not None:
            return _with_body(head, head.status, b"application/json", self._body)
        return None

    def _as_events(self, form: Form, kept: list[bytes]) -> Whole:
        head = self.head
        assert head is not None, "a whole answer has a head"
        if form.has_usage not in self._events:
            plain = _plain(head, b"".join(kept))
            told = None if plain is None else answer_events(self._asked.dialect.name, plain, form.has_usage)
            self._events[form.has_usage] = told
        events = self._events[form.has_usage]
        if events is None:
            return head_for_joiner(head), b"".join(kept)
        return _with_body(head, head.status, b"text/event-stream; charset=utf-8", events, has_length=False)


def _plain(head: ResponseHead, body: bytes) -> bytes | None:
    coding = head.fields.get(b"content-encoding", b"identity").lower()
    if coding not in _INFLATED:
        return body
    bits = zlib.MAX_WBITS if coding == b"deflate" else 16 + zlib.MAX_WBITS
    inflater = zlib.decompressobj(bits)
    try:
        plain = inflater.decompress(body, _MAX_PLAIN_BYTES)
    except zlib.error:
        return None
    return plain if inflater.eof else None


def _with_body(
    head: ResponseHead, status: int, media_type: bytes, body: bytes, has_length: bool = True
) -> Whole:
    headers: list[Header] = [
        header for header in head_for_joiner(head).headers if header[0] not in _OF_THE_BODY
    ]
    headers.append((b"content-type", b"Content-Type", media_type))
    if has_length:
        headers.append((b"content-length", b"Content-Length", b"%d" % len(body)))
    reason = head.reason if status == head.status else b"Bad Gateway"
    return ResponseHead(status, reason, headers), body
