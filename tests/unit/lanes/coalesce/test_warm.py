"""Bursts with a long prefix in common: who goes first, who waits for that, and never for long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.core.decision import ClosedBy, Strategy, Urgency
from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from proxy.core.exchange import Exchange
from proxy.core.price import Price, PromptCache, Rates
from proxy.dialects.chat import CHAT
from proxy.dialects.messages import MESSAGES
from proxy.lanes.coalesce.warm import WarmCarrier
from proxy.lanes.coalesce.warm_prefix import cacheable_prefix, may_be_warmed
from proxy.lanes.lane import Call
from proxy.policy.model import CoalescePolicy
from tests.support.direct_lane import DirectTwin, json_head, outgoing, pool, stream_head
from tests.support.replies import Reply

AUTOMATIC = PromptCache(is_automatic=True, minimum_tokens=1024, lifetime_seconds=300)
MARKED = PromptCache(is_automatic=False, minimum_tokens=1024, lifetime_seconds=300)
DEAR = Rates(input=2.0, output=8.0, cached=0.5, cache_write=2.0)
EVEN = Rates(input=2.0, output=8.0, cached=2.0, cache_write=2.0)
POLICY = CoalescePolicy(warm_max_wait_seconds=2.0)
LONG = "Answer with care. " * 400


class Prices:
    """A price for every model whose name begins so."""

    def __init__(self, cache: PromptCache | None = AUTOMATIC, rates: Rates = DEAR) -> None:
        self._price = Price(rates, cache=cache)

    def price(self, provider: str, model: str) -> Price | None:
        return self._price if model == "m" else None


def body(question: object, system: str = LONG, model: str = "m", **others: Any) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return json.dumps({"model": model, "messages": messages, **others}).encode()


class Bench:
    """A carrier over the direct lane's twin."""

    def __init__(self, loop: asyncio.AbstractEventLoop, prices: Prices | None = None) -> None:
        self.loop = loop
        self.clock = ManualClock()
        self.clock.advance(1.0)
        self.direct = DirectTwin(self.clock)
        self.carrier = WarmCarrier(loop, self.clock, self.direct, prices or Prices())
        self.pool = pool(loop, self.clock)
        self.exchanges: list[Exchange] = []

    def carry(self, raw: bytes, key: bytes = b"k", **how: Any) -> tuple[Call, Reply]:
        sent = outgoing(self.pool, raw, **{"policy": POLICY, **how})
        assert sent.pooling is not None
        exchange = Exchange(f"id{len(self.exchanges)}", self.clock.monotonic())
        self.exchanges.append(exchange)
        reply = Reply()
        return self.carrier.carry(key, sent.pooling, sent, exchange, reply), reply

    def burst(self, count: int, **others: Any) -> list[tuple[Call, Reply]]:
        return [self.carry(body(f"q{number}", **others)) for number in range(count)]

    def turn(self, seconds: float = 0.0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @property
    def sent(self) -> int:
        return len(self.direct.calls)


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    yield Bench(loop)
    loop.close()


def test_the_first_leaves_at_once_and_the_others_at_its_answer(bench: Bench) -> None:
    bench.burst(5)
    assert (bench.sent, bench.carrier.waiting) == (1, 4)
    bench.clock.advance(0.5)
    bench.direct.calls[0].head(json_head())
    bench.turn()
    assert (bench.sent, bench.carrier.waiting) == (5, 0)
    assert [call.outgoing.body for call in bench.direct.calls] == [body(f"q{n}") for n in range(5)]
    assert [exchange.queue_seconds for exchange in bench.exchanges] == [0, 0.5, 0.5, 0.5, 0.5]
    pooled = [exchange.pooled for exchange in bench.exchanges]
    assert [(each.size, each.closed_by, each.is_leader) for each in pooled if each is not None] == [
        (1, ClosedBy.IDLE, True),
        *[(1, ClosedBy.RETURNED, False)] * 4,
    ]
    assert {each.strategy for each in pooled if each is not None} == {Strategy.WARM}


def test_a_stream_has_begun_with_its_first_event(bench: Bench) -> None:
    (_, leader), _ = bench.burst(2, stream=True)
    call = bench.direct.calls[0]
    call.head(stream_head())
    bench.turn()
    assert bench.sent == 1
    call.data(b": hi\n\n", b"data: [DONE]\n\n")
    bench.turn()
    assert bench.sent == 2
    call.end()
    assert bytes(leader.body) == b": hi\n\ndata: [DONE]\n\n"
    assert leader.events == ["head", "body", "body", "ended"]


def test_a_prefix_known_to_be_cached_holds_nobody(bench: Bench) -> None:
    bench.burst(2)
    bench.direct.calls[0].answer(json_head(), b"{}")
    bench.turn()
    bench.burst(3)
    assert bench.sent == 5
    assert bench.exchanges[-1].pooled is not None
    assert not bench.exchanges[-1].pooled.is_leader
    assert bench.exchanges[-1].queue_seconds == 0


def test_what_the_provider_has_forgotten_is_led_again(bench: Bench) -> None:
    bench.burst(1)
    bench.direct.calls[0].answer(json_head(), b"{}")
    bench.clock.advance(301)
    bench.burst(3)
    assert (bench.sent, bench.carrier.waiting) == (2, 2)


def test_what_is_used_stays_cached(bench: Bench) -> None:
    bench.burst(1)
    bench.direct.calls[0].answer(json_head(), b"{}")
    for _ in range(3):
        bench.clock.advance(200)
        bench.burst(2)
    assert (bench.sent, bench.carrier.waiting) == (7, 0)


def test_nobody_waits_longer_than_allowed(bench: Bench) -> None:
    policy = CoalescePolicy(warm_max_wait_seconds=0.02)
    for number in range(3):
        bench.carry(body(number), policy=policy)
    bench.turn(0.05)
    assert bench.sent == 3
    assert {e.pooled.closed_by for e in bench.exchanges[1:] if e.pooled is not None} == {ClosedBy.MAX_WAIT}
    bench.direct.calls[0].head(json_head())
    bench.turn()
    assert bench.sent == 3


def test_a_leader_that_hangs_costs_one_wait_and_not_one_for_each_request(bench: Bench) -> None:
    policy = CoalescePolicy(warm_max_wait_seconds=0.02)
    bench.burst(1)
    bench.direct.calls[0].answer(json_head(), b"{}")
    bench.clock.advance(301)
    for number in range(3):
        bench.carry(body(number), policy=policy)
    bench.turn(0.05)
    assert (bench.sent, bench.carrier.waiting) == (4, 0)
    bench.direct.calls[2].answer(json_head(), b"{}")
    for number in range(3):
        bench.carry(body(f"later {number}"), policy=policy)
    assert (bench.sent, bench.carrier.waiting) == (7, 0), "the one that took over has warmed the prefix"
    assert bench.exchanges[2].pooled is not None
    assert bench.exchanges[2].pooled.closed_by is ClosedBy.MAX_WAIT


def test_leaders_that_hang_one_after_another_are_waited_for_no_more(bench: Bench) -> None:
    policy = CoalescePolicy(warm_max_wait_seconds=0.02)
    bench.carry(body("hangs"), policy=policy)
    bench.clock.advance(5)
    bench.carry(body("waits"), policy=policy)
    bench.turn(0.05)
    assert bench.sent == 2
    bench.carry(body("waits no more"), policy=policy)
    assert (bench.sent, bench.carrier.waiting) == (3, 0)


def test_nobody_waits_for_what_has_taken_too_long_before(bench: Bench) -> None:
    bench.burst(1)
    bench.clock.advance(5)
    bench.direct.calls[0].answer(json_head(), b"{}")
    bench.clock.advance(301)
    bench.burst(3)
    assert (bench.sent, bench.carrier.waiting) == (4, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"urgency": Urgency.INTERACTIVE},
        {"key": b"other"},
        {"raw": body("q", model="unknown")},
        {"raw": body("q", system="Short.")},
        {"raw": body("q", system="Other. " * 1000)},
        {"raw": body("q", tools=[{"type": "function"}])},
        {"raw": body("q", response_format={"type": "json_object"})},
    ],
)
def test_what_shares_no_prefix_or_must_not_wait_leaves_at_once(bench: Bench, change: dict[str, Any]) -> None:
    bench.burst(1)
    how = {"raw": body("q"), **change}
    raw = how.pop("raw")
    assert isinstance(raw, bytes)
    if how.get("urgency") is Urgency.INTERACTIVE:
        pooling = outgoing(bench.pool, raw, urgency=Urgency.INTERACTIVE).pooling
        assert pooling is not None
        assert not may_be_warmed(pooling)
        return
    bench.carry(raw, **how)
    assert bench.sent == 2


