"""Merged calls against a real upstream: who is in one, what each caller gets, and what failures do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.decision import ClosedBy
from proxy.lanes.coalesce import merge_stream, merge_undo
from proxy.policy.model import CoalescePolicy
from tests.support.carried import Carrying, Sent, carrying, run, until
from tests.support.lane_kinds import KINDS, POOLED, answer, events, serve, vector
from tests.support.raw_upstream import Call, Script

EMBED, PROMPT, EVENTS = KINDS["merge"], KINDS["merge completions"], KINDS["merge events"]


def embed(inputs: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": inputs} | more).encode()


class Held:
    """Answers the first request only when told to, so that what comes meanwhile is pooled."""

    def __init__(self, then: Script = serve) -> None:
        self._opened = threading.Event()
        self._then = then

    def __call__(self, call: Call) -> None:
        if call.number == 0:
            assert self._opened.wait(5)
            serve(call)
        else:
            self._then(call)

    def open(self) -> None:
        self._opened.set()


async def first_sent(on: Carrying, **ways: Any) -> None:
    """Send a request and wait until its upstream has it: what comes meanwhile is pooled."""
    on.carry(**ways)
    await until(lambda: bool(on.upstream.calls))


async def burst(on: Carrying, held: Held, *bodies: bytes, **ways: Any) -> list[Sent]:
    """Send a request that holds the window open, then these; let go, and wait for all."""
    await first_sent(on, **ways)
    sent = [on.carry(body, **ways) for body in bodies]
    held.open()
    await on.over()
    return sent


def sizes(sent: list[Sent]) -> list[int]:
    return [0 if each.exchange.pooled is None else each.exchange.pooled.size for each in sent]


# --- carried together ---------------------------------------------------------------------------------------


def test_what_comes_while_a_call_is_in_flight_leaves_together_when_it_returns() -> None:
    async def test() -> None:
        held = Held()
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, embed("b"), embed(["c", "dd"]), embed("eee"))
            assert on.bodies[1:] == [{"model": "m", "input": ["b", "c", "dd", "eee"]}]
            assert [[each["embedding"] for each in one.json["data"]] for one in sent] == [
                [vector("b")],
                [vector("c"), vector("dd")],
                [vector("eee")],
            ]
            assert [[each["index"] for each in one.json["data"]] for one in sent] == [[0], [0, 1], [0]]
            assert sum(one.json["usage"]["total_tokens"] for one in sent) == 7
            assert sizes(sent) == [3, 3, 3]
            pooled = [one.exchange.pooled for one in sent]
            assert [each is not None and each.is_leader for each in pooled] == [True, False, False]
            assert {each.closed_by for each in pooled if each is not None} == {ClosedBy.RETURNED}

    run(test())


def test_each_callers_answer_has_its_own_id_and_nobody_elses_headers() -> None:
    lines = (
        b"x-request-id: up",
        b"x-ratelimit-remaining-tokens: 9",
        b"Set-Cookie: a=b",
        b"openai-version: 1",
    )

    def script(call: Call) -> None:
        made = json.dumps(answer(json.loads(call.body))).encode()
        call.json(made, headers=b"".join(line + b"\r\n" for line in lines))

    async def test() -> None:
        held = Held(script)
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, embed("b"), embed("c"))
            for one in sent:
                fields = one.reply.heads[0].fields
                assert fields[b"x-request-id"] == one.exchange.request_id.encode()
                assert fields[b"content-length"] == str(len(one.body)).encode()
                assert fields[b"openai-version"] == b"1"
                assert not {b"set-cookie", b"x-ratelimit-remaining-tokens"} & fields.keys()

    run(test())


def test_the_merged_call_has_what_its_callers_have_in_common() -> None:
    async def test() -> None:
        held = Held()
        async with carrying(EMBED, held) as on:
            await first_sent(on, headers=[("Authorization", "Bearer k")])
            for number in (1, 2):
                lines = [
                    ("Authorization", "Bearer k"),
                    ("traceparent", f"00-{number}"),
                    ("x-stainless-os", "Linux"),
                ]
                coding = ("Accept-Encoding", "gzip" if number == 1 else "br")
                on.carry(
                    embed(str(number)), [*lines, coding, ("X-Request-Id", str(number)), ("User-Agent", "sdk")]
                )
            held.open()
            await on.over()
            call = on.upstream.calls[1]
            assert call.header("authorization") == b"Bearer k"
            assert call.header("user-agent") == b"sdk"
            assert call.header("x-stainless-os") == b"Linux"
            assert call.header("accept-encoding") == b"identity"
            assert call.header("traceparent") is None
            assert call.header("x-request-id") is None

    run(test())


@pytest.mark.parametrize(
    ("first", "second", "headers"),
    [
        (embed("b"), embed([1, 2]), ()),
        (embed("b"), embed("c", dimensions=8), ()),
        (embed("b"), embed("c", user="u"), ()),
        (embed("b"), embed("c", encoding_format="base64"), ()),
        (embed("b"), embed("c"), [("Authorization", "Bearer other")]),
        (embed("b"), embed("c"), [("OpenAI-Project", "other")]),
    ],
)
def test_what_differs_in_anything_else_is_never_in_one_call(
    first: bytes, second: bytes, headers: list[tuple[str, str]]
) -> None:
    async def test() -> None:
        async with carrying(EMBED, serve) as on:
            on.carry(first)
            on.carry(second, headers)
            await until(lambda: len(on.upstream.calls) == 2)
            await on.over()
            assert sizes(on.sent) == [1, 1]

    run(test())


def test_a_call_is_not_larger_than_its_bounds_and_one_request_that_is_goes_alone() -> None:
    async def test() -> None:
        held = Held()
        four = CoalescePolicy(max_wait_seconds=1.0, max_items=4)
        async with carrying(EMBED, held) as on:
            many = ["x" * number for number in range(1, 7)]
            sent = await burst(
                on, held, embed(["a", "b"]), embed(["c", "d"]), embed(many), embed("e"), policy=four
            )
            assert sorted(len(each["input"]) for each in on.bodies[1:]) == [1, 4, 6]
            assert sizes(sent) == [2, 2, 1, 1]
            assert on.upstream.calls[[len(each["input"]) for each in on.bodies].index(6)].body == embed(many)

    run(test())


def test_nobody_waits_longer_than_max_wait_though_the_first_call_never_returns() -> None:
    async def test() -> None:
        held = Held()
        async with carrying(EMBED, held) as on:
            hasty = CoalescePolicy(max_wait_seconds=0.02)
            await first_sent(on, policy=hasty)
            sent = [on.carry(embed(text), policy=hasty) for text in "bc"]
            await on.over(*sent)
            assert sizes(sent) == [2, 2]
            for one in sent:
                assert one.exchange.pooled is not None
                assert one.exchange.pooled.closed_by is ClosedBy.MAX_WAIT
                assert 0.015 < one.exchange.queue_seconds < 0.5
            held.open()
            await on.over()

    run(test())


def test_the_first_of_idle_traffic_does_not_wait() -> None:
    async def test() -> None:
        async with carrying(EMBED, serve) as on:
            for text in "abc":
                sent = on.carry(embed(text))
                await on.over(sent)
                assert sent.exchange.queue_seconds < 0.01
            assert sizes(on.sent) == [1, 1, 1]

    run(test())


# --- completions --------------------------------------------------------------------------------------------


def test_choices_come_back_to_the_prompts_that_they_belong_to() -> None:
    async def test() -> None:
        held = Held()
        async with carrying(PROMPT, held) as on:
            bodies = [json.dumps({"model": "i", "prompt": p, "n": 2}).encode() for p in ("b", ["c", "d"])]
            sent = await burst(on, held, *bodies, *bodies)
            merged = next(each for each in on.bodies if len(each["prompt"]) > 2)
            assert merged["prompt"] in (["c", "d", "b", "c", "d"], ["b", "c", "d", "b", "c", "d"])
            texts = [[each["text"] for each in one.json["choices"]] for one in sent]
            assert texts == [["to b"] * 2, ["to c", "to c", "to d", "to d"]] * 2
            for one in sent:
                assert [each["index"] for each in one.json["choices"]] == list(
                    range(len(one.json["choices"]))
                )
            assert len(
                {one.json["id"] for one in sent if one.exchange.pooled and one.exchange.pooled.size > 1}
            ) == max(sizes(sent))

    run(test())


def test_events_are_dealt_out_as_they_come() -> None:
    go = threading.Event()

    def script(call: Call) -> None:
        call.stream_head()
        every = events(json.loads(call.body))
        call.chunk(every[0])
        assert go.wait(5)
        for event in every[1:]:
            call.chunk(event)
        call.end_chunks()

    async def test() -> None:
        held = Held(script)
        async with carrying(EVENTS, held) as on:
            await first_sent(on)
            body = EVENTS.body.replace(b'"a"', b'"b"')
            sent = [on.carry(body), on.carry(body.replace(b'"b"', b'"c"'))]
            held.open()
            await until(lambda: b"to b" in sent[0].body)
            assert b"to c" not in sent[1].body
            go.set()
            await on.over()
            for one, text in zip(sent, (b"to b", b"to c"), strict=True):
                assert text in one.body
                assert one.body.count(b'"to ') == 1
                assert one.body.endswith(b"data: [DONE]\n\n")

    run(test())


def test_a_slow_reader_of_a_merged_stream_slows_nobody_and_is_dropped_when_too_much_is_kept() -> None:
    much = "x" * 60_000

    def script(call: Call) -> None:
        call.stream_head()
        for _ in range(30):
            for index in (0, 1):
                chunk = {"choices": [{"index": index, "text": much, "finish_reason": None}]}
                call.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        call.chunk(b"data: [DONE]\n\n")
        call.end_chunks()

    async def test() -> None:
        held = Held(script)
        async with carrying(EVENTS, held) as on:
            await first_sent(on)
            slow, fast = on.carry(), on.carry()
            slow.call.pause()
            held.open()
            await on.over(slow, fast)
            assert fast.body.count(b'"text"') == 30
            assert slow.reply.error is not None
            assert slow.reply.error.kind.code == "slow_reader"
            assert slow.body == b""

    run(test())


def test_a_reader_that_goes_on_gets_all_that_was_kept_and_its_end() -> None:
    async def test() -> None:
        held = Held()
        async with carrying(EVENTS, held) as on:
            await first_sent(on)
            slow, fast = on.carry(), on.carry()
            slow.call.pause()
            held.open()
            await on.over(fast)
            assert slow.body == b""
            assert not slow.reply.is_over
            slow.call.resume()
            await on.over(slow)
            assert slow.body == fast.body.replace(b"cmpl-7-1", b"cmpl-7")

    run(test())


# --- failures -----------------------------------------------------------------------------------------------


def refuse(call: Call, message: str, status: bytes = b"400 Bad Request") -> None:
    call.json(json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode(), status)


def picky(call: Call) -> None:
    """Answer 400 to every call that has the text `bad`, and name it."""
    inputs = json.loads(call.body)["input"]
    if "bad" in inputs:
        refuse(call, f"input bad is bad, among {len(inputs) if isinstance(inputs, list) else 1}")
    else:
        serve(call)


def test_a_bad_input_harms_nobody_but_its_owner_who_gets_the_error_of_its_own_request() -> None:
    async def test() -> None:
        held = Held(picky)
        async with carrying(EMBED, held) as on:
            texts = ["b", "bad", "c", "d"]
            sent = await burst(on, held, *(embed(text) for text in texts))
            assert [one.status for one in sent] == [200, 400, 200, 200]
            assert sent[1].json["error"]["message"] == "input bad is bad, among 1"
            assert [one.json["data"][0]["embedding"] for one in sent if one.status == 200] == [
                vector(text) for text in "bcd"
            ]
            assert len(on.upstream.calls) == 1 + 1 + 4
            assert sizes(sent) == [1, 1, 1, 1], "each made a call of its own in the end"
            assert {one.exchange.retries for one in sent} == {1}
            later = [on.carry(embed("e")), on.carry(embed("f")), on.carry(embed("g"))]
            await on.over()
            assert max(sizes(later)) == 2, "one bad input is no reason to merge less"

    run(test())


def tei(call: Call) -> None:
    """Take at most two inputs, and say so in TEI's words."""
    count = len(json.loads(call.body)["input"])
    if isinstance(json.loads(call.body)["input"], list) and count > 2:
        text = f"batch size {count} > maximum allowed batch size 2"
        call.json(
            json.dumps({"error": text, "error_type": "Validation"}).encode(), b"422 Unprocessable Entity"
        )
    else:
        serve(call)


