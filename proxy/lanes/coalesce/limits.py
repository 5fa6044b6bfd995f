"""How many inputs an upstream takes in one call, where it has said so by refusing more.

`told_limit` reads such a refusal and is pure; `BatchLimits` remembers by caller, upstream, API and model, for
a while: what one caller's inputs made an upstream say slows nobody else. Configured bounds stand in the
policy: what is learnt here only lowers them.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from proxy.core.clock import Clock
from proxy.core.json_values import decode
from proxy.http.head import RequestHead
from proxy.upstream.request_head import CREDENTIAL_HEADERS

KEEP_SECONDS = 3600.0
_MAX_ENTRIES = 10_000
_MAX_READ_BYTES = 16 * 1024
_ECHO_BYTES = 16
_OWNER_BYTES = 16

# Seen at Hugging Face TEI and SiliconFlow, OpenAI, Azure, Cohere, Gemini and FastAPI servers, DashScope,
# Voyage. What counts tokens or characters says nothing about the number of inputs.
_LIMITS = (
    re.compile(rb"maximum allowed batch size (?:of |is )?(\d{1,6}+)", re.IGNORECASE),
    re.compile(rb"array with maximum length (\d{1,6}+)", re.IGNORECASE),
    re.compile(rb"max(?:imum)? number of (?:inputs|items|texts|prompts) (?:is|of) (\d{1,6}+)", re.IGNORECASE),
    re.compile(rb"batch size (?:limit|maximum)(?: is| of|:)? (\d{1,6}+)", re.IGNORECASE),
    re.compile(rb"batch size.{0,40}not be (?:larger|greater|more) than (\d{1,6}+)", re.IGNORECASE),
    re.compile(rb"(?:at most|maximum limit of|no more than) (\d{1,6}+)(?! *(?:tok|char))", re.IGNORECASE),
)


def told_limit(refusal: bytes, sent_items: int) -> int | None:
    """Return the most inputs that a refusal of `sent_items` says are taken, `None` where it says nothing."""
    text = refusal[:_MAX_READ_BYTES]
    for pattern in _LIMITS:
        found = pattern.search(text)
        if found is not None and 0 < int(found[1]) < sent_items:
            return int(found[1])
    return None


def without_echoes(refusal: bytes, inputs: Iterable[bytes]) -> bytes:
    """Return a refusal less the limits that are quoted from `inputs`, the raw JSON values that were sent.

    Many servers repeat the input that they refuse, and any caller may write a limit into one.
    """
    text = refusal[:_MAX_READ_BYTES]
    found = [match for pattern in _LIMITS for match in pattern.finditer(text)]
    if not found:
        return text
    sent = [form for raw in inputs for form in _forms(raw)]
    for match in found:
        # A limit and what stands right before it: both are in an echo, however it is cut.
        tail = text[max(match.start(), match.end(1) - _ECHO_BYTES) : match.end(1)].lower()
        if any(tail in form for form in sent):
            text = text[: match.start(1)] + b"#" * len(match[1]) + text[match.end(1) :]
    return text


def _forms(raw: bytes) -> tuple[bytes, ...]:
    value = decode(raw)
    text = value.encode("utf-8", "replace").lower() if isinstance(value, str) else b""
    return raw.lower(), text


def names_count(refusal: bytes, sent_items: int) -> bool:
    """Tell whether a refusal counts the inputs that were sent, which no single caller could make it say."""
    return re.search(rb"(?<!\d)%d(?!\d)" % sent_items, refusal[:_MAX_READ_BYTES]) is not None


def lesson(refusal: bytes, sent_items: int, failed_alone: int) -> int | None:
    """Return the limit to learn from a merged call that was refused, once its requests were sent singly.

    A refusal is about the number of inputs when it says so and counts them, or when each request of
    the call was taken alone (`failed_alone` is how many were not). Then without a number half of what was
    sent is tried. A refusal that one caller's own input explains teaches nothing.
    """
    told = told_limit(refusal, sent_items)
    if told is not None and (not failed_alone or names_count(refusal, sent_items)):
        return told
    return None if failed_alone else max(1, sent_items // 2)


class Taker(msgspec.Struct, frozen=True):
    """Who takes so many inputs, of whom: `owner` is a digest of the caller's credentials."""

    owner: bytes
    upstream: str
    dialect: str
    model: str


def owner_of(head: RequestHead, caller: bytes) -> bytes:
    """Return a digest of a request's credentials, which are not kept; `caller` is `Pooling`'s."""
    digest = blake2b(caller, digest_size=_OWNER_BYTES)
    for name, _, value in sorted(header for header in head.headers if header[0] in CREDENTIAL_HEADERS):
        digest.update(b"%b:%d:%b" % (name, len(value), value))
    return digest.digest()


class BatchLimits:
    """Learnt limits. What was learnt longest ago goes first when there is too much."""

    def __init__(self, clock: Clock, keep_seconds: float = KEEP_SECONDS) -> None:
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._known: OrderedDict[Taker, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def most(self, taker: Taker) -> int:
        """Return the most inputs that one call may have; a very large number where nothing was learnt."""
        known = self._known.get(taker)
        if known is None or known[0] <= self._clock.monotonic():
            return sys.maxsize
        return known[1]

    def learn(self, taker: Taker, most: int) -> None:
        """Remember a limit for a while. A higher one than is known was learnt from an older call."""
        most = min(most, self.most(taker))
        self._known[taker] = (self._clock.monotonic() + self._keep_seconds, most)
        self._known.move_to_end(taker)
        if len(self._known) > _MAX_ENTRIES:
            self._known.popitem(last=False)
