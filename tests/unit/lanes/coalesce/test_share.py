"""Identical requests share one call: who joins, who gets what, who harms whom."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.core.clock import ManualClock
from proxy.core.decision import ClosedBy, StepReport, StepStatus, Strategy
from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from proxy.core.exchange import Exchange
from proxy.lanes.coalesce.share import ShareCarrier
from proxy.lanes.coalesce.share_rules import ShareLimits
from proxy.lanes.lane import Call, Outgoing, Rewrite
from proxy.lanes.take_back import ORIGINAL
from tests.support.direct_lane import DirectTwin, json_head, outgoing, pool, stream_head
from tests.support.replies import Reply

PLAIN = b'{"model":"m","temperature":0,"messages":[{"role":"user","content":"hi"}]}'
STREAM = PLAIN[:-1] + b',"stream":true,"stream_options":{"include_usage":true}}'
SILENT = PLAIN[:-1] + b',"stream":true}'
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }
).encode()


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


EVENTS = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk({}, "stop"),
    event({"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}),
    b"data: [DONE]\n\n",
]


class Bench:
    """A carrier over the direct lane's twin."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = ManualClock()
        self.clock.advance(1.0)
        self.direct = DirectTwin(self.clock)
        self.carrier = ShareCarrier(loop, self.clock, self.direct)
        self.pool = pool(loop, self.clock)
        self.exchanges: list[Exchange] = []

    def limit(self, **limits: int) -> None:
        """Go on with tighter limits."""
        self.carrier = ShareCarrier(self.loop, self.clock, self.direct, ShareLimits(**limits))

    def carry(self, body: bytes = PLAIN, key: bytes = b"k", **how: Any) -> tuple[Call, Reply]:
        return self.carry_planned(outgoing(self.pool, body, **how), key)

    def carry_planned(self, planned: Outgoing, key: bytes = b"k") -> tuple[Call, Reply]:
        assert planned.pooling is not None
        exchange = Exchange(f"id{len(self.exchanges)}", self.clock.monotonic())
        self.exchanges.append(exchange)
        reply = Reply()
        return self.carrier.carry(key, planned.pooling, planned, exchange, reply), reply

    def settle(self) -> None:
        """Run what was put off to the next turn of the loop."""
        self.loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    yield Bench(loop)
    loop.close()


def text_of(reply: Reply) -> str:
    assert reply.faults == []
    return str(json.loads(reply.body)["choices"][0]["message"]["content"])


def test_identical_requests_make_one_call(bench: Bench) -> None:
    replies = [bench.carry()[1] for _ in range(50)]
    assert len(bench.direct.calls) == 1
    bench.direct.calls[0].answer(json_head(), ANSWER[:40], ANSWER[40:])
    assert all(bytes(reply.body) == ANSWER and reply.events[-1] == "ended" for reply in replies)
    pooled = [exchange.pooled for exchange in bench.exchanges]
    assert [each.is_leader for each in pooled if each is not None] == [True] + [False] * 49
    assert {(e.strategy, e.size, e.closed_by) for e in pooled if e is not None} == {
        (Strategy.SHARE, 50, ClosedBy.IDLE)
    }


def test_another_key_makes_another_call(bench: Bench) -> None:
    bench.carry(key=b"a")
    bench.carry(key=b"b")
    assert len(bench.direct.calls) == 2


def test_a_request_after_the_end_makes_a_call_of_its_own(bench: Bench) -> None:
    bench.carry()
    bench.direct.calls[0].answer(json_head(), ANSWER)
    bench.carry()
    assert len(bench.direct.calls) == 2
    assert bench.carrier.calls == 1


def test_the_first_callers_request_is_what_is_sent(bench: Bench) -> None:
    planned = outgoing(bench.pool, PLAIN, headers=((b"traceparent", b"00-1"),))
    bench.carry_planned(planned)
    assert bench.direct.calls[0].outgoing is planned


def test_the_call_goes_on_without_its_first_caller(bench: Bench) -> None:
    first, gone = bench.carry()
    _, stays = bench.carry()
    first.cancel()
    call = bench.direct.calls[0]
    assert not call.is_cancelled
    call.answer(json_head(), ANSWER)
    assert gone.events == []
    assert bytes(stays.body) == ANSWER