@pytest.mark.parametrize("says", [tei, "too large"])
def test_an_upstream_that_takes_fewer_is_sent_fewer_from_then_on(says: Any) -> None:
    def shy(call: Call) -> None:
        inputs = json.loads(call.body)["input"]
        if isinstance(inputs, list) and len(inputs) > 2:
            refuse(call, "Payload Too Large", b"413 Payload Too Large")
        else:
            serve(call)

    async def test() -> None:
        script: Script = says if callable(says) else shy
        held = Held(script)
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, *(embed(text) for text in "bcde"))
            assert {one.status for one in sent} == {200}
            begun = len(on.upstream.calls)
            later = [on.carry(embed(text)) for text in "fghij"]
            await on.over()
            assert {one.status for one in later} == {200}
            assert max(sizes(later)) == 2
            assert max(len(each["input"]) for each in on.bodies[begun:]) <= 2

    run(test())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: {**made, "data": made["data"][:-1]},
        lambda made: {**made, "data": [each | {"index": 0} for each in made["data"]]},
        lambda made: [made],
        lambda made: "garbage",
    ],
)
def test_an_answer_that_cannot_be_cut_up_is_asked_for_singly_once(spoil: Callable[[Any], Any]) -> None:
    def script(call: Call) -> None:
        asked = json.loads(call.body)
        made = answer(asked)
        call.json(json.dumps(spoil(made) if isinstance(asked["input"], list) else made).encode())

    async def test() -> None:
        held = Held(script)
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, embed("b"), embed("c"))
            assert [one.json["data"][0]["embedding"] for one in sent] == [vector("b"), vector("c")]
            assert len(on.upstream.calls) == 4
            later = [on.carry(embed(text)) for text in "def"]
            await on.over()
            assert set(sizes(later)) <= {0, 1}, "this upstream is not asked so again"

    run(test())


