"""Identical sampling requests leave together: who waits, whose choice is whose, who pays what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.core.decision import ClosedBy, Strategy
from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from proxy.core.exchange import Exchange
from proxy.core.upstream import Provider
from proxy.dialects.completions import COMPLETIONS
from proxy.lanes.coalesce.sample import SampleCarrier
from proxy.lanes.coalesce.sample_choices import MOST_CHOICES, deal_choices, may_sample
from proxy.lanes.lane import Call
from proxy.policy.model import CoalescePolicy
from tests.support.direct_lane import DirectTwin, json_head, outgoing, pool
from tests.support.replies import Reply

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 1.50}'


def answer(texts: list[str], **others: Any) -> bytes:
    """Return an answer with one choice for each text; its bill is in whole tens."""
    tokens = {"prompt_tokens": 31, "completion_tokens": 100, "total_tokens": 131}
    details = {"prompt_tokens_details": {"cached_tokens": 7}}
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate(texts)
    ]
    return json.dumps({"id": "c-1", "choices": choices, "usage": {**tokens, **details}, **others}).encode()


class Bench:
    """A carrier over the direct lane's twin."""

    def __init__(self, loop: asyncio.AbstractEventLoop, provider: Provider = Provider.OPENAI) -> None:
        self.loop = loop
        self.clock = ManualClock()
        self.clock.advance(1.0)
        self.direct = DirectTwin(self.clock)
        self.carrier = SampleCarrier(loop, self.clock, self.direct)
        self.pool = pool(loop, self.clock, provider)
        self.exchanges: list[Exchange] = []

    def carry(self, policy: CoalescePolicy | None = None, key: bytes = b"k") -> tuple[Call, Reply]:
        sent = outgoing(
            self.pool, BODY, policy=policy, headers=((b"traceparent", b"00-%d" % len(self.exchanges)),)
        )
        assert sent.pooling is not None
        exchange = Exchange(f"id{len(self.exchanges)}", self.clock.monotonic())
        self.exchanges.append(exchange)
        reply = Reply()
        return self.carrier.carry(key, sent.pooling, sent, exchange, reply), reply

    def wait(self, seconds: float) -> None:
        """Let the loop's own time pass."""
        self.loop.run_until_complete(asyncio.sleep(seconds))


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    yield Bench(loop)
    loop.close()


def text_of(reply: Reply) -> str:
    assert reply.faults == []
    (choice,) = json.loads(reply.body)["choices"]
    assert choice["index"] == 0
    return str(choice["message"]["content"])


def test_a_request_alone_is_sent_as_it_came(bench: Bench) -> None:
    _, reply = bench.carry()
    call = bench.direct.calls[0]
    assert call.outgoing.body == BODY
    call.answer(json_head(), b'{"odd": 1}')
    assert bytes(reply.body) == b'{"odd": 1}'
    assert bench.carrier.pools == 0


def test_those_that_come_meanwhile_leave_as_one(bench: Bench) -> None:
    replies = [bench.carry()[1] for _ in range(4)]
    assert len(bench.direct.calls) == 1
    bench.clock.advance(0.01)
    bench.direct.calls[0].answer(json_head(), answer(["first"]))
    sampled = bench.direct.calls[1]
    assert sampled.outgoing.body == BODY[:-1] + b',"n":3}'
    assert b"traceparent" not in sampled.outgoing.head.fields
    sampled.answer(json_head((b"X-Request-Id", b"req"), (b"Set-Cookie", b"a=b")), answer(["a", "b", "c"]))
    assert [text_of(reply) for reply in replies] == ["first", "a", "b", "c"]
    assert [reply.heads[0].fields[b"x-request-id"] for reply in replies[1:]] == [b"id1", b"id2", b"id3"]
    assert not any(b"set-cookie" in reply.heads[0].fields for reply in replies[1:])
    assert len({json.loads(reply.body)["id"] for reply in replies[1:]}) == 3
    pooled = [exchange.pooled for exchange in bench.exchanges]
    assert [(each.size, each.closed_by, each.is_leader) for each in pooled if each is not None] == [
        (1, ClosedBy.IDLE, True),
        (3, ClosedBy.RETURNED, True),
        (3, ClosedBy.RETURNED, False),
        (3, ClosedBy.RETURNED, False),
    ]
    assert {each.strategy for each in pooled if each is not None} == {Strategy.SAMPLE}
    assert [round(exchange.queue_seconds, 3) for exchange in bench.exchanges] == [0, 0.01, 0.01, 0.01]
    assert bench.carrier.pools == 0