def test_the_call_is_booked_on_one_of_those_that_stay(bench: Bench) -> None:
    first, _ = bench.carry()
    bench.carry()
    bench.carry()
    first.cancel()
    bench.direct.calls[0].answer(json_head(), ANSWER)
    pooled = [exchange.pooled for exchange in bench.exchanges]
    assert [each.is_leader for each in pooled if each is not None] == [False, True, False]


def test_the_last_caller_takes_the_call_with_it(bench: Bench) -> None:
    calls = [bench.carry()[0] for _ in range(3)]
    for call in calls[:2]:
        call.cancel()
    assert not bench.direct.calls[0].is_cancelled
    calls[2].cancel()
    assert bench.direct.calls[0].is_cancelled
    assert bench.carrier.calls == 0
    assert bench.carrier.kept_bytes == 0


def test_leaving_midway_changes_nothing_for_the_others(bench: Bench) -> None:
    first, gone = bench.carry(STREAM)
    _, stays = bench.carry(STREAM)
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(*EVENTS[:2])
    first.cancel()
    call.data(*EVENTS[2:])
    call.end()
    assert bytes(gone.body) == b"".join(EVENTS[:2])
    assert bytes(stays.body) == b"".join(EVENTS)
    assert stays.events[-1] == "ended"


def test_a_late_joiner_gets_the_stream_from_its_beginning(bench: Bench) -> None:
    _, first = bench.carry(STREAM)
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(*EVENTS[:3])
    _, late = bench.carry(STREAM)
    assert late.events == []
    call.data(EVENTS[3])
    bench.settle()
    call.data(*EVENTS[4:])
    call.end()
    assert bytes(late.body) == bytes(first.body) == b"".join(EVENTS)
    assert late.events[0] == "head"
    assert late.faults == []


def test_a_late_joiner_counts_as_sent_when_it_joined(bench: Bench) -> None:
    bench.carry(STREAM)
    call = bench.direct.calls[0]
    call.head(stream_head())
    bench.clock.advance(3.0)
    bench.carry(STREAM)
    assert [exchange.sent_at for exchange in bench.exchanges] == [1.0, 4.0]


def test_waiting_for_the_calls_connection_is_each_callers_own(bench: Bench) -> None:
    bench.carry()
    bench.clock.advance(1.0)
    bench.carry()
    bench.clock.advance(1.0)
    call = bench.direct.calls[0]
    call.exchange.sent_at = bench.clock.monotonic()
    call.exchange.queue_seconds, call.exchange.connect_seconds = 0.5, 1.5
    call.answer(json_head(), ANSWER)
    first, second = bench.exchanges
    assert (first.queue_seconds, first.connect_seconds) == (0.5, 1.5)
    assert (second.queue_seconds, second.connect_seconds) == (0.5, 0.5)


def test_nobody_joins_a_call_that_has_said_too_much(bench: Bench) -> None:
    bench.limit(kept=100)
    _, first = bench.carry(STREAM)
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(b"x" * 101)
    bench.carry(STREAM)
    assert len(bench.direct.calls) == 2
    call.data(b"y")
    call.end()
    assert bytes(first.body) == b"x" * 101 + b"y"


def test_kept_memory_is_given_back(bench: Bench) -> None:
    bench.carry(STREAM)
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(*EVENTS)
    assert bench.carrier.kept_bytes >= len(b"".join(EVENTS))
    call.end()
    assert bench.carrier.kept_bytes == 0