@pytest.mark.parametrize(
    "status",
    [b"429 Too Many Requests", b"503 Busy", b"502 Bad Gateway", b"401 Unauthorized", b"404 Not Found"],
)
def test_an_error_that_no_input_causes_is_everybodys_once_and_nothing_is_sent_again(status: bytes) -> None:
    raw = b'{"error":{"message":"slow down"}}'

    async def test() -> None:
        held = Held(lambda call: call.json(raw, status, b"Retry-After: 3\r\n"))
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, *(embed(text) for text in "bcdef"))
            await asyncio.sleep(0.03)
            assert len(on.upstream.calls) == 2
            for one in sent:
                assert (one.status, one.body) == (int(status[:3]), raw)
                assert one.reply.heads[0].fields[b"retry-after"] == b"3"

    run(test())


def test_a_break_in_the_middle_of_a_merged_answer_is_everybodys_failure_once() -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
        call.reset()

    async def test() -> None:
        held = Held(script)
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, embed("b"), embed("c"))
            await asyncio.sleep(0.03)
            assert len(on.upstream.calls) == 2
            for one in sent:
                assert one.reply.error is not None
                assert one.reply.error.kind.code == "upstream_closed"

    run(test())


def test_one_input_that_makes_the_server_fail_fails_nobody_else() -> None:
    def poisoned(call: Call) -> None:
        if b"POISON" in call.body:
            count = call.body.count(b",")
            raw = json.dumps({"error": {"message": f"failed on POISON ({count})"}}).encode()
            call.json(raw, b"500 Internal Server Error")
        else:
            serve(call)

    async def test() -> None:
        held = Held(poisoned)
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, *(embed(text) for text in ("b", "POISON", "c")))
            assert [one.status for one in sent] == [200, 500, 200]
            assert sent[1].json["error"]["message"] == "failed on POISON (1)", "the error of its own call"
            later = [on.carry(embed(text)) for text in "defg"]
            await on.over()
            assert max(sizes(later)) == 3, "a server that fails once is no reason to merge less"

    run(test())


