"""Reads the elements of a Responses conversation: typed items, understood where documented."""

from __future__ import annotations

from proxy.dialects.elements import ASSISTANT, BY_ROLE, OPAQUE, TOOL, Element, Role, read_head

_REASONING = Element(Role.ASSISTANT, is_reasoning=True)
# Calls that whoever sent the request answers with an item of the type in `_OUTPUTS`, found by `call_id`.
_CALLS = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
    }
)
_OUTPUTS = frozenset(kind + "_output" for kind in _CALLS)
# Calls that the provider runs itself; they carry their own results. Others (MCP lists and approvals,
# compaction, references, programs, whatever comes next) may be needed by items that Weir cannot tell.
_HOSTED = frozenset({"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"})


def read_responses_element(raw: bytes) -> Element:
    """Return what an item is."""
    head = read_head(raw)
    if head is None:
        return OPAQUE
    match head.type:
        case None | "message":
            element = BY_ROLE.get(head.role, OPAQUE) if isinstance(head.role, str) else OPAQUE
            # Tools have items of their own here.
            return OPAQUE if element is TOOL else element
        case "reasoning":
            return _REASONING
        case str(kind) if kind in _CALLS:
            return _paired(Role.ASSISTANT, head.call_id)
        case "local_shell_call_output" if head.call_id is None:
            # Its `id` is the `call_id` of its call (OpenAI's SDK, `ResponseInputItemParam`).
            return _paired(Role.TOOL, head.id)
        case str(kind) if kind in _OUTPUTS:
            return _paired(Role.TOOL, head.call_id)
        case str(kind) if kind in _HOSTED:
            return ASSISTANT
        case _:
            return OPAQUE


def _paired(role: Role, call_id: object) -> Element:
    if not isinstance(call_id, str):
        return OPAQUE
    return Element(role, call_id=call_id, calls=role is Role.ASSISTANT)
