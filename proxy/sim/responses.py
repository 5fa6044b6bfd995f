"""/v1/responses: reading a request into work, and the response object.

It owns the shape of the object and of its items. The order of its events stands in responses_events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from proxy.sim import body as fields
from proxy.sim.body import Json
from proxy.sim.cache import automatic_marks
from proxy.sim.deferred.response_book import StoredResponse
from proxy.sim.errors import Family, invalid
from proxy.sim.generation import ANY_JSON, Ask, Choice, Finish, ask_key, generate, reasoning_tokens
from proxy.sim.prompt import json_tokens, message_tokens, plain_text
from proxy.sim.responses_events import response_events
from proxy.sim.responses_rules import check_responses
from proxy.sim.tiers import read_tier
from proxy.sim.tools import ToolSpec, ToolWish, tools_to_call
from proxy.sim.work import Bill, Call, Event, Identity, Shape, Work


def read(call: Call) -> Work:
    """Return the work in a Responses request that is answered at once. Raises ApiError."""
    body = call.body
    check_responses(body)
    model = str(body["model"])
    earlier = _earlier(call)
    tokens = prompt_tokens(body, earlier)
    cap = fields.integer(body, "max_output_tokens", 1)
    effort = fields.text(fields.mapping(body, "reasoning") or {}, "effort")
    ask = Ask(
        key=ask_key(call.scenario.seed, model, tokens),
        cap_tokens=cap,
        calls=_calls(body, call.faults.tool_call),
        json_schema=_schema(body),
        reasoning_tokens=reasoning_tokens(call.scenario.timing, call.faults, model, effort),
    )
    choice = generate(ask, 0, call.scenario.timing, call.faults)
    answer_id = call.identity.make("resp_", length=48)
    answer = ResponsesAnswer(call.identity, answer_id, model, choice, body)
    is_stored = fields.flag(body, "store", True)
    if is_stored:
        said = earlier + _input_tokens(body) + message_tokens("assistant", choice.text, _calls_said(choice))
        call.books.conversations.keep(call.caller, answer_id, said)
    return Work(
        answer=answer,
        model=model,
        input_tokens=len(tokens),
        cache_marks=automatic_marks(tokens, call.scenario.cache),
        choices=(choice,),
        is_stream=fields.flag(body, "stream"),
        tier=read_tier(body, call.scenario.flex.offered),
        requested_tokens=cap or 0,
        remember=(lambda bill: _store(call, answer, bill)) if is_stored else None,
    )


SHAPE = Shape("/v1/responses", Family.OPENAI, read)


def _store(call: Call, answer: ResponsesAnswer, bill: Bill) -> None:
    call.books.responses.keep(StoredResponse(answer.answer_id, call.caller, answer.whole(bill)))


def prompt_tokens(body: Json, earlier: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the prompt in the order in which it is cached: tools, schema, instructions, then items."""
    head = json_tokens(body.get("tools")) + json_tokens(_schema(body))
    instructions = body.get("instructions")
    system = message_tokens("system", instructions) if instructions else ()
    return head + system + earlier + _input_tokens(body)


def _input_tokens(body: Json) -> tuple[str, ...]:
    value = body["input"]
    if isinstance(value, str):
        return message_tokens("user", value)
    tokens: list[str] = []
    for item in _items(value):
        if item.get("type", "message") == "message":
            tokens += message_tokens(str(item["role"]), item["content"])
        else:
            tokens += ("<item>", *json_tokens({key: part for key, part in item.items() if key != "id"}))
    return tuple(tokens)


def _items(value: object) -> Sequence[Json]:
    return [fields.as_mapping(item, "input") for item in value] if isinstance(value, list) else []


def _earlier(call: Call) -> tuple[str, ...]:
    previous = fields.text(call.body, "previous_response_id")
    if previous is None:
        return ()
    tokens = call.books.conversations.recall(call.caller, previous)
    if tokens is None:
        message = f"Previous response with id '{previous}' not found."
        raise invalid("previous_response_id", message, "previous_response_not_found")
    return tokens


def _calls_said(choice: Choice) -> list[object]:
    return [{"name": call.name, "arguments": call.arguments} for call in choice.calls]