def test_what_one_caller_makes_an_upstream_say_slows_nobody_else() -> None:
    def said(call: Call) -> None:
        inputs = json.loads(call.body)["input"]
        if isinstance(inputs, list) and len(inputs) > 2:
            refuse(call, "Payload Too Large", b"413 Payload Too Large")
        else:
            serve(call)

    async def test() -> None:
        held = Held(said)
        async with carrying(EMBED, held) as on:
            await burst(on, held, *(embed(text) for text in "bcde"))
            mine = [on.carry(embed(text)) for text in "bcde"]
            others = [on.carry(embed(text), headers=[("Authorization", "Bearer o")]) for text in "bc"]
            await on.over()
            assert max(sizes(mine)) == 2
            closed = {one.exchange.pooled.closed_by for one in mine if one.exchange.pooled is not None}
            assert ClosedBy.LIMIT in closed
            assert {one.status for one in others} == {200}
            taught = on.lane._stages[1].carrier.limits  # type: ignore[attr-defined]
            assert len(taught) == 1

    run(test())


def test_a_resend_of_the_whole_call_is_counted_once() -> None:
    def busy_once(call: Call) -> None:
        if call.number == 1:
            call.json(b"{}", b"429 Too Many Requests", b"Retry-After: 0\r\n")
        else:
            serve(call)

    async def test() -> None:
        held = Held(busy_once)
        async with carrying(EMBED, held, retries=1, retry_statuses=(429,)) as on:
            sent = await burst(on, held, *(embed(text) for text in "bcd"))
            assert {one.status for one in sent} == {200}
            assert sum(one.exchange.retries for one in sent) == 1

    run(test())


