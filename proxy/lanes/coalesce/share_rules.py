"""Which requests may be served by one upstream call, and how: the arithmetic of `share`, without I/O.

Owns two questions. Is an answer to this request the same whoever asks (`may_share`)? And can a caller that
asks in one form (streamed or not, with usage or without) be served from a call that was made in another
(`serving`)? Who may be carried with whom at all is the lane's key.

    call made as    caller asks for    served
    JSON            JSON               the bytes
    JSON            events             events made from the answer, once it is there
    events          the same events    the bytes
    events          JSON               the answer put together from the events, if they tell usage
"""

from __future__ import annotations

from enum import Enum

import msgspec

from proxy.core.document import Document
from proxy.core.json_spans import DocumentError
from proxy.core.json_values import as_number
from proxy.dialects.answer_events import tells_events
from proxy.lanes.coalesce.share_world import looks_around
from proxy.lanes.lane import Outgoing, Pooling
from proxy.policy.model import MIB, Sharing

_SHARED = frozenset({"chat", "completions", "responses", "messages"})
_USAGE_UNASKED = frozenset({"responses", "messages"})
_SERVER_STATE = ("background", "conversation", "previous_response_id", "container")
_ENDLESS = float("inf")
_HARMLESS_OPTIONS = frozenset({"include_usage", "include_obfuscation"})


class ShareLimits(msgspec.Struct, frozen=True):
    """Bounds on memory, in bytes.

    kept    of one answer, for callers that come later; nobody joins a longer one
    total   of all answers together
    behind  how far a caller may stay behind the others before it is let go
    whole   the longest answer that is told in events, which is done in one go
    told    the longest stream that is put together
    late    how much of a stream may have come before it is put together for a late joiner, in one go
    near    how far a caller may stay behind in any case, as far as with a connection of its own
    lagging what all callers together may be behind beyond that
    """

    kept: int = 4 * MIB
    total: int = 64 * MIB
    behind: int = 4 * MIB
    whole: int = 2 * MIB
    told: int = 32 * MIB
    late: int = MIB // 4
    near: int = MIB // 16
    lagging: int = 64 * MIB


class Form(msgspec.Struct, frozen=True):
    """How an answer is asked for, as far as requests with one key may still differ.

    options    what `stream_options` says besides `include_usage` and padding against listeners
    is_stored  whether the provider keeps the answer for later requests to name
    coding     what is asked of the upstream in place of the caller's own `Accept-Encoding`
    is_audible sound is asked for, which is told in other pieces than it is answered in
    """

    is_stream: bool
    has_usage: bool
    options: bytes = b""
    is_stored: bool = False
    coding: bytes | None = None
    is_audible: bool = False


class Serving(Enum):
    """How a caller is served from a call."""

    RAW = "raw"
    EVENTS = "events"
    ASSEMBLED = "assembled"


def may_share(pooling: Pooling) -> bool:
    """Tell whether identical requests of this kind may have one answer.

    At temperature 0 or with a seed, or by policy. Never where the request changes what the provider keeps.
    """
    document = pooling.document
    if pooling.dialect.name not in _SHARED or document.duplicates:
        return False
    if any(document.get(name) not in (None, b"null", b"false") for name in _SERVER_STATE):
        return False
    if pooling.policy.share is Sharing.ALWAYS:
        return True
    return _is_deterministic(document) and not looks_around(document, pooling.model)


def _is_deterministic(document: Document) -> bool:
    seed, temperature = document.get("seed"), document.get("temperature")
    if seed is not None and seed != b"null":
        return True
    return temperature is not None and as_number(temperature) == 0


def choices_asked(pooling: Pooling) -> int:
    """Return how many choices a complete answer to this request has: `n`, for each prompt of a completion."""
    document, choices = pooling.document, 1
    number = as_number(document.get("n") or b"1")
    if number is not None and 1 <= number < _ENDLESS:
        choices = int(number)
    if pooling.dialect.name != "completions":
        return choices
    prompts = document.array("prompt") or ()
    # A list of numbers is one prompt.
    return choices * len(prompts) if prompts and prompts[0][:1] in (b'"', b"[") else choices


def form_of(pooling: Pooling, outgoing: Outgoing) -> Form:
    """Return how a request asks for its answer."""
    document, name = pooling.document, pooling.dialect.name
    stored = document.get("store")
    is_stored = stored != b"false" if name == "responses" else stored == b"true"
    coding = outgoing.plan.replaced.get(b"accept-encoding")
    is_audible = document.get("audio") not in (None, b"null")
    if not pooling.is_stream:
        return Form(False, True, b"", is_stored, coding, is_audible)
    options, asks_usage = _stream_options(document.get("stream_options"))
    return Form(True, asks_usage or name in _USAGE_UNASKED, options, is_stored, coding, is_audible)


def _stream_options(raw: bytes | None) -> tuple[bytes, bool]:
    if raw is None or raw == b"null":
        return b"", False
    try:
        options = Document.parse(raw)
    except DocumentError:
        return raw, False
    rest = set(options.keys()) - _HARMLESS_OPTIONS
    return (raw if rest else b""), options.get("include_usage") == b"true"


def serving(call: Form, asked: Form, dialect_name: str) -> Serving | None:
    """Return how a caller would be served from a call, `None` where it takes one of its own.

    Forms made from what is there lose nothing: an answer has all that its events would tell, and events
    are put together only where they tell usage and hold no option that changes them.
    """
    if call.is_stored != asked.is_stored:
        return None
    if call.is_stream == asked.is_stream:
        return Serving.RAW if call == asked or not call.is_stream else None
    if call.options or asked.options or call.is_audible or not tells_events(dialect_name):
        return None
    if not call.is_stream:
        return Serving.EVENTS
    return Serving.ASSEMBLED if call.has_usage else None