def _calls(body: Json, asked_count: int | None) -> tuple[ToolSpec, ...]:
    entries = [fields.as_mapping(tool, "tools") for tool in fields.sequence(body, "tools") or ()]
    tools = [
        ToolSpec(str(entry["name"]), entry.get("parameters"), entry["type"] == "custom")
        for entry in entries
        if entry["type"] in ("function", "custom")
    ]
    choice = body.get("tool_choice")
    is_parallel = fields.flag(body, "parallel_tool_calls", True)
    if isinstance(choice, Mapping):
        wish = ToolWish("required", str(choice.get("name")), is_parallel)
    else:
        wish = ToolWish(str(choice or "auto"), None, is_parallel)
    return tools_to_call(tools, wish, _last_user_text(body["input"]), asked_count)


def _last_user_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    last: Json = (_items(value) or [{}])[-1]
    return plain_text(last.get("content")) if last.get("role") == "user" else None


def _schema(body: Json) -> object:
    wanted = fields.mapping(fields.mapping(body, "text") or {}, "format") or {}
    if wanted.get("type") == "json_schema":
        return wanted.get("schema")
    return ANY_JSON if wanted.get("type") == "json_object" else None


@dataclass(frozen=True, slots=True)
class ResponsesAnswer:
    """A response: its items in order are reasoning (if any), then a message or function calls."""

    identity: Identity
    answer_id: str
    model: str
    choice: Choice
    body: Json

    def whole(self, bill: Bill) -> dict[str, object]:
        """Return the finished `response` object."""
        is_cut = self.choice.finish is Finish.LENGTH
        return {
            **self.opening(bill),
            "status": "incomplete" if is_cut else "completed",
            "completed_at": None if is_cut else self.identity.created,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self.items(),
            "usage": {
                "input_tokens": bill.input_tokens,
                "input_tokens_details": {"cached_tokens": bill.cached_tokens},
                "output_tokens": bill.output_tokens,
                "output_tokens_details": {"reasoning_tokens": bill.reasoning_tokens},
                "total_tokens": bill.total_tokens,
            },
        }

    def opening(self, bill: Bill) -> dict[str, object]:
        """Return the `response` object as it stands before anything has been written."""
        body = self.body
        return {
            "id": self.answer_id,
            "object": "response",
            "created_at": self.identity.created,
            "status": "in_progress",
            "background": body.get("background") or False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "model": self.model,
            "output": [],
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": body.get("previous_response_id"),
            "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
            "service_tier": bill.tier,
            "store": body.get("store", True),
            "temperature": body.get("temperature", 1.0),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p", 1.0),
            "truncation": body.get("truncation") or "disabled",
            "usage": None,
            "user": body.get("user"),
            "metadata": body.get("metadata") or {},
        }

    def items(self) -> list[dict[str, object]]:
        """Return the finished output items."""
        status = "incomplete" if self.choice.finish is Finish.LENGTH else "completed"
        items: list[dict[str, object]] = []
        if self.choice.reasoning:
            items.append({"id": self.identity.make("rs_", length=48), "type": "reasoning", "summary": []})
        if self.choice.calls:
            return items + self._call_items(status)
        if self.choice.pieces or status == "completed":
            part = {"type": "output_text", "annotations": [], "logprobs": [], "text": self.choice.text}
            message_id = self.identity.make("msg_", length=48)
            items.append(
                {
                    "id": message_id,
                    "type": "message",
                    "status": status,
                    "role": "assistant",
                    "content": [part],
                }
            )
        return items

    def _call_items(self, status: str) -> list[dict[str, object]]:
        items: list[dict[str, object]] = []
        for number, call in enumerate(self.choice.calls):
            kind, field, prefix = (
                ("custom_tool_call", "input", "ctc_")
                if call.is_custom
                else ("function_call", "arguments", "fc_")
            )
            is_last = number == len(self.choice.calls) - 1
            items.append(
                {
                    "id": self.identity.make(prefix, str(number), length=48),
                    "type": kind,
                    "status": status if is_last else "completed",
                    "call_id": self.identity.make("call_", str(number)),
                    "name": call.name,
                    field: call.arguments,
                }
            )
        return items

    def events(self, bill: Bill) -> Iterator[Event]:
        """Yield the named events, numbered from zero."""
        return response_events(
            self.opening(bill), self.items(), self.whole(bill), self.choice, self._starts()
        )

    def _starts(self) -> Sequence[int]:
        """Return the decode step at which each item begins."""
        starts = [0] if self.choice.reasoning else []
        step = len(self.choice.reasoning)
        if not self.choice.calls:
            return [*starts, step]
        for call in self.choice.calls:
            starts.append(step)
            step += 1 + len(call.fragments)
        return starts
