from __future__ import annotations

import pytest

from proxy.core.document import Document
from proxy.dialects.chat import CHAT
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.responses import RESPONSES
from proxy.jobs.model import Delivery
from proxy.lanes.batch.plan import (
    DEFAULT_DEADLINE_SECONDS,
    asks_soonest,
    asks_ticket,
    delivery_of,
    needs_tokens,
    terms,
)
from proxy.policy.model import BatchPolicy, HeldStreams, KeepAlive

PLAIN = Document.parse(b'{"model":"m"}')
BACKGROUND = Document.parse(b'{"model":"m","background":true}')
POLICY = BatchPolicy()


@pytest.mark.parametrize(
    ("prefer", "asks"),
    [
        ("respond-async", True),
        ("Respond-Async, wait=10", True),
        ("wait=10,respond-async;x=1", True),
        ("", False),
        ("respond-asynchronously", False),
        ("return=minimal", False),
    ],
)
def test_reads_the_preference_as_its_rfc_has_it(prefer: str, asks: bool) -> None:
    assert asks_ticket(prefer) is asks


def test_a_caller_is_met_as_it_asks() -> None:
    assert delivery_of(BACKGROUND, RESPONSES, "respond-async", True) is Delivery.BACKGROUND
    assert delivery_of(BACKGROUND, CHAT, "", True) is Delivery.HOLD, "no other API has background"
    assert delivery_of(PLAIN, CHAT, "respond-async", True) is Delivery.TICKET
    assert delivery_of(PLAIN, CHAT, "respond-async", False) is Delivery.HOLD


def test_only_a_stream_that_can_be_told_at_the_end_is_held() -> None:
    asks_flex = Document.parse(b'{"service_tier":"flex"}')
    direct = BatchPolicy(streams=HeldStreams.DIRECT)
    assert not needs_tokens(PLAIN, CHAT, False, POLICY, Delivery.HOLD)
    assert not needs_tokens(PLAIN, CHAT, True, POLICY, Delivery.HOLD)
    assert needs_tokens(PLAIN, CHAT, True, direct, Delivery.HOLD)
    assert needs_tokens(asks_flex, CHAT, True, POLICY, Delivery.HOLD)
    assert needs_tokens(PLAIN, EMBEDDINGS, True, POLICY, Delivery.HOLD)
    assert needs_tokens(BACKGROUND, RESPONSES, True, POLICY, Delivery.BACKGROUND)
    assert needs_tokens(PLAIN, CHAT, True, POLICY, Delivery.TICKET)


def test_a_silent_caller_is_answered_before_it_gives_up() -> None:
    held = terms(PLAIN, Delivery.HOLD, POLICY, False, 86_400.0, 600.0)
    assert held.deadline_seconds == 588.0
    assert held.hold_seconds == 599.0
    short = terms(PLAIN, Delivery.HOLD, POLICY, False, 40.0, 600.0)
    assert (short.deadline_seconds, short.hold_seconds) == (40.0, 599.0)


@pytest.mark.parametrize(
    ("policy", "is_stream"), [(POLICY, True), (BatchPolicy(keep_alive=KeepAlive.WHITESPACE), False)]
)
def test_a_caller_that_hears_something_waits_for_the_deadline(policy: BatchPolicy, is_stream: bool) -> None:
    held = terms(PLAIN, Delivery.HOLD, policy, is_stream, 7_200.0, 60.0)
    assert held.deadline_seconds == 7_200.0
    assert held.hold_seconds is not None
    assert held.hold_seconds > 7_200.0
    without = terms(PLAIN, Delivery.HOLD, policy, is_stream, None, 60.0)
    assert without.deadline_seconds == 60.0


def test_what_is_promised_has_the_routes_time_or_a_day() -> None:
    assert (
        terms(PLAIN, Delivery.TICKET, POLICY, False, None, 1.0).deadline_seconds == DEFAULT_DEADLINE_SECONDS
    )
    assert terms(PLAIN, Delivery.TICKET, POLICY, False, 60.0, 1.0).deadline_seconds == 60.0
    assert terms(PLAIN, Delivery.TICKET, POLICY, False, 60.0, 1.0).hold_seconds is None


def test_a_completion_window_bounds_the_deadline() -> None:
    windowed = Document.parse(b'{"background":true,"background_options":{"completion_window":"2h"}}')
    assert terms(windowed, Delivery.BACKGROUND, POLICY, False, 86_400.0, 1.0).deadline_seconds == 7_200.0
    soonest = Document.parse(b'{"background":true,"background_options":{"completion_window":"soonest"}}')
    assert asks_soonest(soonest)
    assert not asks_soonest(windowed)
    assert not asks_soonest(Document.parse(b'{"background_options":7}'))