@pytest.mark.parametrize("prices", [Prices(cache=None), Prices(rates=EVEN)])
def test_where_nothing_is_saved_nobody_waits(prices: Prices) -> None:
    loop = asyncio.new_event_loop()
    bench = Bench(loop, prices)
    bench.burst(3)
    assert bench.sent == 3
    assert bench.exchanges[0].pooled is None
    loop.close()


def test_a_long_conversation_in_common_counts_like_a_system_text(bench: Bench) -> None:
    turns = [{"role": role, "content": "word " * 500} for _ in range(3) for role in ("user", "assistant")]
    for number in range(3):
        messages = [*turns, {"role": "user", "content": f"q{number}"}]
        bench.carry(json.dumps({"model": "m", "messages": messages}).encode())
    assert (bench.sent, bench.carrier.waiting) == (1, 2)


def test_a_warm_beginning_is_not_enough_reason_to_wait_for_little_more(bench: Bench) -> None:
    bench.burst(1)
    bench.direct.calls[0].answer(json_head(), b"{}")
    question = "a little more " * 10
    bench.carry(body(question))
    bench.carry(body(question))
    assert bench.sent == 3


def test_a_warm_beginning_with_much_more_in_common_is(bench: Bench) -> None:
    bench.burst(1)
    bench.direct.calls[0].answer(json_head(), b"{}")
    document = "much more of it " * 500
    bench.carry(body(document))
    bench.carry(body(document))
    assert (bench.sent, bench.carrier.waiting) == (2, 1)