# --- streams that do not go on as they should ---------------------------------------------------------------


def prompt(text: str) -> bytes:
    return EVENTS.body.replace(b'"a"', json.dumps(text).encode())


def said(index: int, text: str, finish: str | None = None) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


def merged(*pieces: bytes) -> Script:
    """Stream these pieces as the answer to a merged call; serve all others."""

    def script(call: Call) -> None:
        if not isinstance(json.loads(call.body)["prompt"], list):
            serve(call)
            return
        call.stream_head()
        for piece in pieces:
            call.chunk(piece)
        call.end_chunks()

    return script


ERROR = b'data: {"error":{"message":"prompt b is flagged","code":400}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("tail", [DONE, b""])
def test_a_caller_whose_answer_a_stream_leaves_out_is_sent_singly(tail: bytes) -> None:
    async def test() -> None:
        held = Held(merged(said(0, "to b", "stop"), tail or b": the end\n\n"))
        async with carrying(EVENTS, held) as on:
            sent = await burst(on, held, prompt("b"), prompt("c"))
            assert b'"to b"' in sent[0].body
            assert b'"to c"' in sent[1].body
            assert sent[1].body.endswith(DONE)
            assert len(on.upstream.calls) == 3
            pooled = [one.exchange.pooled for one in sent]
            assert [(each.size, each.is_leader) for each in pooled if each] == [(1, True), (1, True)]
            assert [one.exchange.retries for one in sent] == [0, 1]
            later = [on.carry(prompt(text)) for text in "def"]
            await on.over()
            assert set(sizes(later)) <= {0, 1}, "this upstream is not asked so again"

    run(test())


def test_a_caller_who_has_half_of_what_a_stream_leaves_out_is_told_so() -> None:
    both = json.dumps({"model": "gpt-3.5-turbo-instruct", "prompt": ["b", "c"], "stream": True})

    async def test() -> None:
        held = Held(merged(said(0, "to b", "stop") + said(2, "to d", "stop"), DONE))
        async with carrying(EVENTS, held) as on:
            sent = await burst(on, held, both.encode(), prompt("d"))
            assert sent[0].reply.error is not None
            assert sent[0].reply.error.kind.code == "upstream_protocol_error"
            assert sent[1].body.endswith(DONE)

    run(test())