def test_the_parts_of_the_bill_add_up(bench: Bench) -> None:
    bench.carry()
    replies = [bench.carry()[1] for _ in range(3)]
    bench.direct.calls[0].answer(json_head(), answer(["x"]))
    bench.direct.calls[1].answer(json_head(), answer(["a" * 10, "b" * 20, "c" * 70]))
    usages = [json.loads(reply.body)["usage"] for reply in replies]
    assert [usage["completion_tokens"] for usage in usages] == [10, 20, 70]
    assert [usage["prompt_tokens"] for usage in usages] == [11, 10, 10]
    assert sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) == 7
    assert all(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in usages)


def test_waiting_ends_with_max_wait(bench: Bench) -> None:
    policy = CoalescePolicy(max_wait_seconds=0.01)
    for _ in range(3):
        bench.carry(policy)
    bench.wait(0.05)
    assert [call.outgoing.body for call in bench.direct.calls] == [BODY, BODY[:-1] + b',"n":2}']
    assert bench.exchanges[1].pooled is not None
    assert bench.exchanges[1].pooled.closed_by is ClosedBy.MAX_WAIT


def test_no_call_asks_for_more_than_the_provider_gives() -> None:
    loop = asyncio.new_event_loop()
    bench = Bench(loop, Provider.GEMINI)
    for _ in range(1 + 8 + 2):
        bench.carry()
    assert [call.outgoing.body for call in bench.direct.calls] == [BODY, BODY[:-1] + b',"n":8}']
    bench.carrier.flush()
    assert bench.direct.calls[2].outgoing.body == BODY[:-1] + b',"n":2}'
    bench.carry()
    assert bench.direct.calls[3].outgoing.body == BODY
    loop.close()


@pytest.mark.parametrize(
    "refusal",
    [
        (400, b'{"error":{"message":"n is not supported"}}'),
        (422, b"{}"),
        (200, answer(["just one"])),
        (200, answer(["a", "b", "c"], choices=[{"index": 0}, {"index": 0}, {"index": 1}])),
        (200, b"no json"),
    ],
)
def test_what_cannot_be_dealt_out_is_asked_for_singly_once(bench: Bench, refusal: tuple[int, bytes]) -> None:
    bench.carry()
    replies = [bench.carry()[1] for _ in range(3)]
    bench.direct.calls[0].answer(json_head(), answer(["x"]))
    status, body = refusal
    bench.direct.calls[1].answer(json_head(status=status), body)
    singles = bench.direct.calls[2:]
    assert [call.outgoing.body for call in singles] == [BODY] * 3
    for number, call in enumerate(singles):
        call.answer(json_head(), answer([f"own {number}"]))
    assert [text_of(reply) for reply in replies] == ["own 0", "own 1", "own 2"]
    assert len(bench.direct.calls) == 5
    # For a while nobody waits for what this upstream does not give.
    for _ in range(3):
        bench.carry()
    assert [call.outgoing.body for call in bench.direct.calls[5:]] == [BODY] * 3


def test_another_error_is_everybodys_and_not_asked_for_again(bench: Bench) -> None:
    bench.carry()
    replies = [bench.carry()[1] for _ in range(3)]
    bench.direct.calls[0].answer(json_head(), answer(["x"]))
    bench.direct.calls[1].answer(json_head((b"Retry-After", b"3"), status=429), b"{}")
    assert [(reply.heads[0].status, reply.heads[0].fields[b"retry-after"]) for reply in replies] == [
        (429, b"3")
    ] * 3
    assert len(bench.direct.calls) == 2


