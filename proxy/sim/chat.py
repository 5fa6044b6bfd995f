"""/v1/chat/completions: reading a request into work, and an answer's body and events.

It owns the shape on the wire. What is legal stands in chat_rules, what is written in generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from proxy.sim import body as fields
from proxy.sim.body import Json
from proxy.sim.cache import automatic_marks
from proxy.sim.chat_rules import check_chat
from proxy.sim.errors import Family
from proxy.sim.generation import ANY_JSON, Ask, Choice, ToolCall, ask_key, generate, reasoning_tokens
from proxy.sim.prompt import json_tokens, message_tokens, plain_text
from proxy.sim.tiers import read_tier
from proxy.sim.tools import ToolSpec, ToolWish, tools_to_call
from proxy.sim.work import DONE, Bill, Call, Event, Identity, Shape, Work, data_event

_PRIMING = ("<start>", "<assistant>", "<message>")


def read(call: Call) -> Work:
    """Return the work in a chat request. Raises ApiError."""
    body = call.body
    check_chat(body)
    model = str(body["model"])
    tokens = prompt_tokens(body)
    cap = fields.integer(body, "max_completion_tokens", 1) or fields.integer(body, "max_tokens", 1)
    ask = Ask(
        key=ask_key(call.scenario.seed, model, tokens),
        cap_tokens=cap,
        stops=fields.stop_sequences(body),
        calls=_calls(call),
        json_schema=_schema(body),
        reasoning_tokens=reasoning_tokens(
            call.scenario.timing, call.faults, model, fields.text(body, "reasoning_effort")
        ),
    )
    count = fields.integer(body, "n", 1) or 1
    choices = tuple(generate(ask, index, call.scenario.timing, call.faults) for index in range(count))
    options = fields.mapping(body, "stream_options") or {}
    answer = ChatAnswer(
        identity=call.identity,
        answer_id=call.identity.make("chatcmpl-"),
        model=model,
        choices=choices,
        includes_usage=fields.flag(options, "include_usage"),
        shows_reasoning=call.faults.reasoning is not None,
        has_logprobs=fields.flag(body, "logprobs"),
    )
    return Work(
        answer=answer,
        model=model,
        input_tokens=len(tokens),
        cache_marks=automatic_marks(tokens, call.scenario.cache),
        choices=choices,
        is_stream=fields.flag(body, "stream"),
        tier=read_tier(body, call.scenario.flex.offered),
        requested_tokens=(cap or 0) * count,
    )


SHAPE = Shape("/v1/chat/completions", Family.OPENAI, read)


def prompt_tokens(body: Json) -> tuple[str, ...]:
    """Return the prompt in the order in which providers cache it: tools and schema, then messages."""
    parts = [json_tokens(body.get(name)) for name in ("tools", "functions")]
    wanted = body.get("response_format")
    parts.append(json_tokens(wanted.get("json_schema")) if isinstance(wanted, Mapping) else ())
    for message in _messages(body):
        extra = (message.get(key) for key in ("name", "tool_calls", "function_call"))
        parts.append(message_tokens(str(message["role"]), message.get("content"), *extra))
    parts.append(_PRIMING)
    return tuple(chain.from_iterable(parts))


def _messages(body: Json) -> Sequence[Json]:
    messages = fields.sequence(body, "messages") or ()
    return [fields.as_mapping(message, "messages") for message in messages]


def _calls(call: Call) -> tuple[ToolSpec, ...]:
    tools = []
    for tool in fields.sequence(call.body, "tools") or ():
        entry = fields.as_mapping(tool, "tools")
        inner = fields.mapping(entry, str(entry["type"])) or {}
        tools.append(ToolSpec(str(inner["name"]), inner.get("parameters"), entry["type"] == "custom"))
    last = _messages(call.body)[-1]
    said = plain_text(last.get("content")) if last["role"] == "user" else None
    return tools_to_call(tools, _wish(call.body), said, call.faults.tool_call)


def _wish(body: Json) -> ToolWish:
    choice = body.get("tool_choice")
    is_parallel = fields.flag(body, "parallel_tool_calls", True)
    if isinstance(choice, Mapping):
        named = choice.get(str(choice.get("type")))
        return ToolWish(
            "required", str(named.get("name")) if isinstance(named, Mapping) else None, is_parallel
        )
    return ToolWish(str(choice or "auto"), None, is_parallel)


def _schema(body: Json) -> object:
    wanted = fields.mapping(body, "response_format") or {}
    if wanted.get("type") == "json_schema":
        return (fields.mapping(wanted, "json_schema") or {}).get("schema")
    return ANY_JSON if wanted.get("type") == "json_object" else None


def usage_of(bill: Bill) -> dict[str, object]:
    """Return `usage` as chat and completions report it."""
    return {
        "prompt_tokens": bill.input_tokens,
        "completion_tokens": bill.output_tokens,
        "total_tokens": bill.total_tokens,
        "prompt_tokens_details": {"cached_tokens": bill.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": bill.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A chat answer. `shows_reasoning` adds `reasoning_content`, as DeepSeek and vLLM do, not OpenAI."""

    identity: Identity
    answer_id: str
    model: str
    choices: tuple[Choice, ...]
    includes_usage: bool
    shows_reasoning: bool
    has_logprobs: bool

    def whole(self, bill: Bill) -> dict[str, object]:
        """Return the `chat.completion` object."""
        return {
            "id": self.answer_id,
            "object": "chat.completion",
            "created": self.identity.created,
            "model": self.model,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self.choices)],
            "usage": usage_of(bill),
            "service_tier": bill.tier,
            "system_fingerprint": "fp_sim",
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": choice.text, "refusal": None}
        if self.shows_reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls:
            message["content"] = None
            message["tool_calls"] = [
                self._call(index, number, call, call.arguments) for number, call in enumerate(choice.calls)
            ]
        message["annotations"] = []
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.pieces),
            "finish_reason": choice.finish.value,
        }

    def _call(self, index: int, number: int, call: ToolCall, arguments: str) -> dict[str, object]:
        kind, field = ("custom", "input") if call.is_custom else ("function", "arguments")
        call_id = self.identity.make("call_", str(index), str(number))
        return {"id": call_id, "type": kind, kind: {"name": call.name, field: arguments}}

    def _logprobs(self, pieces: Sequence[str]) -> dict[str, object] | None:
        if not self.has_logprobs:
            return None
        content = [
            {"token": piece, "logprob": -0.01, "bytes": list(piece.encode()), "top_logprobs": []}
            for piece in pieces
        ]
        return {"content": content, "refusal": None}

    def events(self, bill: Bill) -> Iterator[Event]:
        """Yield chunks, choices interleaved token by token, then usage if asked, then `[DONE]`."""
        for index, choice in enumerate(self.choices):
            role: dict[str, object] = {
                "role": "assistant",
                "content": None if choice.calls else "",
                "refusal": None,
            }
            yield Event(0, self._chunk(bill, index, role), opening=True)
        timed = [
            (step, index, delta, finish)
            for index, choice in enumerate(self.choices)
            for step, delta, finish in self._deltas(index, choice)
        ]
        for step, index, delta, finish in sorted(timed, key=lambda item: (item[0], item[1])):
            yield Event(step, self._chunk(bill, index, delta, finish))
        last = max(choice.tokens for choice in self.choices) - 1
        if self.includes_usage:
            yield Event(max(last, 0), self._envelope(bill, [], usage_of(bill)))
        yield Event(max(last, 0), DONE, closing=True)

    def _deltas(self, index: int, choice: Choice) -> Iterator[tuple[int, dict[str, object], str | None]]:
        step = len(choice.reasoning)
        if self.shows_reasoning:
            for number, piece in enumerate(choice.reasoning):
                yield number, {"reasoning_content": piece}, None
        for piece in choice.pieces:
            yield step, {"content": piece}, None
            step += 1
        for number, call in enumerate(choice.calls):
            kind, field = ("custom", "input") if call.is_custom else ("function", "arguments")
            yield step, {"tool_calls": [{"index": number, **self._call(index, number, call, "")}]}, None
            for fragment in call.fragments:
                step += 1
                yield step, {"tool_calls": [{"index": number, kind: {field: fragment}}]}, None
            step += 1
        yield max(choice.tokens - 1, 0), {}, choice.finish.value

    def _chunk(self, bill: Bill, index: int, delta: Mapping[str, object], finish: str | None = None) -> bytes:
        piece = delta.get("content")
        logprobs = self._logprobs([piece]) if isinstance(piece, str) and piece else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._envelope(bill, [choice], None)

    def _envelope(self, bill: Bill, choices: list[object], usage: object) -> bytes:
        chunk: dict[str, object] = {
            "id": self.answer_id,
            "object": "chat.completion.chunk",
            "created": self.identity.created,
            "model": self.model,
            "service_tier": bill.tier,
            "system_fingerprint": "fp_sim",
            "choices": choices,
        }
        if self.includes_usage:
            chunk["usage"] = usage
        return data_event(chunk)
