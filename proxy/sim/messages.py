"""/v1/messages: reading a request into work, and an answer's body and events.

It owns Anthropic's shape on the wire: content blocks, named events, usage that counts cached tokens apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from proxy.sim import body as fields
from proxy.sim.body import Json
from proxy.sim.cache import Block, breakpoint_marks
from proxy.sim.errors import ApiError, Family
from proxy.sim.generation import Ask, Choice, Finish, ask_key, generate
from proxy.sim.messages_rules import check_messages_request
from proxy.sim.prompt import content_tokens, json_tokens, part_tokens, plain_text
from proxy.sim.text import digest_of
from proxy.sim.tools import ToolSpec, ToolWish, tools_to_call
from proxy.sim.work import Bill, Call, Event, Identity, Shape, Work, named_event

_MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_LONG_LIFETIME_SECONDS = 3600.0


def read(call: Call) -> Work:
    """Return the work in a Messages request. Raises ApiError."""
    body = call.body
    check_messages_request(body, call.headers)
    model = str(body["model"])
    blocks = prompt_blocks(body)
    tokens = [token for block in blocks for token in block.tokens]
    cap = fields.integer(body, "max_tokens", 1) or 1
    thinks = (fields.mapping(body, "thinking") or {}).get("type") in ("enabled", "adaptive")
    thought = (
        call.faults.reasoning if call.faults.reasoning is not None else call.scenario.timing.reasoning_tokens
    )
    ask = Ask(
        key=ask_key(call.scenario.seed, model, tokens),
        cap_tokens=cap,
        stops=fields.stop_sequences(body, "stop_sequences", limit=None),
        calls=_calls(body, call.faults.tool_call),
        reasoning_tokens=thought if thinks else 0,
    )
    choice = generate(ask, 0, call.scenario.timing, call.faults)
    marks = breakpoint_marks(blocks, call.scenario.cache)
    return Work(
        answer=MessagesAnswer(call.identity, model, choice),
        model=model,
        input_tokens=len(tokens),
        cache_marks=marks,
        bills_cache_write=True,
        choices=(choice,),
        is_stream=fields.flag(body, "stream"),
        tier="default",
        requested_tokens=cap,
    )


SHAPE = Shape("/v1/messages", Family.ANTHROPIC, read)


def prompt_blocks(body: Json) -> tuple[Block, ...]:
    """Return the prompt in the order in which it is cached (tools, system, messages), block by block."""
    blocks = [_block(tool, json_tokens(tool)) for tool in fields.sequence(body, "tools") or ()]
    system = body.get("system")
    if isinstance(system, str):
        blocks.append(Block(content_tokens(system)))
    elif isinstance(system, list):
        blocks += [_block(part, part_tokens(part)) for part in system]
    for message in fields.sequence(body, "messages") or ():
        entry = fields.as_mapping(message, "messages")
        blocks.append(Block(("<start>", f"<{entry['role']}>", "<message>")))
        content = entry["content"]
        parts = content if isinstance(content, list) else [content]
        blocks += [_block(part, part_tokens(part)) for part in parts]
    if body.get("cache_control"):
        blocks[-1] = Block(blocks[-1].tokens, True, _lifetime(body))
    return tuple(blocks)


def _block(part: object, tokens: tuple[str, ...]) -> Block:
    if isinstance(part, Mapping) and part.get("cache_control"):
        return Block(tokens, True, _lifetime(part))
    return Block(tokens)


def _lifetime(part: Mapping[str, object]) -> float | None:
    control = part.get("cache_control")
    is_long = isinstance(control, Mapping) and control.get("ttl") == "1h"
    return _LONG_LIFETIME_SECONDS if is_long else None


def _calls(body: Json, asked_count: int | None) -> tuple[ToolSpec, ...]:
    entries = [fields.as_mapping(tool, "tools") for tool in fields.sequence(body, "tools") or ()]
    tools = [
        ToolSpec(str(entry["name"]), entry.get("input_schema"))
        for entry in entries
        if "input_schema" in entry
    ]
    choice = fields.mapping(body, "tool_choice") or {}
    named = choice.get("name")
    wish = ToolWish(
        _MODES.get(str(choice.get("type", "auto")), "auto"),
        named if isinstance(named, str) else None,
        not fields.flag(choice, "disable_parallel_tool_use"),
    )
    last = fields.as_mapping((fields.sequence(body, "messages") or ({},))[-1], "messages")
    said = plain_text(last.get("content")) if last.get("role") == "user" else None
    return tools_to_call(tools, wish, said, asked_count)


@dataclass(frozen=True, slots=True)
class MessagesAnswer:
    """A message: its blocks in order are thinking (if any), then text or tool uses."""

    identity: Identity
    model: str
    choice: Choice

    def whole(self, bill: Bill) -> dict[str, object]:
        """Return the finished `message` object."""
        return {
            **self._opening(),
            "content": [self._finished(index) for index in range(len(self._kinds()))],
            "stop_reason": self._stop_reason(),
            "stop_sequence": self.choice.stop_sequence,
            "usage": _usage(bill, bill.output_tokens),
        }

    def _opening(self) -> dict[str, object]:
        return {
            "id": self.identity.make("msg_01"),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _stop_reason(self) -> str:
        if self.choice.stop_sequence is not None:
            return "stop_sequence"
        return {Finish.STOP: "end_turn", Finish.LENGTH: "max_tokens", Finish.TOOLS: "tool_use"}[
            self.choice.finish
        ]

    def _kinds(self) -> list[str]:
        kinds = ["thinking"] if self.choice.reasoning else []
        if self.choice.calls:
            return kinds + ["tool_use"] * len(self.choice.calls)
        return [*kinds, "text"] if self.choice.pieces else kinds

    def _call_number(self, index: int) -> int:
        return index - int(bool(self.choice.reasoning))

    def _begun(self, index: int) -> dict[str, object]:
        match self._kinds()[index]:
            case "thinking":
                return {"type": "thinking", "thinking": "", "signature": ""}
            case "tool_use":
                number = self._call_number(index)
                call_id = self.identity.make("toolu_01", str(number))
                return {
                    "type": "tool_use",
                    "id": call_id,
                    "name": self.choice.calls[number].name,
                    "input": {},
                }
            case _:
                return {"type": "text", "text": ""}

    def _finished(self, index: int) -> dict[str, object]:
        begun = self._begun(index)
        match begun["type"]:
            case "thinking":
                return {**begun, "thinking": "".join(self.choice.reasoning), "signature": self._signature()}
            case "tool_use":
                return {**begun, "input": _parsed(self.choice.calls[self._call_number(index)].arguments)}
            case _:
                return {**begun, "text": self.choice.text}

    def _signature(self) -> str:
        return "sim" + digest_of(self.choice.reasoning)

    def events(self, bill: Bill) -> Iterator[Event]:
        """Yield `message_start`, the blocks, a `ping` inside the first, `message_delta`, `message_stop`."""
        opening = {**self._opening(), "usage": _usage(bill, 1)}
        yield _event(0, "message_start", {"message": opening}, opening=True)
        step = 0
        for index in range(len(self._kinds())):
            yield _event(step, "content_block_start", {"index": index, "content_block": self._begun(index)})
            if index == 0:
                yield _event(step, "ping", {})
            for due, delta in self._deltas(index, step):
                step = due
                yield _event(step, "content_block_delta", {"index": index, "delta": delta})
            yield _event(step, "content_block_stop", {"index": index})
            step = min(step + 1, max(self.choice.tokens - 1, 0))
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self.choice.stop_sequence}
        usage = _usage(bill, bill.output_tokens)
        yield _event(step, "message_delta", {"delta": delta, "usage": usage})
        yield _event(step, "message_stop", {}, closing=True)

    def _deltas(self, index: int, step: int) -> Iterator[tuple[int, dict[str, object]]]:
        match self._kinds()[index]:
            case "thinking":
                for offset, piece in enumerate(self.choice.reasoning):
                    yield step + offset, {"type": "thinking_delta", "thinking": piece}
                end = step + len(self.choice.reasoning) - 1
                yield end, {"type": "signature_delta", "signature": self._signature()}
            case "tool_use":
                fragments = self.choice.calls[self._call_number(index)].fragments
                for offset, piece in enumerate(fragments, start=1):
                    yield step + offset, {"type": "input_json_delta", "partial_json": piece}
            case _:
                for offset, piece in enumerate(self.choice.pieces):
                    yield step + offset, {"type": "text_delta", "text": piece}


def _event(
    step: int, name: str, fields_: Mapping[str, object], opening: bool = False, closing: bool = False
) -> Event:
    return Event(step, named_event(name, {"type": name, **fields_}), opening, closing)


def _parsed(arguments: str) -> object:
    """Return tool input as an object; a call cut by the cap has an empty one, as its text is not JSON."""
    try:
        return fields.parse_body(arguments.encode("utf-8", "replace"))
    except ApiError:
        return {}


def _usage(bill: Bill, output_tokens: int) -> dict[str, object]:
    """Return `usage`: `input_tokens` are only those neither read from nor put into the cache."""
    return {
        "input_tokens": bill.input_tokens - bill.cached_tokens - bill.cache_write_tokens,
        "cache_creation_input_tokens": bill.cache_write_tokens,
        "cache_read_input_tokens": bill.cached_tokens,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }
