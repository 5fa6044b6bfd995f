from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxy.core.document import Document
from proxy.core.upstream import Provider, Secret, Upstream
from proxy.dialects.chat import CHAT
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES
from proxy.jobs.model import Delivery, JobTier
from proxy.jobs.response_ids import response_id
from proxy.lanes.batch.deferring import STORE_UNAVAILABLE, Candidate, Deferring
from proxy.lanes.batch.pace import Pace
from proxy.lanes.batch.plan import DeferralPlan
from proxy.policy.model import BatchPolicy
from proxy.upstream.providers.prices import load_prices

PRICES = load_prices()
UPSTREAM = Upstream("openai", "https://api.example/v1", api_key=Secret("k"), provider=Provider.OPENAI)
POLICY = BatchPolicy(upstream_tiers=("flex", "batch"))


def consider(
    headers: dict[str, str] | None = None,
    body: bytes = b'{"model":"gpt-5-mini","messages":[]}',
    keeps_credentials: bool = False,
    is_available: bool = True,
    live_jobs: int = 0,
    **changed: Any,
) -> DeferralPlan | str:
    fields: dict[str, Any] = {
        "policy": POLICY,
        "upstream": UPSTREAM,
        "is_known_path": True,
        "dialect": CHAT,
        "document": Document.parse(body),
        "model": "gpt-5-mini",
        "is_stream": False,
        "header": (headers or {}).get,
        "method": "POST",
        "is_ticket_allowed": True,
        "deadline_seconds": 86_400.0,
        "patience_seconds": 600.0,
    }
    candidate = Candidate(**(fields | changed))
    pace = Pace(PRICES)
    pace.live_jobs = live_jobs
    return Deferring(PRICES, PRICES, pace, keeps_credentials, lambda: is_available).consider(candidate)


def plan(**asked: Any) -> DeferralPlan:
    found = consider(**asked)
    assert isinstance(found, DeferralPlan), found
    return found


def test_a_plain_call_of_an_sdk_fits_flex_as_it_is_shipped() -> None:
    found = plan()
    assert (found.delivery, found.tiers) == (Delivery.HOLD, (JobTier.FLEX,))
    assert found.hold_seconds is not None
    assert found.deadline_seconds < found.hold_seconds < 600.0


def test_the_more_jobs_there_are_the_longer_their_rescues_take() -> None:
    narrow = replace(UPSTREAM, max_connections=10)
    ticket = {"prefer": "respond-async"}
    assert plan(headers=ticket).rescue_window_seconds == 0
    many = plan(headers=ticket, live_jobs=641)
    assert many.rescue_window_seconds == 10 * many.direct_seconds
    assert plan(headers=ticket, live_jobs=641, upstream=narrow).rescue_window_seconds == 64 * 60.0


def test_what_is_promised_has_time_for_a_batch_and_takes_the_quicker_first() -> None:
    found = plan(headers={"prefer": "respond-async"})
    assert (found.delivery, found.tiers) == (Delivery.TICKET, (JobTier.FLEX, JobTier.BATCH))
    assert found.hold_seconds is None


PASSING = replace(UPSTREAM, api_key=None)
CHAINED = b'{"model":"gpt-5-mini","input":"x","previous_response_id":"%b"}' % response_id("a" * 32).encode()
SOONEST = b'{"model":"gpt-5-mini","background":true,"background_options":{"completion_window":"soonest"}}'


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"method": "GET"}, "only a POST is deferred"),
        ({"is_known_path": False}, "this path has no cheaper tier"),
        ({"headers": {"origin": "https://app.example"}}, "a browser asks"),
        ({"body": SOONEST, "dialect": RESPONSES}, "the soonest answer is asked for"),
        ({"body": b'{"background":"true"}', "dialect": RESPONSES}, "background is no boolean"),
        (
            {"body": SOONEST.replace(b"soonest", b"3h"), "dialect": RESPONSES},
            "the completion window is unknown",
        ),
        ({"body": CHAINED, "dialect": RESPONSES}, "it continues a deferred response"),
        (
            {"upstream": PASSING, "headers": {"authorization": "Bearer x"}},
            "credentials cannot be kept without WEIR_SECRET_KEY",
        ),
        ({"is_available": False}, STORE_UNAVAILABLE),
        (
            {"policy": BatchPolicy(upstream_tiers=("direct",))},
            "no cheaper tier fits (the route lists no tier)",
        ),
        ({"policy": BatchPolicy()}, "no cheaper tier fits (batch: takes 14520 s"),
        ({"model": "unheard-of"}, "the price table has no price for this model"),
        (
            {"upstream": replace(UPSTREAM, provider=Provider.GENERIC)},
            "no cheaper tier fits (flex: the provider does not offer it",
        ),
    ],
)
def test_every_obstacle_has_its_reason(asked: dict[str, Any], reason: str) -> None:
    said = consider(**asked)
    assert isinstance(said, str)
    assert reason in said
    assert said.isascii()
    assert '"' not in said


CLAUDE: dict[str, Any] = {
    "upstream": replace(UPSTREAM, provider=Provider.ANTHROPIC),
    "model": "claude-haiku-4-5",
    "policy": BatchPolicy(),
}


def test_what_the_provider_refuses_in_a_batch_is_not_deferred_to_one() -> None:
    chat = b'{"model":"claude-haiku-4-5","max_tokens":9,"messages":[{"role":"user","content":"hi"}]%b}'
    later = {"prefer": "respond-async"}
    assert plan(body=chat % b"", headers=later, **CLAUDE).tiers == (JobTier.BATCH,)
    reason = "no cheaper tier fits (batch: seed has no equal in messages)"
    assert consider(body=chat % b',"seed":1', headers=later, **CLAUDE) == reason
    fast = {"body": chat % b',"speed":"fast"', "dialect": MESSAGES, "headers": later, **CLAUDE}
    assert consider(**fast) == "no cheaper tier fits (batch: speed is refused in batches)"


def test_credentials_that_can_be_sealed_or_are_not_there_are_no_obstacle() -> None:
    bearer = {"authorization": "Bearer x"}
    assert plan(upstream=PASSING, headers=bearer, keeps_credentials=True)
    assert plan(upstream=PASSING)