# --- when the first one fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["fails", "is refused", "leaves"])
def test_the_next_goes_first_when_the_first_fails_and_after_that_all(bench: Bench, ends: str) -> None:
    pairs = bench.burst(5)

    def lose(number: int) -> None:
        call = bench.direct.calls[number]
        if ends == "fails":
            call.fail(ProxyError(UPSTREAM_CLOSED, "gone"))
        elif ends == "is refused":
            call.answer(json_head(status=500), b"{}")
        else:
            pairs[number][0].cancel()

    lose(0)
    assert (bench.sent, bench.carrier.waiting) == (2, 3)
    lose(1)
    assert (bench.sent, bench.carrier.waiting) == (5, 0)
    for call in bench.direct.calls[2:]:
        call.answer(json_head(), b"{}")
    assert all(reply.events[-1] == "ended" and reply.faults == [] for _, reply in pairs[2:])


def test_a_second_leader_warms_for_the_rest(bench: Bench) -> None:
    bench.burst(4)
    bench.direct.calls[0].fail(ProxyError(UPSTREAM_CLOSED, "gone"))
    bench.direct.calls[1].head(json_head())
    bench.turn()
    assert bench.sent == 4


def test_the_longest_wait_counts_from_arrival(bench: Bench) -> None:
    bench.burst(3)
    bench.clock.advance(3.0)
    bench.direct.calls[0].fail(ProxyError(UPSTREAM_CLOSED, "gone"))
    # The second goes first, and for the third nothing is left of its two seconds.
    bench.turn(0.01)
    assert (bench.sent, bench.carrier.waiting) == (3, 0)


def test_who_leaves_while_waiting_is_never_sent(bench: Bench) -> None:
    pairs = bench.burst(3)
    pairs[1][0].cancel()
    bench.direct.calls[0].head(json_head())
    bench.turn()
    assert bench.sent == 2
    assert pairs[1][1].events == []


def test_leaving_between_the_first_byte_and_the_release_sends_nothing(bench: Bench) -> None:
    pairs = bench.burst(3)
    bench.direct.calls[0].head(json_head())
    pairs[2][0].cancel()
    bench.turn()
    assert bench.sent == 2


def test_the_first_one_leaving_after_its_beginning_changes_nothing(bench: Bench) -> None:
    pairs = bench.burst(3)
    bench.direct.calls[0].head(json_head())
    pairs[0][0].cancel()
    bench.turn()
    assert bench.direct.calls[0].is_cancelled
    assert bench.sent == 3


def test_pausing_before_the_request_has_left_holds_its_answer(bench: Bench) -> None:
    pairs = bench.burst(2)
    pairs[1][0].pause()
    bench.direct.calls[0].head(json_head())
    bench.turn()
    assert bench.direct.calls[1].is_paused
    pairs[1][0].resume()
    assert not bench.direct.calls[1].is_paused


