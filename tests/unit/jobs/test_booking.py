"""One bill for each execution, by the tier that the provider says it used."""

from __future__ import annotations

import pytest

from proxy.core.price import Price, Rates
from proxy.jobs.booking import Bill, book, book_failure, book_unknown, read_bill, saved_usd
from proxy.jobs.model import Booking, BookingKind, Job, JobTier

CHAT = "/v1/chat/completions"
JOB = Job("j" * 32, "k", "o", "openai", CHAT, "m", "a", 0.0, 60.0)
HALF, STANDARD = Rates(0.5, 1.0, 0.05, 0.5), Rates(1.0, 2.0, 0.1, 1.0)
PRICE = Price(STANDARD, flex=HALF, batch=HALF, background_2h=Rates(0.7, 1.4, 0.07, 0.7))


def body(tier: str = "", prompt: int = 1_000_000, completion: int = 500_000, cached: int = 0) -> bytes:
    echo = f'"service_tier":"{tier}",' if tier else ""
    usage = (
        f'"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},'
        f'"prompt_tokens_details":{{"cached_tokens":{cached}}}}}'
    )
    return f"{{{echo}{usage}}}".encode()


def answer(carried: JobTier, raw: bytes, price: Price | None = PRICE) -> Booking:
    return book(JOB, "call:1", BookingKind.ANSWER, carried, read_bill(CHAT, raw), price)


@pytest.mark.parametrize(
    ("carried", "echo", "tier", "usd"),
    [
        (JobTier.FLEX, "flex", "flex", 1.0),
        (JobTier.FLEX, "", "flex", 1.0),
        (JobTier.FLEX, "default", "default", 2.0),
        (JobTier.BATCH, "default", "batch", 1.0),
        (JobTier.BATCH, "batch", "batch", 1.0),
        (JobTier.BATCH, "", "batch", 1.0),
        (JobTier.BACKGROUND_2H, "default", "background_2h", 1.4),
        (JobTier.BACKGROUND_8H, "default", "background_8h", None),
        (JobTier.DIRECT, "default", "default", 2.0),
        (JobTier.DIRECT, "", "direct", 2.0),
        (JobTier.DIRECT, "priority", "priority", None),
    ],
)
def test_the_tier_that_was_used_is_paid(carried: JobTier, echo: str, tier: str, usd: float | None) -> None:
    booking = answer(carried, body(echo))
    assert booking.tier == tier
    assert booking.usd == pytest.approx(usd)
    assert booking.standard_usd == pytest.approx(2.0)


def test_cached_tokens_are_paid_as_such() -> None:
    booking = answer(JobTier.BATCH, body(cached=400_000))
    assert booking.cached_tokens == 400_000
    assert booking.usd == pytest.approx(0.6 * 0.5 + 0.4 * 0.05 + 0.5)


def test_what_has_no_price_or_no_usage_is_booked_as_unknown_not_as_free() -> None:
    assert answer(JobTier.BATCH, body(), None).usd is None
    assert answer(JobTier.BATCH, b"{}").usd is None
    assert answer(JobTier.BATCH, b"<html>").tier == "batch"
    assert book_unknown(JOB, "call:1").kind is BookingKind.FAILURE


def test_a_failure_costs_only_what_the_provider_reports() -> None:
    assert book_failure(JOB, "b", JobTier.BATCH, read_bill(CHAT, b'{"error":{}}'), PRICE) is None
    assert book_failure(JOB, "b", JobTier.BATCH, Bill(None, None), PRICE) is None
    billed = book_failure(JOB, "b", JobTier.BATCH, read_bill(CHAT, body()), PRICE)
    assert billed is not None
    assert billed.kind is BookingKind.FAILURE
    assert billed.usd == pytest.approx(1.0)


def test_a_rescue_costs_both_executions() -> None:
    loser = book(JOB, "batch:1", BookingKind.LOSER, JobTier.BATCH, read_bill(CHAT, body()), PRICE)
    winner = book(JOB, "rescue", BookingKind.ANSWER, JobTier.DIRECT, read_bill(CHAT, body()), PRICE)
    assert saved_usd([answer(JobTier.BATCH, body())]) == pytest.approx(1.0)
    assert saved_usd([winner, loser]) == pytest.approx(-1.0)
    assert saved_usd([winner, book_unknown(JOB, "batch:1")]) is None
    assert saved_usd([]) == 0.0
