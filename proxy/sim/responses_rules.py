"""What makes a Responses request legal: fields, item pairing, model restrictions.

It owns the refusals of /v1/responses, worded as OpenAI words them where the wording is known. Unknown
fields pass, but those of chat that this API does not have are refused, because sending them is a mistake of
translation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.sim import body as fields
from proxy.sim.body import Json
from proxy.sim.chat_rules import check_schema, check_tool_name, json_not_mentioned
from proxy.sim.errors import invalid, missing, unsupported, unsupported_value
from proxy.sim.generation import EFFORTS, is_reasoning_model
from proxy.sim.prompt import plain_text

_CHAT_ONLY = (
    "messages", "max_tokens", "max_completion_tokens", "stop", "n", "seed", "logit_bias", "frequency_penalty",
    "presence_penalty", "response_format", "functions", "reasoning_effort",
)  # fmt: skip
_MIN_OUTPUT_TOKENS = 16
SOONEST = "soonest"
WINDOW_HOURS: Mapping[str, int] = {SOONEST: 0, "2h": 2, "8h": 8}
_ROLES = ("user", "assistant", "system", "developer")


def check_responses(body: Json) -> None:
    """Raise ApiError (400) unless `body` is a legal Responses request."""
    model = fields.required_text(body, "model")
    for name in _CHAT_ONLY:
        if body.get(name) is not None:
            raise invalid(name, f"Unknown parameter: '{name}'.", "unknown_parameter")
    _check_background(body)
    fields.integer(body, "max_output_tokens", _MIN_OUTPUT_TOKENS)
    fields.decimal(body, "temperature", 0, 2)
    fields.decimal(body, "top_p", 0, 1)
    fields.flag(body, "stream")
    fields.text(body, "instructions")
    _check_input(body)
    _check_tools(body)
    _check_format(body)
    _check_reasoning(body, model)


def _check_background(body: Json) -> None:
    """Check the rules of OpenAI's guide "Background mode" on completion windows."""
    options = fields.mapping(body, "background_options") or {}
    for name in options:
        if name not in ("completion_window", "continuation_id"):
            param = f"background_options.{name}"
            raise invalid(param, f"Unknown parameter: '{param}'.", "unknown_parameter")
    window = fields.one_of(options, "completion_window", tuple(WINDOW_HOURS), SOONEST, "background_options")
    fields.text(options, "continuation_id")
    is_background = fields.flag(body, "background")
    if window == SOONEST:
        if is_background and fields.flag(body, "stream"):
            raise unsupported("stream", "The simulator does not stream responses in the background.")
        return
    param = "background_options.completion_window"
    if not is_background:
        raise invalid(param, f"The completion window '{window}' requires 'background' to be true.")
    if fields.flag(body, "stream"):
        raise invalid("stream", f"'stream' is not supported with the completion window '{window}'.")
    if fields.text(body, "service_tier") not in (None, "auto", "default"):
        raise invalid("service_tier", f"The completion window '{window}' requires standard processing.")


def _check_input(body: Json) -> None:
    value = body.get("input")
    if value is None:
        raise missing("input")
    if isinstance(value, str):
        return
    if not isinstance(value, list):
        raise fields.wrong_type("input", "a string or an array of input items", value)
    items = [fields.as_mapping(item, f"input[{index}]") for index, item in enumerate(value)]
    for index, item in enumerate(items):
        _check_item(index, item)
    _check_calls(items, body.get("previous_response_id") is not None)
    _check_reasoning_items(items)


def _check_item(index: int, item: Json) -> None:
    if item.get("type", "message") != "message":
        return
    role = item.get("role")
    if role is None:
        raise missing(f"input[{index}].role")
    if role not in _ROLES:
        names = ", ".join(f"'{name}'" for name in _ROLES)
        raise invalid(f"input[{index}].role", f"Invalid value: '{role}'. Supported values are: {names}.")
    if not isinstance(item.get("content"), str | list):
        raise fields.wrong_type(f"input[{index}].content", "a string or an array", item.get("content"))


def _check_calls(items: Sequence[Json], has_earlier_items: bool) -> None:
    called = [item.get("call_id") for item in items if item.get("type") == "function_call"]
    answered = [item.get("call_id") for item in items if item.get("type") == "function_call_output"]
    for call_id in answered:
        if call_id not in called and not has_earlier_items:
            message = f"No tool call found for function call output with call_id {call_id}."
            raise invalid("input", message, None)
    for call_id in called:
        if call_id not in answered:
            raise invalid("input", f"No tool output found for function call {call_id}.", None)


def _check_reasoning_items(items: Sequence[Json]) -> None:
    for index, item in enumerate(items):
        if item.get("type") != "reasoning":
            continue
        follower = items[index + 1] if index + 1 < len(items) else {}
        is_message = follower.get("type", "message") == "message"
        if not follower or (is_message and follower.get("role") != "assistant"):
            name = item.get("id", "")
            message = f"Item '{name}' of type 'reasoning' was provided without its required following item."
            raise invalid("input", message, None)


def _check_tools(body: Json) -> None:
    for index, tool in enumerate(fields.sequence(body, "tools") or ()):
        entry = fields.as_mapping(tool, f"tools[{index}]")
        if not isinstance(entry.get("type"), str):
            raise missing(f"tools[{index}].type")
        if entry["type"] in ("function", "custom"):
            check_tool_name(entry, f"tools[{index}]")
    if body.get("tool_choice") not in (None, "none", "auto") and not body.get("tools"):
        raise invalid("tool_choice", "Tool choices other than 'none' and 'auto' need 'tools'.", None)


def _check_format(body: Json) -> None:
    wanted = fields.mapping(fields.mapping(body, "text") or {}, "format")
    if wanted is None:
        return
    kind = wanted.get("type")
    if kind == "json_schema":
        check_schema(wanted, "text.format")
    if kind == "json_object" and not _mentions_json(body):
        raise json_not_mentioned("input")


def _mentions_json(body: Json) -> bool:
    value = body.get("input")
    texts = [str(body.get("instructions") or "")]
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list):
        texts += [plain_text(item.get("content")) for item in value if isinstance(item, Mapping)]
    return any("json" in text.lower() for text in texts)


def _check_reasoning(body: Json, model: str) -> None:
    reasoning = fields.mapping(body, "reasoning")
    effort = fields.one_of(reasoning or {}, "effort", EFFORTS, "medium", "reasoning")
    if not is_reasoning_model(model):
        if reasoning is not None and reasoning.get("effort") is not None:
            raise unsupported("reasoning.effort")
        return
    if effort == "none":
        return
    for name in ("temperature", "top_p"):
        value = body.get(name)
        if value is not None and value != 1:
            raise unsupported_value(name, value)