def test_a_call_that_cannot_be_made_leaves_each_its_own(bench: Bench) -> None:
    bench.carry()
    for _ in range(2):
        bench.carry()
    bench.direct.raises = RuntimeError("on purpose")
    bench.direct.raises_once = True
    bench.direct.calls[0].answer(json_head(), answer(["x"]))
    assert [call.outgoing.body for call in bench.direct.calls] == [BODY] * 3
    assert bench.carrier.pools == 0


def test_a_failure_is_told_to_everybody_once(bench: Bench) -> None:
    bench.carry()
    replies = [bench.carry()[1] for _ in range(3)]
    bench.direct.calls[0].answer(json_head(), answer(["x"]))
    bench.direct.calls[1].fail(ProxyError(UPSTREAM_CLOSED, "gone"))
    assert [reply.events for reply in replies] == [["failed upstream_closed"]] * 3
    assert bench.carrier.pools == 0


def test_who_leaves_before_is_not_asked_for(bench: Bench) -> None:
    bench.carry()
    calls = [bench.carry()[0] for _ in range(3)]
    calls[1].cancel()
    bench.direct.calls[0].answer(json_head(), answer(["x"]))
    assert bench.direct.calls[1].outgoing.body == BODY[:-1] + b',"n":2}'


def test_who_leaves_during_the_call_leaves_the_others_theirs(bench: Bench) -> None:
    bench.carry()
    pairs = [bench.carry() for _ in range(3)]
    bench.direct.calls[0].answer(json_head(), answer(["x"]))
    pairs[0][0].cancel()
    bench.direct.calls[1].answer(json_head(), answer(["a", "b", "c"]))
    assert pairs[0][1].events == []
    assert [text_of(reply) for _, reply in pairs[1:]] == ["b", "c"]


def test_the_last_to_leave_ends_the_call(bench: Bench) -> None:
    bench.carry()
    calls = [bench.carry()[0] for _ in range(2)]
    bench.direct.calls[0].answer(json_head(), answer(["x"]))
    for call in calls:
        assert not bench.direct.calls[1].is_cancelled
        call.cancel()
    assert bench.direct.calls[1].is_cancelled
    assert bench.carrier.pools == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", True),
        ('"n":1', True),
        ('"n":null,"tools":null,"logprobs":false', True),
        ('"temperature":0', True),
        ('"n":2', False),
        ('"stream":true', False),
        ('"seed":1', False),
        ('"prediction":{"type":"content"}', False),
        ('"tools":[{}]', False),
        ('"logprobs":true', False),
        ('"modalities":["audio"]', False),
        ('"store":true', False),
        ('"reasoning_effort":"high"', False),
    ],
)
def test_only_plain_samples_become_choices(bench: Bench, fields: str, expected: bool) -> None:
    body = f'{{"model":"m","messages":[],{fields}}}'.replace(",}", "}").encode()
    pooling = outgoing(bench.pool, body).pooling
    assert pooling is not None
    assert may_sample(pooling, Provider.OPENAI) is expected
    assert not may_sample(pooling, Provider.ANTHROPIC)
    completion = outgoing(bench.pool, body, COMPLETIONS).pooling
    assert completion is not None
    assert not may_sample(completion, Provider.OPENAI)


def test_nobody_is_listed_who_gives_one_choice_only() -> None:
    assert all(most > 1 for most in MOST_CHOICES.values())


@given(
    st.lists(st.text(max_size=20), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
)
def test_choices_in_any_order_find_their_callers(
    texts: list[str], random: Any, prompt_tokens: int, output_tokens: int
) -> None:
    value = json.loads(answer(texts))
    random.shuffle(value["choices"])
    value["usage"] = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    dealt = deal_choices(json.dumps(value).encode(), len(texts))
    assert dealt is not None
    own = [json.loads(body) for body in dealt]
    assert [each["choices"][0]["message"]["content"] for each in own] == texts
    assert sum(each["usage"]["prompt_tokens"] for each in own) == prompt_tokens
    assert sum(each["usage"]["completion_tokens"] for each in own) == output_tokens
    assert deal_choices(json.dumps(value).encode(), len(texts) + 1) is None
