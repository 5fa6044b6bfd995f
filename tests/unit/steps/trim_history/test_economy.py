"""Trimming respects the provider's prompt cache: stable prefixes, cuts in blocks, and never a higher bill.

The provider here is a few lines of arithmetic of its own: it remembers what it was sent and when,
and reckons each request from the price alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from proxy.core.clock import ManualClock
from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.core.price import LongContext, Price, PromptCache, Rates
from proxy.dialects.chat import CHAT
from proxy.dialects.messages import MESSAGES
from proxy.observe.prefixes import PrefixMemory
from proxy.steps import trim_history
from proxy.steps.step import Outcome, StepContext
from proxy.steps.trim_history import Config
from proxy.tokens.fixed import FixedCounter
from tests.unit.steps.contexts import body

SCOPE = b"s" * 16
CACHE = PromptCache(is_automatic=True, minimum_tokens=1024, lifetime_seconds=600)
CHEAP_READS = Price(Rates(input=10, output=50, cached=1, cache_write=12.5), cache=CACHE)
HALF_PRICE_READS = Price(Rates(input=2.5, output=10, cached=1.25, cache_write=2.5), cache=CACHE)
NO_CACHE = Price(Rates(input=10, output=30, cached=10, cache_write=10))
MARKED = Price(Rates(input=4, output=20, cached=0.2, cache_write=5), cache=PromptCache(False, 1024, 300))


class OnePrice:
    """A price table of one row."""

    def __init__(self, price: Price | None) -> None:
        self._price = price

    def price(self, provider: str, model: str) -> Price | None:
        return self._price


@dataclass
class Desk:
    """A Weir that remembers, with a clock to be moved."""

    price: Price | None
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.memory = PrefixMemory(self.clock)

    def send(self, document: Document, config: Config, dialect: Any = CHAT) -> Outcome:
        outcome = trim_history.apply(
            document,
            config,
            StepContext(
                dialect,
                "m",
                "openai",
                FixedCounter(),
                prices=OnePrice(self.price),
                prefixes=self.memory.scoped(SCOPE),
            ),
        )
        if outcome.sent is not None:
            self.memory.remember(SCOPE, outcome.sent)
        return outcome


def say(number: int, words: int = 90) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"question {number} " + "word " * words},
        {"role": "assistant", "content": f"answer {number} " + "word " * words},
    ]


def growing(turns: int, words: int = 90) -> Iterator[Document]:
    """Yield the requests of one conversation that goes on."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "be kind"}]
    for number in range(turns):
        question, answer = say(number, words)
        messages.append(question)
        yield body(model="m", messages=messages)
        messages.append(answer)


def elements(outcome: Outcome) -> tuple[bytes, ...]:
    return outcome.document.array("messages") or ()


def tokens(raws: tuple[bytes, ...]) -> int:
    return sum(FixedCounter().count_message(raw, "m").tokens for raw in raws)


def test_a_cut_stays_where_it_is_until_the_budget_is_exceeded_again() -> None:
    sent = [elements(Desk(None).send(document, Config(budget=2000))) for document in growing(80)]
    moves = 0
    for before, after in pairwise(sent):
        assert tokens(after) <= 2000
        if after[: len(before)] != before:
            moves += 1
            assert tokens(before) + tokens(after[-2:]) > 2000, "it moved because it had to"
            assert 1200 <= tokens(after) <= 1500, "a block was taken"
    # A block of 500 tokens lasts for two to three turns of about 230 tokens.
    assert 20 <= moves <= 35


def test_without_respect_for_the_cache_the_cut_moves_with_every_turn() -> None:
    sent = [elements(Desk(None).send(d, Config(budget=2000, cache="ignore"))) for d in growing(40)]
    long = sent[12:]
    assert all(after[: len(before)] != before for before, after in pairwise(long))
    assert all(2000 - 250 < tokens(raws) <= 2000 for raws in long), "within one turn of the budget"


@pytest.mark.parametrize("price", [None, CHEAP_READS], ids=["no price", "price"])
def test_below_what_is_ever_cached_the_budget_is_used_up(price: Price | None) -> None:
    for document in list(growing(30))[8:]:
        assert 1000 - 250 < tokens(elements(Desk(price).send(document, Config(budget=1000)))) <= 1000


def test_a_model_without_a_cache_is_cut_to_the_budget() -> None:
    outcome = Desk(NO_CACHE).send(list(growing(30))[-1], Config(budget=2000))
    assert 2000 - 250 < tokens(elements(outcome)) <= 2000


def test_what_is_cached_is_not_cut_where_that_costs_more() -> None:
    desk = Desk(CHEAP_READS)
    outcomes = []
    for document in growing(30):
        outcomes.append(desk.send(document, Config(budget=2000)))
        desk.clock.advance(20)
        assert outcomes[-1].document is document
    assert outcomes[-1].status is StepStatus.SKIPPED
    assert outcomes[-1].reason == "the prefix is likely cached: trimming would cost more"


def test_once_the_cache_is_cold_it_is_cut() -> None:
    desk = Desk(CHEAP_READS)
    documents = list(growing(30))
    for document in documents[:-1]:
        desk.send(document, Config(budget=2000))
    desk.clock.advance(601)
    outcome = desk.send(documents[-1], Config(budget=2000))
    assert outcome.status is StepStatus.APPLIED
    assert tokens(elements(outcome)) <= 1500
    assert float(dict(outcome.detail)["saved_usd"]) > 0