def test_a_shutdown_lets_everybody_go(bench: Bench) -> None:
    bench.burst(3)
    bench.carrier.flush()
    assert (bench.sent, bench.carrier.waiting) == (3, 0)
    assert bench.exchanges[1].pooled is not None
    assert bench.exchanges[1].pooled.closed_by is ClosedBy.SHUTDOWN
    bench.burst(2)
    assert bench.sent == 5


# --- what a prefix is -----------------------------------------------------------------------------------


def prefix_of(bench: Bench, raw: bytes, cache: PromptCache, dialect: Any = CHAT) -> tuple[bytes, ...]:
    pooling = outgoing(bench.pool, raw, dialect).pooling
    assert pooling is not None
    found = cacheable_prefix(b"k", pooling, cache)
    return () if found is None else found.digests


def test_without_markers_a_marked_cache_has_only_the_whole_request(bench: Bench) -> None:
    assert len(prefix_of(bench, body("q"), AUTOMATIC)) == 2
    assert len(prefix_of(bench, body("q"), MARKED)) == 1


def test_marked_system_text_is_a_prefix_of_its_own(bench: Bench) -> None:
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    bodies = [
        json.dumps({"model": "m", "system": system, "messages": [{"role": "user", "content": q}]}).encode()
        for q in ("one", "two")
    ]
    first, second = (prefix_of(bench, raw, MARKED, MESSAGES) for raw in bodies)
    assert len(first) == 2
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_models_with_breakpoints_cache_what_is_marked(bench: Bench) -> None:
    pooling = outgoing(bench.pool, body("q", model="gpt-5.6")).pooling
    assert pooling is not None
    found = cacheable_prefix(b"k", pooling, AUTOMATIC)
    assert found is not None
    assert len(found.digests) == 1


def test_where_one_message_ends_matters(bench: Bench) -> None:
    def raw(*texts: str) -> bytes:
        messages = [{"role": "user", "content": text} for text in texts]
        return json.dumps({"model": "m", "messages": messages}, separators=(",", ":")).encode()

    one, other = raw(LONG, "ab", "c"), raw(LONG, "a", "bc")
    first, second = prefix_of(bench, one, AUTOMATIC), prefix_of(bench, other, AUTOMATIC)
    assert first[0] == second[0]
    assert set(first[1:]).isdisjoint(second[1:])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("come"), st.integers(0, 3)),
            st.tuples(st.sampled_from(["leave", "begin", "fail", "end"]), st.integers(0, 20)),
            st.tuples(st.just("turn"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_every_request_is_sent_at_most_once_and_ends_once(steps: list[tuple[str, int]]) -> None:
    loop = asyncio.new_event_loop()
    try:
        bench = Bench(loop)
        pairs: list[tuple[Call, Reply]] = []
        begun: set[int] = set()
        over: set[int] = set()
        gone: set[int] = set()

        def act(name: str, number: int) -> None:
            call = bench.direct.calls[number]
            if number in over or call.is_cancelled:
                return
            if name == "begin" and number not in begun:
                begun.add(number)
                call.head(json_head())
            elif name == "fail":
                over.add(number)
                call.fail(ProxyError(UPSTREAM_CLOSED, "gone"))
            elif name == "end":
                if number not in begun:
                    begun.add(number)
                    call.head(json_head())
                over.add(number)
                call.data(b"{}")
                call.end()

        for name, value in steps:
            if name == "come":
                pairs.append(bench.carry(body(len(pairs), system=LONG + str(value))))
            elif name == "leave" and pairs:
                gone.add(value % len(pairs))
                pairs[value % len(pairs)][0].cancel()
            elif name == "turn" or not bench.direct.calls:
                bench.turn()
            else:
                act(name, value % bench.sent)
        for _ in range(len(pairs) + 1):
            for number in range(bench.sent):
                act("end", number)
            bench.turn()
        bodies = [call.outgoing.body for call in bench.direct.calls]
        assert len(set(bodies)) == len(bodies)
        assert bench.carrier.waiting == 0
        for number, (_, reply) in enumerate(pairs):
            assert reply.faults == []
            assert number in gone or reply.is_over
    finally:
        loop.close()
