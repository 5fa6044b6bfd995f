"""Whether and which tools a simulated answer calls.

It owns the rule, the same for every API shape: never with `none`; always with `required` or a named tool;
else when a header says so, or when the last message is a user's who names a tool or asks for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ASKS_FOR_A_TOOL = re.compile(r"\b(?:use|call|invoke|run)\b[^.?!\n]{0,40}\btools?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the caller offers. `is_custom`: it takes free text instead of JSON arguments."""

    name: str
    parameters: object = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ToolWish:
    """What a request says about calling: `mode` is none, auto or required; `named` restricts to one tool."""

    mode: str = "auto"
    named: str | None = None
    may_be_parallel: bool = True


def tools_to_call(
    tools: Sequence[ToolSpec], wish: ToolWish, last_user_text: str | None, asked_count: int | None
) -> tuple[ToolSpec, ...]:
    """Return the tools that the answer calls, in order; `asked_count` is what `x-sim-tool-call` says."""
    offered = [tool for tool in tools if wish.named in (None, tool.name)]
    if not offered or wish.mode == "none" or asked_count == 0:
        return ()
    if asked_count is not None:
        return tuple(offered[index % len(offered)] for index in range(asked_count))
    mentioned = [
        tool for tool in offered if last_user_text is not None and _mentions(last_user_text, tool.name)
    ]
    if mentioned:
        return tuple(mentioned if wish.may_be_parallel else mentioned[:1])
    is_asked_for = last_user_text is not None and _ASKS_FOR_A_TOOL.search(last_user_text) is not None
    if wish.mode == "required" or wish.named is not None or is_asked_for:
        return (offered[0],)
    return ()


def _mentions(text: str, name: str) -> bool:
    lower = text.lower()
    return name.lower() in lower or name.lower().replace("_", " ") in lower
