"""A shared call that is refused or breaks off: nobody hears what another one's own fields caused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from tests.support.direct_lane import json_head, stream_head
from tests.unit.lanes.coalesce.test_share import ANSWER, EVENTS, PLAIN, STREAM, Bench, chunk, event, text_of

NAMED = PLAIN[:-1] + b',"user":"u1"}'
TWO = STREAM[:-1] + b',"n":2}'
USAGE, DONE = EVENTS[-2:]
CUT = ProxyError(UPSTREAM_CLOSED, "cut")


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    yield Bench(loop)
    loop.close()


def sizes(bench: Bench) -> list[tuple[int, bool]]:
    return [(each.size, each.is_leader) for e in bench.exchanges if (each := e.pooled) is not None]


@pytest.mark.parametrize("status", [400, 403, 413, 422, 500])
def test_a_refusal_is_told_to_those_who_wrote_the_same(bench: Bench, status: int) -> None:
    _, first = bench.carry(NAMED)
    _, same = bench.carry(NAMED)
    others = [bench.carry(body)[1] for body in (PLAIN, STREAM, NAMED.replace(b"u1", b"u2"))]
    secret = b'{"error":{"message":"u1 is refused"}}'
    bench.direct.calls[0].answer(json_head(status=status), secret)
    assert bytes(first.body) == bytes(same.body) == secret
    assert [call.outgoing.body for call in bench.direct.calls[1:]] == [
        PLAIN,
        STREAM,
        NAMED.replace(b"u1", b"u2"),
    ]
    for call in bench.direct.calls[1:]:
        call.answer(json_head(), ANSWER)
    assert all(bytes(reply.body) == ANSWER and reply.faults == [] for reply in others)
    assert sizes(bench) == [(2, True), (2, False), (1, True), (1, True), (1, True)]


@pytest.mark.parametrize("status", [307, 401, 404, 429, 502, 503, 529])
def test_what_is_about_the_whole_upstream_is_told_to_everybody(bench: Bench, status: int) -> None:
    replies = [bench.carry(body)[1] for body in (NAMED, PLAIN, STREAM)]
    bench.direct.calls[0].answer(json_head(status=status), b"{}")
    assert len(bench.direct.calls) == 1
    assert [reply.heads[0].status for reply in replies] == [status] * 3


def test_a_refusal_is_not_told_to_others_though_its_writer_is_gone(bench: Bench) -> None:
    first, _ = bench.carry(NAMED)
    _, other = bench.carry(PLAIN)
    first.cancel()
    refused = bench.direct.calls[0]
    refused.head(json_head(status=400))
    assert refused.is_cancelled
    bench.direct.calls[1].answer(json_head(), ANSWER)
    assert bytes(other.body) == ANSWER
    assert sizes(bench) == [(2, False), (1, True)]


@pytest.mark.parametrize("last", [[], [DONE], [chunk({}, "stop"), USAGE, DONE]])
@pytest.mark.parametrize(
    "failure",
    [
        event({"error": {"message": "boom", "code": 500}}),
        event(
            {
                "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
                "error": {"message": "boom", "code": 500},
            }
        ),
    ],
)
def test_an_error_in_a_stream_is_no_whole_answer(bench: Bench, failure: bytes, last: list[bytes]) -> None:
    _, streamed = bench.carry(STREAM)
    _, plain = bench.carry(PLAIN)
    bench.direct.calls[0].answer(stream_head(), *EVENTS[:2], failure, *last)
    assert plain.heads[0].status == 502
    assert json.loads(plain.body) == {"error": {"message": "boom", "code": 500}}
    assert bytes(streamed.body) == b"".join((*EVENTS[:2], failure, *last))


def test_a_choice_that_ended_in_an_error_nobody_describes_is_a_failure(bench: Bench) -> None:
    bench.carry(STREAM)
    _, plain = bench.carry(PLAIN)
    bench.direct.calls[0].answer(stream_head(), *EVENTS[:2], chunk({}, "error"), USAGE, DONE)
    assert plain.error is not None
    assert plain.error.kind is UPSTREAM_CLOSED
    assert len(bench.direct.calls) == 1


FIRST_OF_TWO = [EVENTS[0], EVENTS[1], chunk({}, "stop")]


@pytest.mark.parametrize(
    ("leader", "events"), [(TWO, FIRST_OF_TWO), (STREAM, FIRST_OF_TWO), (TWO, [*FIRST_OF_TWO, USAGE])]
)
def test_a_stream_cut_before_all_of_it_came_is_a_failure(
    bench: Bench, leader: bytes, events: list[bytes]
) -> None:
    bench.carry(leader)
    _, plain = bench.carry(leader.replace(b',"stream":true,"stream_options":{"include_usage":true}', b""))
    call = bench.direct.calls[0]
    call.head(stream_head())
    call.data(*events)
    call.fail(CUT)
    assert plain.error is CUT
    assert plain.heads == []


def test_a_stream_that_ends_before_the_second_choice_is_a_failure(bench: Bench) -> None:
    bench.carry(TWO)
    _, plain = bench.carry(PLAIN[:-1] + b',"n":2}')
    bench.direct.calls[0].answer(stream_head(), *FIRST_OF_TWO, USAGE)
    assert plain.error is not None
    assert len(bench.direct.calls) == 1


@pytest.mark.parametrize(
    ("leader", "events"),
    [(TWO, [*FIRST_OF_TWO, USAGE, DONE]), (STREAM, [*FIRST_OF_TWO, DONE]), (STREAM, FIRST_OF_TWO)],
)
def test_what_a_stream_leaves_out_for_good_is_asked_for(
    bench: Bench, leader: bytes, events: list[bytes]
) -> None:
    gone, _ = bench.carry(leader)
    _, streamed = bench.carry(leader)
    whole = leader.replace(b',"stream":true,"stream_options":{"include_usage":true}', b"")
    _, plain = bench.carry(whole)
    gone.cancel()
    bench.direct.calls[0].answer(stream_head(), *events)
    assert streamed.events[-1] == "ended"
    assert bench.direct.calls[1].outgoing.body == whole
    bench.direct.calls[1].answer(json_head(), ANSWER)
    assert text_of(plain) == "Hello"
    assert sizes(bench) == [(3, False), (2, True), (1, True)]


def test_both_choices_are_put_together(bench: Bench) -> None:
    bench.carry(TWO)
    _, plain = bench.carry(PLAIN[:-1] + b',"n":2}')
    second = event({"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]})
    bench.direct.calls[0].answer(stream_head(), *FIRST_OF_TWO, second, USAGE)
    assert [each["index"] for each in json.loads(plain.body)["choices"]] == [0, 1]


def test_all_slow_callers_together_are_bounded(bench: Bench) -> None:
    block = 64 * 1024
    bench.limit(near=block, lagging=2 * block, behind=100 * block)
    calls = [(bench.carry(STREAM, key=key), bench.carry(STREAM, key=key)[1]) for key in (b"a", b"b", b"c")]
    for (slow, _), _ in calls:
        slow.pause()
    data = b":" + b"x" * (block - 3) + b"\n\n"
    for call in bench.direct.calls:
        call.head(stream_head())
        call.data(data)
    assert bench.carrier.lagging_bytes == 0, "so much is nobody's business"
    for call in bench.direct.calls:
        call.data(data)
    assert bench.carrier.lagging_bytes == 2 * block
    told = [slow.error.kind.code if slow.error else None for (_, slow), _ in calls]
    assert told == [None, None, "slow_reader"]
    calls[0][0][0].resume()
    calls[1][0][0].cancel()
    assert bench.carrier.lagging_bytes == 0
    for call in bench.direct.calls:
        call.end()
    assert all(bytes(quick.body) == 2 * data for _, quick in calls)
    assert bytes(calls[0][0][1].body) == 2 * data
