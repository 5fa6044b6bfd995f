"""What makes a Messages request legal: fields, roles, tool pairing, thinking.

It owns the refusals of /v1/messages, worded as Anthropic words them where the wording is known, and refuses
to object to fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.sim import body as fields
from proxy.sim.body import Json
from proxy.sim.chat_rules import check_tool_name
from proxy.sim.errors import ApiError, invalid

_MIN_THINKING_TOKENS = 1024
_MAX_BREAKPOINTS = 4


def check_messages_request(body: Json, headers: Mapping[str, str], needs_cap: bool = True) -> None:
    """Raise ApiError (400) unless this is a legal Messages request.

    `needs_cap` is false where only its tokens are to be counted.
    """
    if "anthropic-version" not in headers:
        raise invalid("anthropic-version", "anthropic-version: header is required")
    for name in ("model", "messages", "max_tokens") if needs_cap else ("model", "messages"):
        if body.get(name) is None:
            raise invalid(name, f"{name}: Field required")
    fields.required_text(body, "model")
    cap = fields.integer(body, "max_tokens", 1)
    fields.decimal(body, "temperature", 0, 1)
    fields.decimal(body, "top_p", 0, 1)
    fields.flag(body, "stream")
    _check_stops(body)
    _check_thinking(body, cap)
    for index, tool in enumerate(fields.sequence(body, "tools") or ()):
        check_tool_name(fields.as_mapping(tool, f"tools.{index}"), f"tools.{index}")
    _check_messages(fields.sequence(body, "messages") or ())
    _check_breakpoints(body)


def _check_stops(body: Json) -> None:
    for index, stop in enumerate(fields.stop_sequences(body, "stop_sequences", limit=None)):
        if not stop.strip():
            raise invalid(
                "stop_sequences", f"stop_sequences.{index}: each stop sequence must contain non-whitespace"
            )


def _check_thinking(body: Json, cap: int | None) -> None:
    thinking = fields.mapping(body, "thinking")
    if thinking is None or thinking.get("type") != "enabled":
        return
    budget = fields.integer(thinking, "budget_tokens", 1)
    param = "thinking.enabled.budget_tokens"
    if budget is None:
        raise invalid(param, f"{param}: Field required")
    if budget < _MIN_THINKING_TOKENS:
        message = f"{param}: Input should be greater than or equal to {_MIN_THINKING_TOKENS}"
        raise invalid(param, message)
    if cap is not None and budget >= cap:
        raise ApiError(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")


def _check_messages(messages: Sequence[object]) -> None:
    if not messages:
        raise invalid("messages", "messages: at least one message is required")
    waiting: list[str] = []
    for index, value in enumerate(messages):
        message = fields.as_mapping(value, f"messages.{index}")
        role = message.get("role")
        if role not in ("user", "assistant"):
            raise _bad_role(index, role)
        blocks = _blocks(index, message, is_last=index == len(messages) - 1)
        _check_results(index, blocks, waiting)
        waiting = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
    if waiting:
        raise _unanswered(len(messages) - 1, waiting)


def _bad_role(index: int, role: object) -> ApiError:
    if role == "system":
        return invalid(
            "messages",
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, '
            'not "system" as an input message role.',
        )
    return invalid(f"messages.{index}.role", f"messages.{index}.role: Input should be 'user' or 'assistant'")


def _blocks(index: int, message: Json, is_last: bool) -> Sequence[Json]:
    content = message.get("content")
    if not isinstance(content, str | list):
        raise invalid(f"messages.{index}.content", f"messages.{index}.content: Field required")
    if not content and not (is_last and message.get("role") == "assistant"):
        problem = "all messages must have non-empty content except for the optional final assistant message"
        raise invalid(f"messages.{index}", f"messages.{index}: {problem}")
    if isinstance(content, str):
        return []
    blocks = [fields.as_mapping(block, f"messages.{index}.content.{n}") for n, block in enumerate(content)]
    for number, block in enumerate(blocks):
        if block.get("type") == "text" and not block.get("text"):
            param = f"messages.{index}.content.{number}.text"
            raise invalid(param, f"{param}: text content blocks must be non-empty")
    return blocks


def _check_results(index: int, blocks: Sequence[Json], waiting: Sequence[str]) -> None:
    answered = [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
    missing = [call_id for call_id in waiting if call_id not in answered]
    if missing:
        raise _unanswered(index - 1, missing)
    for call_id in answered:
        if call_id not in waiting:
            param = f"messages.{index}.content"
            message = f"{param}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}"
            raise invalid(param, message)


def _unanswered(index: int, call_ids: Sequence[str]) -> ApiError:
    param = f"messages.{index}"
    return invalid(
        param,
        f"{param}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(call_ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
        "next message.",
    )


def _check_breakpoints(body: Json) -> None:
    count = _count_breakpoints([body.get("tools"), body.get("system"), body.get("messages")])
    if count > _MAX_BREAKPOINTS:
        message = f"A maximum of {_MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {count}."
        raise ApiError(400, message)


def _count_breakpoints(value: object) -> int:
    if isinstance(value, list):
        return sum(_count_breakpoints(item) for item in value)
    if not isinstance(value, Mapping):
        return 0
    return int(bool(value.get("cache_control"))) + _count_breakpoints(value.get("content"))