def test_a_stream_is_answered_from_a_complete_answer(bench: Bench) -> None:
    bench.carry(PLAIN)
    _, streamed = bench.carry(STREAM)
    _, silent = bench.carry(SILENT)
    bench.direct.calls[0].answer(json_head((b"Content-Length", b"%d" % len(ANSWER))), ANSWER)
    assert len(bench.direct.calls) == 1
    assert streamed.heads[0].fields[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in streamed.heads[0].fields
    assert b'"usage":{"prompt_tokens":9' in streamed.body
    assert b"usage" not in silent.body
    assert streamed.body.endswith(b"data: [DONE]\n\n")


def test_a_complete_answer_is_put_together_from_a_stream(bench: Bench) -> None:
    bench.carry(STREAM)
    _, early = bench.carry(PLAIN)
    call = bench.direct.calls[0]
    call.head(stream_head())
    whole = b"".join(EVENTS)
    call.data(whole[:70])
    _, late = bench.carry(PLAIN)
    call.data(whole[70:150], whole[150:])
    call.end()
    assert len(bench.direct.calls) == 1
    assert text_of(early) == text_of(late) == "Hello"
    assert json.loads(early.body)["usage"] == {"prompt_tokens": 9, "completion_tokens": 1}
    assert early.heads[0].content_length == len(early.body)
    assert early.heads[0].fields[b"content-type"] == b"application/json"


def test_a_stream_that_tells_no_usage_serves_no_complete_answers(bench: Bench) -> None:
    bench.carry(SILENT)
    bench.carry(PLAIN)
    bench.carry(STREAM)
    assert len(bench.direct.calls) == 3 - 1  # the stream with usage is served from the complete answer


def test_compressed_answers_are_read_for_streams(bench: Bench) -> None:
    bench.carry(PLAIN)
    _, streamed = bench.carry(STREAM)
    bench.direct.calls[0].answer(json_head((b"Content-Encoding", b"gzip")), gzip.compress(ANSWER))
    assert b'"content":"Hello"' in streamed.body
    assert b"content-encoding" not in streamed.heads[0].fields


def test_streams_take_calls_of_their_own_from_answers_that_cannot_be_read(bench: Bench) -> None:
    _, plain = bench.carry(PLAIN)
    bench.clock.advance(1.0)
    _, streamed = bench.carry(STREAM)
    bench.clock.advance(2.0)
    bench.direct.calls[0].answer(json_head((b"Content-Encoding", b"br")), b"\x0b")
    assert bytes(plain.body) == b"\x0b"
    assert len(bench.direct.calls) == 2
    assert bench.exchanges[1].queue_seconds == 2.0
    assert bench.exchanges[1].pooled is not None
    assert bench.exchanges[1].pooled.is_leader
    bench.direct.calls[1].answer(stream_head(), *EVENTS)
    assert bytes(streamed.body) == b"".join(EVENTS)


def test_an_answer_nobody_understands_goes_to_streams_as_it_is(bench: Bench) -> None:
    bench.carry(PLAIN)
    _, streamed = bench.carry(STREAM)
    bench.direct.calls[0].answer(json_head(), b'{"odd":1}')
    assert bytes(streamed.body) == b'{"odd":1}'
    assert streamed.heads[0].fields[b"content-type"] == b"application/json"


@pytest.mark.parametrize("first", [PLAIN, STREAM])
def test_a_refusal_goes_to_everyone_once_as_it_came(bench: Bench, first: bytes) -> None:
    replies = [bench.carry(body)[1] for body in (first, PLAIN, STREAM)]
    refusal = b'{"error":{"message":"slow down"}}'
    bench.direct.calls[0].answer(json_head((b"Retry-After", b"7"), status=429), refusal)
    assert len(bench.direct.calls) == 1
    for reply in replies:
        assert [head.status for head in reply.heads] == [429]
        assert reply.heads[0].fields[b"retry-after"] == b"7"
        assert bytes(reply.body) == refusal


def test_nobody_joins_a_refusal(bench: Bench) -> None:
    bench.carry()
    bench.direct.calls[0].head(json_head(status=500))
    bench.carry()
    assert len(bench.direct.calls) == 2


@pytest.mark.parametrize("body", [PLAIN, STREAM])
def test_a_failure_before_any_byte_is_told_once_to_each(bench: Bench, body: bytes) -> None:
    replies = [bench.carry(each)[1] for each in (body, PLAIN, STREAM)]
    error = ProxyError(UPSTREAM_CLOSED, "gone", retryable=True)
    bench.direct.calls[0].fail(error)
    assert [reply.error for reply in replies] == [error] * 3
    assert len(bench.direct.calls) == 1
    assert all(reply.faults == [] for reply in replies)


def test_a_failure_while_the_call_is_made_is_told(bench: Bench) -> None:
    bench.direct.fails_with = ProxyError(UPSTREAM_CLOSED, "no")
    call, reply = bench.carry()
    assert reply.error is not None
    call.cancel()
    assert bench.carrier.calls == 0


def test_a_call_that_cannot_be_made_is_joined_by_nobody(bench: Bench) -> None:
    bench.direct.raises = RuntimeError("on purpose")
    with pytest.raises(RuntimeError):
        bench.carry()
    bench.direct.raises = None
    bench.carry()
    assert len(bench.direct.calls) == 1
    assert bench.carrier.calls == 1


def test_who_leaves_before_the_answer_counts_as_sent(bench: Bench) -> None:
    call, _ = bench.carry()
    bench.carry()
    bench.clock.advance(1.0)
    call.cancel()
    assert bench.exchanges[0].sent_at == 1.0


def test_a_break_midway_is_told_to_both_forms(bench: Bench) -> None:
    _, streamed = bench.carry(STREAM)
    _, plain = bench.carry(PLAIN)
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(*EVENTS[:2])
    call.fail(ProxyError(UPSTREAM_CLOSED, "cut"))
    assert bytes(streamed.body) == b"".join(EVENTS[:2])
    assert streamed.error is not None
    assert plain.error is not None
    assert plain.heads == []


def test_a_stream_cut_after_its_last_word_is_a_whole_answer(bench: Bench) -> None:
    bench.carry(STREAM)
    _, plain = bench.carry(PLAIN)
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(*EVENTS)
    call.fail(ProxyError(UPSTREAM_CLOSED, "cut"))
    assert text_of(plain) == "Hello"


def test_an_error_event_becomes_an_error_answer(bench: Bench) -> None:
    bench.carry(STREAM)
    _, plain = bench.carry(PLAIN)
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(EVENTS[0], event({"error": {"message": "overloaded"}}))
    call.end()
    assert plain.heads[0].status == 502
    assert json.loads(plain.body) == {"error": {"message": "overloaded"}}


def test_a_stream_that_ends_too_early_is_no_answer(bench: Bench) -> None:
    bench.carry(STREAM)
    _, plain = bench.carry(PLAIN)
    bench.direct.calls[0].answer(stream_head(), *EVENTS[:2])
    assert plain.error is not None
    assert plain.error.kind is UPSTREAM_CLOSED


def test_cookies_go_to_the_first_caller_alone(bench: Bench) -> None:
    replies = [bench.carry()[1] for _ in range(2)]
    head = json_head((b"Set-Cookie", b"a=b"), (b"X-Request-Id", b"req_1"))
    bench.direct.calls[0].answer(head, ANSWER)
    assert [b"set-cookie" in reply.heads[0].fields for reply in replies] == [True, False]
    assert {reply.heads[0].fields[b"x-request-id"] for reply in replies} == {b"req_1"}


@pytest.mark.parametrize("limits", [{"whole": 100}, {"total": 100}])
def test_an_answer_too_long_to_turn_lets_the_others_ask_themselves(
    bench: Bench, limits: dict[str, int]
) -> None:
    bench.limit(**limits)
    _, plain = bench.carry(PLAIN)
    _, streamed = bench.carry(STREAM)
    bench.direct.calls[0].answer(json_head(), ANSWER[:90], ANSWER[90:])
    assert bytes(plain.body) == ANSWER
    assert len(bench.direct.calls) == 2
    bench.direct.calls[1].answer(stream_head(), *EVENTS)
    assert bytes(streamed.body) == b"".join(EVENTS)
    assert bench.carrier.kept_bytes == 0


def test_a_stream_too_long_to_put_together_is_asked_for_whole(bench: Bench) -> None:
    bench.limit(told=200)
    _, streamed = bench.carry(STREAM)
    _, plain = bench.carry(PLAIN)
    bench.direct.calls[0].answer(stream_head(), *EVENTS)
    assert bytes(streamed.body) == b"".join(EVENTS)
    bench.direct.calls[1].answer(json_head(), ANSWER)
    assert bytes(plain.body) == ANSWER
    assert bench.carrier.kept_bytes == 0


def test_a_stream_far_gone_is_not_put_together(bench: Bench) -> None:
    bench.limit(late=50)
    bench.carry(STREAM)
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(EVENTS[0])
    bench.carry(PLAIN)
    assert len(bench.direct.calls) == 2


# --- pace of the callers --------------------------------------------------------------------------------


def test_a_caller_alone_holds_the_upstream_back(bench: Bench) -> None:
    call, reply = bench.carry(STREAM)
    upstream = bench.direct.calls[0]
    upstream.head(stream_head())
    call.pause()
    assert upstream.is_paused
    call.resume()
    assert not upstream.is_paused
    upstream.data(*EVENTS)
    assert bytes(reply.body) == b"".join(EVENTS)


def test_a_slow_caller_holds_nobody_back_and_misses_nothing(bench: Bench) -> None:
    slow, late = bench.carry(STREAM)
    _, quick = bench.carry(STREAM)
    upstream = bench.direct.calls[0]
    upstream.head(stream_head())
    slow.pause()
    assert not upstream.is_paused
    upstream.data(*EVENTS)
    upstream.end()
    assert quick.events[-1] == "ended"
    assert bytes(late.body) == b""
    slow.resume()
    assert bytes(late.body) == bytes(quick.body)
    assert late.events[-1] == "ended"


def test_all_being_slow_holds_the_upstream_back(bench: Bench) -> None:
    calls = [bench.carry(STREAM)[0] for _ in range(2)]
    upstream = bench.direct.calls[0]
    upstream.head(stream_head())
    for call in calls:
        call.pause()
    assert upstream.is_paused
    bench.carry(STREAM)
    assert not upstream.is_paused


def test_the_upstream_goes_on_when_the_slow_one_leaves(bench: Bench) -> None:
    slow, _ = bench.carry(STREAM)
    _, plain = bench.carry(PLAIN)
    upstream = bench.direct.calls[0]
    upstream.head(stream_head())
    slow.pause()
    assert not upstream.is_paused
    slow.cancel()
    upstream.data(*EVENTS)
    upstream.end()
    assert text_of(plain) == "Hello"


def test_a_caller_too_far_behind_is_let_go(bench: Bench) -> None:
    bench.limit(behind=300)
    slow, late = bench.carry(STREAM)
    _, quick = bench.carry(STREAM)
    upstream = bench.direct.calls[0]
    upstream.head(stream_head())
    slow.pause()
    upstream.data(*EVENTS)
    upstream.end()
    assert late.error is not None
    assert late.error.kind.code == "slow_reader"
    assert bytes(quick.body) == b"".join(EVENTS)
    slow.resume()
    slow.cancel()
    assert late.faults == []


def test_a_fault_in_one_callers_answer_stays_its_own(bench: Bench) -> None:
    _, broken = bench.carry(STREAM)
    _, sound = bench.carry(STREAM)

    def fault() -> None:
        raise RuntimeError("on purpose")

    broken.on_head = fault
    bench.direct.calls[0].answer(stream_head(), *EVENTS)
    assert broken.error is not None
    assert broken.error.kind.code == "internal_error"
    assert bytes(sound.body) == b"".join(EVENTS)


# --- what is taken back ---------------------------------------------------------------------------------


def rewrite(added: set[str], original: bytes | None = None) -> Rewrite:
    return Rewrite("m", frozenset(added), lambda _: PLAIN, original, given_model="given")


def step(added: tuple[str, ...]) -> StepReport:
    return StepReport("cap_output", StepStatus.APPLIED, added=added)


def test_a_parameter_taken_back_is_noted_on_everyone_it_was_added_for(bench: Bench) -> None:
    for _ in range(2):
        bench.carry(rewrite=rewrite({"max_tokens"}))
    for exchange in bench.exchanges:
        exchange.steps = (step(("max_tokens",)),)
    call = bench.direct.calls[0]
    call.exchange.taken_back, call.exchange.retries = ("max_tokens",), 1
    call.answer(json_head(), ANSWER)
    assert [exchange.taken_back for exchange in bench.exchanges] == [("max_tokens",)] * 2
    assert [exchange.steps[0].status for exchange in bench.exchanges] == [StepStatus.SKIPPED] * 2
    assert [exchange.retries for exchange in bench.exchanges] == [1, 0]


def test_who_wrote_the_parameter_itself_gets_its_own_answer(bench: Bench) -> None:
    bench.carry(rewrite=rewrite({"max_tokens"}))
    _, own = bench.carry()
    call = bench.direct.calls[0]
    call.exchange.taken_back = ("max_tokens",)
    call.answer(json_head(), ANSWER)
    assert len(bench.direct.calls) == 2
    bench.direct.calls[1].answer(json_head(status=400), b"{}")
    assert own.heads[0].status == 400
    assert bench.exchanges[1].taken_back == ()


def test_other_originals_are_not_answered_for_the_first_ones(bench: Bench) -> None:
    bench.carry(rewrite=rewrite(set(), b"one"))
    bench.carry(rewrite=rewrite(set(), b"one"))
    bench.carry(rewrite=rewrite(set(), b"two"))
    call = bench.direct.calls[0]
    call.exchange.taken_back = (ORIGINAL,)
    call.head(json_head())
    assert [call.outgoing.rewrite for call in bench.direct.calls[1:]] == [
        bench.direct.calls[1].outgoing.rewrite
    ]
    assert len(bench.direct.calls) == 2
    bench.carry(rewrite=rewrite(set(), b"two"))
    assert len(bench.direct.calls) == 3
    assert bench.exchanges[1].model == "given"
