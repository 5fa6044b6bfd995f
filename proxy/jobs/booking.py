"""What an execution cost, and what deferring saved. Pure.

The tier is the one that the provider says it used; where it says nothing, the one that carried the job. What
has no usage or no price is booked all the same, with `usd` unknown: an unknown cost is not a zero.

    answer    the execution whose answer the caller gets, errors that were billed included
    failure   it ended without a usable answer: billed only where the provider reports usage
    unknown   an execution that may have happened, of which nothing is known (the line broke, a worker died)
    loser     the other execution after a rescue or a cancellation
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.core.price import Price, Tier
from proxy.core.usage import Usage
from proxy.dialects import dialect_for_path
from proxy.jobs.model import Booking, BookingKind, Job, JobTier
from proxy.jobs.tiers import PRICE_TIERS

UNKNOWN_TIER = "unknown"

_LONGEST_TIER = 64
"""Longer than any provider's word: it goes into headers and logs."""

# What providers call the tiers that have rates in the table; another word (priority, scale) has none.
_STANDARD_WORDS = frozenset({"default", "standard", "auto"})
_ECHOED = {"flex": Tier.FLEX, "batch": Tier.BATCH}


class _Echo(msgspec.Struct):
    service_tier: Any = None
    usage: Any = None


_ECHO = msgspec.json.Decoder(_Echo)


@dataclass(frozen=True, slots=True)
class Bill:
    """What an answer says about its own cost; `tier` is the provider's word, `None` where it has none."""

    tier: str | None
    usage: Usage | None


def read_bill(endpoint: str, body: bytes) -> Bill:
    """Read tier and usage from a complete answer of an API path; what is not understood is `None`."""
    dialect = dialect_for_path(endpoint)
    usage = None if dialect is None else dialect.read_body(body).usage
    return Bill(_echoed_tier(body), usage)


def _echoed_tier(body: bytes) -> str | None:
    try:
        echo = _ECHO.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    word = echo.service_tier
    if word is None and isinstance(echo.usage, dict):
        word = echo.usage.get("service_tier")  # Anthropic has it there
    return word[:_LONGEST_TIER] if isinstance(word, str) and word else None


def book(job: Job, key: str, kind: BookingKind, carried: JobTier, bill: Bill, price: Price | None) -> Booking:
    """Return the bill for an execution that was carried by a tier. `price` is the model's, if it is known."""
    usage = bill.usage
    if usage is None or usage.input_tokens is None:
        return Booking(job.id, key, kind, _tier_word(bill.tier, carried))
    figures = (
        usage.input_tokens,
        usage.output_tokens or 0,
        usage.cached_tokens or 0,
        usage.cache_write_tokens or 0,
    )
    rates = _paid_tier(bill.tier, carried)
    return Booking(
        job.id,
        key,
        kind,
        _tier_word(bill.tier, carried),
        input_tokens=figures[0],
        output_tokens=figures[1],
        cached_tokens=figures[2],
        cache_write_tokens=figures[3],
        usd=None if price is None or rates is None else price.cost_usd(*figures, tier=rates),
        standard_usd=None if price is None else price.cost_usd(*figures),
    )


def book_failure(job: Job, key: str, carried: JobTier, bill: Bill, price: Price | None) -> Booking | None:
    """Return the bill for an execution without a usable answer; `None` where the provider charges nothing."""
    usage = bill.usage
    if usage is None or not (usage.input_tokens or usage.output_tokens):
        return None
    return book(job, key, BookingKind.FAILURE, carried, bill, price)


def book_unknown(job: Job, key: str, kind: BookingKind = BookingKind.FAILURE) -> Booking:
    """Return the booking of an execution that may have happened and may have been billed."""
    return Booking(job.id, key, kind, UNKNOWN_TIER)


def _tier_word(word: str | None, carried: JobTier) -> str:
    # A batch's answers echo `default`, a background answer as well: the discount is the carrier's.
    if word is None or (word in _STANDARD_WORDS and _is_discounted_apart(carried)):
        return carried.value
    return word


def _paid_tier(word: str | None, carried: JobTier) -> Tier | None:
    if word is None:
        return PRICE_TIERS[carried]
    if word in _STANDARD_WORDS:
        return PRICE_TIERS[carried] if _is_discounted_apart(carried) else Tier.STANDARD
    return _ECHOED.get(word)


def _is_discounted_apart(carried: JobTier) -> bool:
    """The discount comes by the API that was used, not by the `service_tier` that answers echo."""
    return carried in (JobTier.BATCH, JobTier.BACKGROUND_2H, JobTier.BACKGROUND_8H)


def saved_usd(bookings: Iterable[Booking]) -> float | None:
    """Return what was saved on one job: the standard price of its answer less everything that was paid.

    `None` as soon as any of the figures is unknown; negative where a rescue cost more than the tier saved.
    """
    saved = 0.0
    for booking in bookings:
        if booking.usd is None:
            return None
        saved -= booking.usd
        if booking.kind is BookingKind.ANSWER:
            if booking.standard_usd is None:
                return None
            saved += booking.standard_usd
    return saved