def test_an_error_event_before_any_content_sends_each_singly_and_tells_nobody_anothers_text() -> None:
    async def test() -> None:
        held = Held(merged(ERROR))
        async with carrying(EVENTS, held) as on:
            sent = await burst(on, held, prompt("b"), prompt("c"), prompt("d"))
            for one, text in zip(sent, "bcd", strict=True):
                assert f'"to {text}"'.encode() in one.body
                assert b"flagged" not in one.body
                assert one.body.endswith(DONE)
                assert one.reply.events.count("head") == 1
            assert len(on.upstream.calls) == 5

    run(test())


def test_an_error_event_later_ends_each_in_the_way_that_is_left_for_it() -> None:
    async def test() -> None:
        held = Held(merged(said(0, "whole", "stop") + said(1, "half"), ERROR))
        async with carrying(EVENTS, held) as on:
            done, half, unheard = await burst(on, held, prompt("b"), prompt("c"), prompt("d"))
            assert b"whole" in done.body
            assert done.reply.events[-1] == "ended"
            assert half.reply.error is not None
            assert half.reply.error.kind.code == "upstream_closed"
            assert b'"to d"' in unheard.body
            assert all(b"flagged" not in one.body for one in (done, half, unheard))

    run(test())


def test_an_error_event_about_all_is_told_to_all_and_nothing_is_sent_again() -> None:
    busy = b'data: {"error":{"message":"slow down","code":429}}\n\n'

    async def test() -> None:
        held = Held(merged(busy))
        async with carrying(EVENTS, held) as on:
            sent = await burst(on, held, prompt("b"), prompt("c"))
            assert [one.body for one in sent] == [busy, busy]
            assert len(on.upstream.calls) == 2

    run(test())


@pytest.mark.parametrize("odd", [said(9, "x"), b"data: half a te\n\n", b"\x1f\x8b\n\n" + b"data: zip\n\n"])
def test_events_that_are_nobodys_send_each_singly_and_the_upstream_is_not_asked_so_again(odd: bytes) -> None:
    async def test() -> None:
        held = Held(merged(odd))
        async with carrying(EVENTS, held) as on:
            sent = await burst(on, held, prompt("b"), prompt("c"))
            for one, text in zip(sent, "bc", strict=True):
                assert f'"to {text}"'.encode() in one.body
                assert b'"x"' not in one.body
            later = [on.carry() for _ in range(3)]
            await on.over()
            assert {one.status for one in later} == {200}
            assert set(sizes(later)) <= {0, 1}

    run(test())


def test_a_caller_hears_of_a_stream_that_says_nothing_of_its_own_for_long() -> None:
    begun, go = threading.Event(), threading.Event()

    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(b": wait\n\n")
        begun.set()
        assert go.wait(5)
        for event in events(json.loads(call.body)):
            call.chunk(event)
        call.end_chunks()

    async def test() -> None:
        held = Held(script)
        async with carrying(EVENTS, held) as on:
            await first_sent(on)
            sent = [on.carry(prompt(text)) for text in "bc"]
            held.open()
            await until(begun.is_set)
            assert sent[0].reply.events == []
            await until(lambda: sent[0].body == b": wait\n\n", merge_stream.HOLD_SECONDS + 2.0)
            go.set()
            await on.over()
            assert b'"to c"' in sent[1].body

    run(test())


def test_no_more_singles_leave_at_once_than_the_limit() -> None:
    in_flight, most, lock = 0, 0, threading.Lock()

    def script(call: Call) -> None:
        nonlocal in_flight, most
        if isinstance(json.loads(call.body)["input"], list):
            refuse(call, "no")
            return
        with lock:
            in_flight += 1
            most = max(most, in_flight)
        threading.Event().wait(0.01)
        with lock:
            in_flight -= 1
        serve(call)

    async def test() -> None:
        held = Held(script)
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, *(embed(f"t{number}") for number in range(50)))
            assert {one.status for one in sent} == {200}
            assert most <= merge_undo.SENT_AT_ONCE

    run(test())


