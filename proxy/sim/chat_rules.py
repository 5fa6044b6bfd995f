"""What makes a chat request legal: field types and ranges, message order, tool pairing, model restrictions.

It owns the refusals of /v1/chat/completions, worded as OpenAI words them where the wording is known, and
refuses to object to fields that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from proxy.sim import body as fields
from proxy.sim.body import Json
from proxy.sim.errors import ApiError, invalid, missing, unsupported, unsupported_value
from proxy.sim.generation import EFFORTS, is_reasoning_model
from proxy.sim.prompt import plain_text

_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ADVICE = "Use 'max_completion_tokens' instead."


def check_chat(body: Json) -> None:
    """Raise ApiError (400) unless `body` is a legal chat request."""
    model = fields.required_text(body, "model")
    check_messages(body)
    check_sampling(body)
    _check_caps(body)
    _check_stream(body)
    _check_tools(body)
    _check_response_format(body)
    if is_reasoning_model(model):
        check_reasoning_model(body)


def check_sampling(body: Json) -> None:
    """Check the sampling parameters that chat and completions share."""
    fields.integer(body, "n", 1, 128)
    fields.decimal(body, "temperature", 0, 2)
    fields.decimal(body, "top_p", 0, 1)
    fields.decimal(body, "presence_penalty", -2, 2)
    fields.decimal(body, "frequency_penalty", -2, 2)
    fields.integer(body, "seed", -(2**63), 2**63 - 1)
    fields.mapping(body, "logit_bias")
    fields.stop_sequences(body)


def _check_caps(body: Json) -> None:
    old = fields.integer(body, "max_tokens", 1)
    new = fields.integer(body, "max_completion_tokens", 1)
    if old is not None and new is not None:
        message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise invalid("max_tokens", message, "invalid_parameter_combination")
    if new is not None and body.get("prediction") is not None:
        raise invalid(
            "max_completion_tokens",
            "'max_completion_tokens' cannot be used together with 'prediction'.",
            None,
        )
    if fields.integer(body, "top_logprobs", 0, 20) is not None and not fields.flag(body, "logprobs"):
        raise invalid("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is enabled.", None)


def _check_stream(body: Json) -> None:
    check_stream_options(body)
    fields.one_of(body, "verbosity", ("low", "medium", "high"), "medium")


def check_stream_options(body: Json) -> None:
    """Check `stream` and what may only stand beside it."""
    is_stream = fields.flag(body, "stream")
    options = fields.mapping(body, "stream_options")
    if options is None:
        return
    if not is_stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise invalid("stream_options", message, None)
    fields.flag(options, "include_usage")


def check_reasoning_model(body: Json) -> None:
    """Refuse what reasoning models do not take; sampling values are refused only where reasoning is on."""
    if body.get("max_tokens") is not None:
        raise unsupported("max_tokens", _ADVICE)
    if body.get("stop") is not None:
        raise unsupported("stop")
    if fields.one_of(body, "reasoning_effort", EFFORTS, "medium") == "none":
        return
    for name, default in (
        ("temperature", 1),
        ("top_p", 1),
        ("presence_penalty", 0),
        ("frequency_penalty", 0),
    ):
        value = body.get(name)
        if value is not None and value != default:
            raise unsupported_value(name, value)
    for name in ("logprobs", "top_logprobs", "logit_bias"):
        if body.get(name):
            raise unsupported(name)


def check_messages(body: Json) -> None:
    """Check that the messages are there, well formed, and that tool calls and results belong together."""
    messages = fields.sequence(body, "messages")
    if messages is None:
        raise missing("messages")
    if not messages:
        raise invalid(
            "messages",
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty "
            "array instead.",
            "empty_array",
        )
    typed = [fields.as_mapping(message, f"messages[{index}]") for index, message in enumerate(messages)]
    for index, message in enumerate(typed):
        _check_message(index, message)
    _check_pairs(typed)


def _check_message(index: int, message: Json) -> None:
    role = message.get("role")
    if role is None:
        raise missing(f"messages[{index}].role")
    if role not in _ROLES:
        names = ", ".join(f"'{name}'" for name in _ROLES)
        raise invalid(f"messages[{index}].role", f"Invalid value: '{role}'. Supported values are: {names}.")
    content = message.get("content")
    may_be_empty = role == "assistant" and any(
        message.get(key) for key in ("tool_calls", "function_call", "audio", "refusal")
    )
    param = f"messages.[{index}].content"
    if content is None:
        if not may_be_empty and role != "function":
            raise invalid(param, "Invalid value for 'content': expected a string, got null.", None)
        return
    if not isinstance(content, str | list):
        raise invalid(
            param,
            f"Invalid type for '{param}': expected one of a string or array of objects, "
            f"but got {fields.type_name(content)} instead.",
            "invalid_type",
        )
    if isinstance(content, list):
        for number, part in enumerate(content):
            kind = fields.as_mapping(part, f"messages[{index}].content[{number}]").get("type")
            if not isinstance(kind, str):
                raise missing(f"messages[{index}].content[{number}].type")


def _check_pairs(messages: Sequence[Json]) -> None:
    waiting: set[object] = set()
    asked_at = -1
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str):
                raise missing(f"messages[{index}].tool_call_id")
            if call_id not in waiting:
                raise invalid(
                    f"messages.[{index}].role",
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
                    "with 'tool_calls'.",
                    None,
                )
            waiting.discard(call_id)
            continue
        _refuse_unanswered(waiting, asked_at)
        waiting, asked_at = set(_call_ids(message)), index
    _refuse_unanswered(waiting, asked_at)


def _call_ids(message: Json) -> list[object]:
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):
        return []
    return [call.get("id") for call in calls if isinstance(call, Mapping)]


def _refuse_unanswered(waiting: set[object], asked_at: int) -> None:
    if waiting:
        names = ", ".join(sorted(str(call_id) for call_id in waiting))
        raise invalid(
            f"messages.[{asked_at}].role",
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {names}",
            None,
        )


def _check_tools(body: Json) -> None:
    tools = fields.sequence(body, "tools")
    if tools is None or not tools:
        if tools is not None:
            raise invalid("tools", "Invalid 'tools': empty array. Expected at least one tool.", "empty_array")
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None and body.get(name) != "none":
                raise invalid(name, f"'{name}' is only allowed when 'tools' are specified.", None)
        return
    for index, tool in enumerate(tools):
        entry = fields.as_mapping(tool, f"tools[{index}]")
        kind = entry.get("type")
        if kind not in ("function", "custom"):
            message = f"Invalid value: '{kind}'. Supported values are: 'function' and 'custom'."
            raise invalid(f"tools[{index}].type", message)
        check_tool_name(fields.mapping(entry, str(kind)) or {}, f"tools[{index}].{kind}")


def check_tool_name(tool: Json, param: str) -> None:
    """Check that a tool has a name of the form that OpenAI and Anthropic accept."""
    name = tool.get("name")
    if name is None:
        raise missing(f"{param}.name")
    if not isinstance(name, str) or _TOOL_NAME.fullmatch(name) is None:
        message = (
            "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )
        raise invalid(f"{param}.name", f"Invalid '{param}.name': {message}")


def _check_response_format(body: Json) -> None:
    wanted = fields.mapping(body, "response_format")
    if wanted is None:
        return
    kind = fields.one_of(wanted, "type", ("json_object", "json_schema", "text"), "text", "response_format")
    if kind == "json_schema":
        schema = fields.mapping(wanted, "json_schema")
        if schema is None:
            raise missing("response_format.json_schema")
        check_schema(schema, "response_format.json_schema")
    if kind == "json_object" and not mentions_json(body.get("messages")):
        raise json_not_mentioned("messages")


def check_schema(entry: Json, param: str) -> None:
    """Check that a structured output format has a name and a schema."""
    if not isinstance(entry.get("name"), str):
        raise missing(f"{param}.name")
    if not isinstance(entry.get("schema"), dict):
        raise missing(f"{param}.schema")


def mentions_json(messages: object) -> bool:
    """Tell whether the word "json" occurs in any message."""
    if not isinstance(messages, list):
        return False
    return any("json" in plain_text(m.get("content")).lower() for m in messages if isinstance(m, Mapping))


def json_not_mentioned(param: str) -> ApiError:
    """Return the refusal of JSON mode whose prompt does not ask for JSON."""
    message = f"'{param}' must contain the word 'json' in some form, to use JSON mode ('json_object')."
    return invalid(param, message, None)
