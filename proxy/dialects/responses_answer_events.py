"""A complete Responses object told as its events: see `proxy.dialects.answer_events`.

    created, in_progress
    for each item   output_item.added, what it consists of, output_item.done
    completed | incomplete | failed

An item that has parts of its own begins empty and is filled by its events; any other begins whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.dialects.openai_events import compact_json

Json = Mapping[str, Any]
_Step = tuple[str, dict[str, Any]]

_ENDS = frozenset({"completed", "incomplete", "failed", "cancelled"})
_CALL_INPUTS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
    "mcp_call": ("arguments", "response.mcp_call_arguments"),
}
_TEXTS = {
    "output_text": ("text", "response.output_text"),
    "refusal": ("refusal", "response.refusal"),
    "reasoning_text": ("text", "response.reasoning_text"),
}


def response_events(answer: Json) -> bytes | None:
    """Return the event stream; `None` for what is no finished response. Raises what odd types raise."""
    status, output = answer.get("status"), answer.get("output")
    if answer.get("object") != "response" or status not in _ENDS or not isinstance(output, list):
        return None
    opening = {**answer, "status": "in_progress", "output": [], "usage": None, "error": None}
    opening["incomplete_details"] = None
    if "completed_at" in opening:
        opening["completed_at"] = None
    steps: list[_Step] = [
        ("response.created", {"response": opening}),
        ("response.in_progress", {"response": opening}),
    ]
    for index, item in enumerate(output):
        steps += _item(index, item)
    steps.append((f"response.{status}", {"response": answer}))
    return b"".join(
        b"event: %b\ndata: %b\n\n"
        % (name.encode("ascii"), compact_json({"type": name, "sequence_number": number, **fields}))
        for number, (name, fields) in enumerate(steps)
    )


def _item(index: int, item: Json) -> Iterator[_Step]:
    where = {"output_index": index}
    inner = {"item_id": item.get("id", ""), **where}
    kind = item.get("type")
    begun, steps = dict(item), []
    if kind in _CALL_INPUTS and isinstance(item.get(_CALL_INPUTS[kind][0]), str):
        field, family = _CALL_INPUTS[kind]
        begun[field] = ""
        steps = _call(item, field, family, inner)
    elif kind in ("message", "reasoning"):
        for list_name in ("summary", "content"):
            parts = item.get(list_name)
            if isinstance(parts, list):
                begun[list_name] = []
                counted = "summary_index" if list_name == "summary" else "content_index"
                for number, part in enumerate(parts):
                    steps += _part(part, list_name, {**inner, counted: number})
    if steps and "status" in begun:
        begun["status"] = "in_progress"
    yield "response.output_item.added", {**where, "item": begun if steps else item}
    yield from steps
    yield "response.output_item.done", {**where, "item": item}


def _call(item: Json, field: str, family: str, inner: Json) -> list[_Step]:
    given = item[field]
    done = {**inner, field: given}
    if item.get("type") == "function_call":
        done["name"] = item.get("name")
    return [(f"{family}.delta", {**inner, "delta": given}), (f"{family}.done", done)]


def _part(part: Json, list_name: str, inner: dict[str, Any]) -> list[_Step]:
    if list_name == "summary":
        return _summary_part(part, inner)
    known = _TEXTS.get(str(part.get("type")))
    frame = "response.content_part"
    if known is None:
        return [(f"{frame}.added", {**inner, "part": part}), (f"{frame}.done", {**inner, "part": part})]
    field, family = known
    begun = {**part, field: ""}
    begun.update({name: [] for name in ("annotations", "logprobs") if isinstance(part.get(name), list)})
    scored = {"logprobs": part.get("logprobs") or []} if family == "response.output_text" else {}
    steps: list[_Step] = [(f"{frame}.added", {**inner, "part": begun})]
    if part[field]:
        steps.append((f"{family}.delta", {**inner, "delta": part[field], **scored}))
    steps += [
        (
            "response.output_text.annotation.added",
            {**inner, "annotation_index": number, "annotation": annotation},
        )
        for number, annotation in enumerate(part.get("annotations") or ())
    ]
    steps.append((f"{family}.done", {**inner, field: part[field], **scored}))
    steps.append((f"{frame}.done", {**inner, "part": part}))
    return steps


def _summary_part(part: Json, inner: dict[str, Any]) -> list[_Step]:
    text = part["text"]
    return [
        ("response.reasoning_summary_part.added", {**inner, "part": {**part, "text": ""}}),
        ("response.reasoning_summary_text.delta", {**inner, "delta": text}),
        ("response.reasoning_summary_text.done", {**inner, "text": text}),
        ("response.reasoning_summary_part.done", {**inner, "part": part}),
    ]
