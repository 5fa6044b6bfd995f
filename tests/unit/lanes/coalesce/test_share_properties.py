"""Callers come, go and dawdle at any moment: nobody harms another, and all that stay hear the same."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.core.errors import UPSTREAM_CLOSED, ProxyError
from proxy.core.exchange import Exchange
from proxy.lanes.coalesce.share import ShareCarrier
from proxy.lanes.lane import Call
from tests.support.direct_lane import DirectCall, DirectTwin, json_head, outgoing, pool, stream_head
from tests.support.replies import Reply

PLAIN = b'{"model":"m","temperature":0,"messages":[]}'
STREAM = PLAIN[:-1] + b',"stream":true,"stream_options":{"include_usage":true}}'
TEXT = "The upper reach stays level."
DELTAS = [{"role": "assistant"}, *({"content": TEXT[at : at + 5]} for at in range(0, len(TEXT), 5))]
CHOICES: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in DELTAS]
CHOICES.append({"index": 0, "delta": {}, "finish_reason": "stop"})
EVENTS = b"".join(
    [b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n" for choice in CHOICES]
    + [b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1}}\n\n', b"data: [DONE]\n\n"]
)
WHOLE = json.dumps(
    {"id": "c", "choices": [{"index": 0, "message": {"content": TEXT}, "finish_reason": "stop"}], "usage": {}}
).encode()


@dataclass
class Caller:
    """One caller and what was done to it."""

    call: Call
    reply: Reply
    is_streamed: bool
    is_gone: bool = False
    heard: bytes = b""


@dataclass
class World:
    """A carrier, its callers and an upstream that answers in pieces."""

    loop: asyncio.AbstractEventLoop
    callers: list[Caller] = field(default_factory=list)
    said: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.direct = DirectTwin(self.clock)
        self.carrier = ShareCarrier(self.loop, self.clock, self.direct)
        self.pool = pool(self.loop, self.clock)

    def come(self, is_streamed: bool) -> None:
        sent = outgoing(self.pool, STREAM if is_streamed else PLAIN)
        assert sent.pooling is not None
        reply = Reply()
        call = self.carrier.carry(b"k", sent.pooling, sent, Exchange("id", 0.0), reply)
        self.callers.append(Caller(call, reply, is_streamed))

    def leave(self, caller: Caller) -> None:
        caller.call.cancel()
        caller.is_gone, caller.heard = True, bytes(caller.reply.body)

    def say(self, number: int, length: int) -> None:
        """Let the upstream say the next bytes of a call that is under way."""
        call = self.direct.calls[number]
        body, begun = self._body(call), number in self.said
        if call.is_cancelled or call.is_paused or self.said.get(number, 0) >= len(body):
            return
        if not begun:
            self.said[number] = 0
            call.head(stream_head() if call.outgoing.body == STREAM else json_head())
            return
        position = self.said[number]
        self.said[number] = position + length
        call.data(body[position : position + length])
        if self.said[number] >= len(body):
            call.end()

    @staticmethod
    def _body(call: DirectCall) -> bytes:
        return EVENTS if call.outgoing.body == STREAM else WHOLE

    def finish(self) -> None:
        for caller in self.callers:
            if not caller.is_gone:
                caller.call.resume()
        for number in range(len(self.direct.calls)):
            while not self.direct.calls[number].is_cancelled and self.said.get(number, 0) < len(EVENTS):
                before = self.said.get(number, -1)
                self.say(number, 10_000)
                self.turn()
                if self.said.get(number, -1) == before:
                    break
        self.turn()

    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.booleans()),
        st.tuples(st.sampled_from(["leave", "pause", "resume"]), st.integers(0, 30)),
        st.tuples(st.just("say"), st.integers(1, 400)),
        st.tuples(st.just("turn"), st.none()),
    ),
    max_size=60,
)


def play(world: World, steps: list[tuple[str, object]]) -> None:
    for name, value in steps:
        here = [caller for caller in world.callers if not caller.is_gone]
        match name, value:
            case "come", bool():
                world.come(value)
            case "say", int():
                for number in range(len(world.direct.calls)):
                    world.say(number, value)
            case "leave" | "pause" | "resume", int() if here:
                caller = here[value % len(here)]
                if name == "leave":
                    world.leave(caller)
                elif name == "pause":
                    caller.call.pause()
                else:
                    caller.call.resume()
            case _:
                world.turn()


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_whoever_stays_hears_everything_and_whoever_leaves_nothing_more(
    steps: list[tuple[str, object]],
) -> None:
    loop = asyncio.new_event_loop()
    try:
        world = World(loop)
        play(world, steps)
        world.finish()
        for caller in world.callers:
            assert caller.reply.faults == []
            if caller.is_gone:
                assert bytes(caller.reply.body) == caller.heard
                continue
            assert caller.reply.events[-1] == "ended"
            if caller.is_streamed and bytes(caller.reply.body) != EVENTS:
                assert caller.reply.body.endswith(b"data: [DONE]\n\n")
                assert b'"content":' + json.dumps(TEXT).encode() in caller.reply.body
            elif not caller.is_streamed:
                assert json.loads(caller.reply.body)["choices"][0]["message"]["content"] == TEXT
        assert world.carrier.calls == 0
        assert world.carrier.kept_bytes == 0
    finally:
        loop.close()


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_a_break_ends_everybody_once(steps: list[tuple[str, object]]) -> None:
    loop = asyncio.new_event_loop()
    try:
        world = World(loop)
        play(world, steps)
        open_calls = [call for call in world.direct.calls if not call.is_cancelled]
        for number, call in enumerate(world.direct.calls):
            if call in open_calls and world.said.get(number, 0) < len(world._body(call)):
                call.fail(ProxyError(UPSTREAM_CLOSED, "cut"))
        for caller in world.callers:
            if not caller.is_gone:
                caller.call.resume()
        world.turn()
        for caller in world.callers:
            assert caller.reply.faults == []
            assert caller.is_gone or caller.reply.is_over
        assert world.carrier.calls == 0
        assert world.carrier.kept_bytes == 0
    finally:
        loop.close()