def test_what_was_cut_before_is_cut_alike_while_it_is_cached() -> None:
    desk = Desk(CHEAP_READS)
    documents = list(growing(60))
    first = outcome = desk.send(documents[30], Config(budget=2000))
    for document in documents[31:45]:
        desk.clock.advance(60)
        outcome = desk.send(document, Config(budget=2000))
        assert elements(outcome)[: len(elements(first))] == elements(first)
    assert outcome.reason == "the prefix is likely cached: trimming would cost more"
    assert dict(outcome.detail)["over"] == tokens(elements(outcome)) - 2000


def test_a_long_conversation_is_cut_in_spite_of_the_cache_when_even_cached_reads_cost_more() -> None:
    desk = Desk(HALF_PRICE_READS)
    reasons = [desk.send(document, Config(budget=2000)).reason for document in growing(30)]
    first_cut = next(n for n in range(10, 30) if not reasons[n])
    # Reading N tokens at half price against about 1300 at the full one: it turns where N is about 2600.
    assert 11 <= first_cut <= 13
    assert reasons[10] == "the prefix is likely cached: trimming would cost more"


def test_the_long_context_cliff_outweighs_the_cache() -> None:
    steep = Price(CHEAP_READS.standard, long_context=LongContext(3000, 20.0, 1.5), cache=CACHE)
    desk = Desk(steep)
    outcomes = [desk.send(document, Config(budget=2000)) for document in growing(20)]
    assert any(outcome.status is StepStatus.SKIPPED for outcome in outcomes)
    assert all(tokens(elements(outcome)) <= 3000 for outcome in outcomes)


def test_another_caller_has_no_warm_cache() -> None:
    desk = Desk(CHEAP_READS)
    documents = list(growing(30))
    desk.send(documents[-2], Config(budget=20_000))
    context = StepContext(
        CHAT,
        "m",
        "openai",
        FixedCounter(),
        prices=OnePrice(CHEAP_READS),
        prefixes=desk.memory.scoped(b"t" * 16),
    )
    outcome = trim_history.apply(documents[-1], Config(budget=2000), context)
    assert outcome.status is StepStatus.APPLIED


def test_other_tools_mean_another_prefix() -> None:
    desk = Desk(CHEAP_READS)
    documents = list(growing(30))
    desk.send(documents[-2].set("tools", b'[{"type":"function"}]'), Config(budget=20_000))
    assert desk.send(documents[-1], Config(budget=2000)).status is StepStatus.APPLIED


def marked(document: Document) -> Document:
    """Put the caller's own cache marker on the last message."""
    messages = json.loads(document.to_bytes())["messages"][1:]
    marker = {"cache_control": {"type": "ephemeral"}}
    messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"], **marker}]
    return body(model="m", system="be kind", messages=messages)


def test_the_callers_markers_count_as_cached() -> None:
    document = marked(list(growing(30))[-1])
    outcome = Desk(MARKED).send(document, Config(budget=2000), MESSAGES)
    assert outcome.reason == "the prefix is likely cached: trimming would cost more"


def test_without_markers_nothing_is_cached_where_markers_are_needed() -> None:
    desk = Desk(MARKED)
    outcomes = []
    for document in growing(30):
        messages = json.loads(document.to_bytes())["messages"][1:]
        outcomes.append(desk.send(body(model="m", messages=messages), Config(budget=2000), MESSAGES))
    assert outcomes[-1].status is StepStatus.APPLIED


def test_nothing_is_claimed_without_a_price() -> None:
    outcome = Desk(None).send(list(growing(30))[-1], Config(budget=2000))
    assert outcome.sent is None
    assert [name for name, _ in outcome.detail] == ["saved", "dropped"]


class Provider:
    """Bills requests: a cache that holds every prefix it was sent, while it lives."""

    def __init__(self, price: Price) -> None:
        self._price = price
        self._sent: list[tuple[float, tuple[bytes, ...]]] = []

    def bill(self, now: float, raws: tuple[bytes, ...]) -> float:
        assert self._price.cache is not None
        known = 0
        for at, before in self._sent:
            if at >= now - self._price.cache.lifetime_seconds:
                shared = 0
                while shared < min(len(before), len(raws)) and before[shared] == raws[shared]:
                    shared += 1
                known = max(known, tokens(raws[:shared]))
        self._sent.append((now, raws))
        total = tokens(raws)
        least = self._price.cache.minimum_tokens
        cached = known if known >= least else 0
        rates = self._price.standard
        new = rates.cache_write if total >= least else rates.input
        return cached * rates.cached + (total - cached) * new


@pytest.mark.parametrize("price", [CHEAP_READS, HALF_PRICE_READS], ids=["tenth", "half"])
@pytest.mark.parametrize("seed", range(12))
def test_the_bill_of_a_conversation_is_never_higher(price: Price, seed: int) -> None:
    chance = Random(seed)
    desk = Desk(price)
    plain, weir = Provider(price), Provider(price)
    spent_plain = spent_weir = 0.0
    config = Config(
        budget=chance.choice((1400, 2000, 4000)),
        keep_last=chance.choice((1, 3)),
        keep_first=chance.choice((0, 2)),
    )
    for document in growing(chance.randint(25, 45), words=chance.choice((90, 150, 200))):
        now = desk.clock.monotonic()
        outcome = desk.send(document, config)
        spent_plain += plain.bill(now, document.array("messages") or ())
        spent_weir += weir.bill(now, elements(outcome))
        assert spent_weir <= spent_plain * 1.000001, "not even for a while"
        desk.clock.advance(chance.choice((5, 30, 30, 30, 900)))
    assert spent_weir < spent_plain