# --- leaving ------------------------------------------------------------------------------------------------


def test_who_leaves_before_the_pool_does_is_not_sent() -> None:
    async def test() -> None:
        held = Held()
        async with carrying(EMBED, held) as on:
            await first_sent(on)
            gone, *others = [on.carry(embed(text)) for text in "bcd"]
            gone.call.cancel()
            held.open()
            await on.over(*others)
            assert on.bodies[1:] == [{"model": "m", "input": ["c", "d"]}]
            assert gone.reply.events == []
            assert gone.exchange.pooled is None

    run(test())


def test_who_leaves_during_the_call_is_not_told_and_the_others_are() -> None:
    begun, go = threading.Event(), threading.Event()

    def script(call: Call) -> None:
        begun.set()
        assert go.wait(5)
        serve(call)

    async def test() -> None:
        held = Held(script)
        async with carrying(EMBED, held) as on:
            await first_sent(on)
            gone, *others = [on.carry(embed(text)) for text in "bcd"]
            held.open()
            await until(begun.is_set)
            gone.call.cancel()
            assert gone.exchange.sent_at > 0
            go.set()
            await on.over(*others)
            assert gone.reply.events == []
            assert [one.json["data"][0]["embedding"] for one in others] == [vector("c"), vector("d")]

    run(test())


def test_the_call_is_given_up_when_the_last_one_leaves() -> None:
    begun, closed = threading.Event(), threading.Event()

    def script(call: Call) -> None:
        begun.set()
        if call.wait_for_close(3.0):
            closed.set()

    async def test() -> None:
        held = Held(script)
        async with carrying(EMBED, held) as on:
            await first_sent(on)
            sent = [on.carry(embed(text)) for text in "bcd"]
            held.open()
            await until(begun.is_set)
            for one in sent[:-1]:
                one.call.cancel()
            await asyncio.sleep(0.02)
            assert not closed.is_set()
            sent[-1].call.cancel()
            await until(closed.is_set, 1.0)

    run(test())


def test_who_leaves_while_others_are_told_is_not_told_itself() -> None:
    async def test() -> None:
        held = Held()
        async with carrying(EMBED, held) as on:
            await first_sent(on)
            sent = [on.carry(embed(text)) for text in "bcd"]
            sent[0].reply.on_head = sent[2].call.cancel
            held.open()
            await on.over(*sent[:2])
            await asyncio.sleep(0.02)
            assert sent[2].reply.events == []

    run(test())


def test_a_large_answer_is_cut_up_in_a_thread_and_reaches_everybody() -> None:
    def script(call: Call) -> None:
        asked = json.loads(call.body)
        made = answer(asked)
        for each in made["data"]:
            each["embedding"] = [*each["embedding"], *[0.25] * 20_000]
        call.json(json.dumps(made).encode())

    async def test() -> None:
        held = Held(script)
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, *(embed("x" * (number + 1)) for number in range(40)))
            for number, one in enumerate(sent):
                assert one.json["data"][0]["embedding"][:2] == vector("x" * (number + 1))
            assert sizes(sent) == [40] * 40

    run(test())


def test_nothing_is_left_behind() -> None:
    async def test() -> None:
        held = Held(picky)
        async with carrying(EMBED, held) as on:
            sent = await burst(on, held, embed("b"), embed("bad"), embed("c"))
            assert len(sent) == 3
            merge = on.lane._stages[1].carrier  # type: ignore[attr-defined]
            assert merge.pools == 0

    run(test())


def test_a_route_that_merges_nothing_sends_everything_alone() -> None:
    async def test() -> None:
        async with carrying(EMBED, serve) as on:
            single = CoalescePolicy(max_wait_seconds=1.0, max_items=1)
            for policy in (single, CoalescePolicy(strategies=())):
                sent = [on.carry(embed(text), policy=policy) for text in "abc"]
                await on.over()
                assert sizes(sent) == [0, 0, 0]
            assert POOLED.max_items > 1

    run(test())
