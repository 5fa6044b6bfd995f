"""Whether a request can be deferred, by which tiers, until when, and how its caller meets the answer. Pure.

What is refused gets a reason and goes on as if there were no batch lane. Reasons are ASCII without quotes and
repeat nothing that a caller sent but figures.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from proxy.core.document import Document
from proxy.dialects.answer_events import tells_events
from proxy.dialects.dialect import Dialect
from proxy.jobs.model import Delivery, JobTier
from proxy.policy.model import BatchPolicy, HeldStreams, KeepAlive

DEFAULT_DEADLINE_SECONDS = 86_400.0
"""How long a promised answer may take where nobody said: a provider's longest batch window."""

LONGEST_HOLD_SECONDS = 86_400.0
"""A connection that is kept alive is held no longer than this."""

_MARGIN_SHARE = 0.02
_LEAST_MARGIN_SECONDS = 5.0
_WINDOWS = {"2h": 7_200.0, "8h": 28_800.0}
_SOONEST = "soonest"

HeaderLookup = Callable[[str], str | None]


class DeferralPlan(msgspec.Struct, frozen=True):
    """How a request is deferred.

    tiers             that may carry it, cheapest first
    endpoint          path that the API knows
    deadline_seconds  how long the answer may take
    hold_seconds      how long the caller is held; `None` for one that was promised the answer
    direct_seconds    how long a direct call takes: the rescue begins so long before the deadline
    rescue_window_seconds   over how many seconds before that the rescues of all jobs are spread
    webhook           name of the webhook that hears of the end where it was promised, empty for none
    """

    delivery: Delivery
    tiers: tuple[JobTier, ...]
    endpoint: str
    deadline_seconds: float
    hold_seconds: float | None
    direct_seconds: float
    rescue_window_seconds: float = 0.0
    webhook: str = ""


class Terms(msgspec.Struct, frozen=True):
    """Until when the answer has to be there and for how long the caller is held, in seconds."""

    delivery: Delivery
    deadline_seconds: float
    hold_seconds: float | None


def delivery_of(document: Document, dialect: Dialect, prefer: str, is_ticket_allowed: bool) -> Delivery:
    """Return how a caller wants to meet a deferred answer."""
    if dialect.name == "responses" and document.get("background") == b"true":
        return Delivery.BACKGROUND
    return Delivery.TICKET if is_ticket_allowed and asks_ticket(prefer) else Delivery.HOLD


def asks_ticket(prefer: str) -> bool:
    """Tell whether a `Prefer` field asks for an answer later (RFC 7240 section 4.1)."""
    wishes = (wish.partition(";")[0].strip().lower() for wish in prefer.split(","))
    return "respond-async" in wishes


def needs_tokens(
    document: Document, dialect: Dialect, is_stream: bool, policy: BatchPolicy, delivery: Delivery
) -> bool:
    """Tell whether a caller needs the tokens of its stream as they come.

    One that asks for a cheap tier itself gets the stream of that tier; one that cannot be told its answer as
    events cannot be held.
    """
    if not is_stream:
        return False
    return (
        delivery is not Delivery.HOLD
        or policy.streams is HeldStreams.DIRECT
        or document.get("service_tier") is not None
        or not tells_events(dialect.name)
    )


def asks_soonest(document: Document) -> bool:
    """Tell whether a background request asks for the soonest answer there is."""
    return _window(document) == _SOONEST


def odd_background(document: Document, dialect: Dialect) -> str | None:
    """Return what the API would refuse about how a response asks for the background, if anything."""
    if dialect.name != "responses":
        return None
    if document.get("background") not in (None, b"null", b"true", b"false"):
        return "background is no boolean"
    options = document.value("background_options")
    window = options.get("completion_window") if isinstance(options, dict) else options
    is_known = window is None or (isinstance(window, str) and (window in _WINDOWS or window == _SOONEST))
    return None if is_known else "the completion window is unknown"


def terms(
    document: Document,
    delivery: Delivery,
    policy: BatchPolicy,
    is_stream: bool,
    deadline_seconds: float | None,
    patience_seconds: float,
) -> Terms:
    """Return what a request allows: a held caller that hears nothing has to be answered in its patience."""
    if delivery is not Delivery.HOLD:
        window = _WINDOWS.get(_window(document) or "", DEFAULT_DEADLINE_SECONDS)
        asked = window if deadline_seconds is None else deadline_seconds
        return Terms(delivery, min(asked, window), None)
    if is_stream or policy.keep_alive is KeepAlive.WHITESPACE:
        asked = patience_seconds if deadline_seconds is None else deadline_seconds
        seconds = min(asked, LONGEST_HOLD_SECONDS)
        return Terms(delivery, seconds, seconds + _LEAST_MARGIN_SECONDS)
    margin = max(_LEAST_MARGIN_SECONDS, _MARGIN_SHARE * patience_seconds)
    # Answered a moment before the caller gives up, whatever happens; the job's deadline comes before that.
    hold = max(0.0, patience_seconds - 1.0)
    asked = patience_seconds - margin
    return Terms(delivery, asked if deadline_seconds is None else min(asked, deadline_seconds), hold)


def _window(document: Document) -> str | None:
    options = document.value("background_options")
    window = options.get("completion_window") if isinstance(options, dict) else None
    return window if isinstance(window, str) else None
