"""The order of events in a streamed response.

    created, in_progress
    for each item:  output_item.added
                    message:  content_part.added, output_text.delta…, output_text.done, content_part.done
                    call:     function_call_arguments.delta…, function_call_arguments.done
                    output_item.done
    completed | incomplete

Every event carries its type and a sequence number from zero. There is no `[DONE]` at the end, as with OpenAI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from proxy.sim.generation import Choice
from proxy.sim.work import Event, named_event

Item = Mapping[str, object]
_Step = tuple[int, str, dict[str, object]]


def response_events(
    opening: Item, items: Sequence[Item], finished: Item, choice: Choice, starts: Sequence[int]
) -> Iterator[Event]:
    """Yield all events; `starts` holds the decode step at which each of `items` begins."""
    last = max(choice.tokens - 1, 0)
    number = 0
    for name in ("response.created", "response.in_progress"):
        yield Event(0, _raw(name, number, {"response": opening}), opening=True)
        number += 1
    fragments = _fragments_by_item(items, choice)
    for index, item in enumerate(items):
        for step, name, fields in _item_steps(index, item, fragments[index], starts[index]):
            yield Event(min(step, last), _raw(name, number, fields))
            number += 1
    name = "response.completed" if finished["status"] == "completed" else "response.incomplete"
    yield Event(last, _raw(name, number, {"response": finished}), closing=True)


def _raw(name: str, number: int, fields: Mapping[str, object]) -> bytes:
    return named_event(name, {"type": name, "sequence_number": number, **fields})


def _fragments_by_item(items: Sequence[Item], choice: Choice) -> list[tuple[str, ...]]:
    calls = iter(choice.calls)
    by_item: list[tuple[str, ...]] = []
    for item in items:
        if item["type"] == "reasoning":
            by_item.append(choice.reasoning)
        elif item["type"] == "message":
            by_item.append(choice.pieces)
        else:
            by_item.append(next(calls).fragments)
    return by_item


def _item_steps(index: int, item: Item, fragments: Sequence[str], start: int) -> Iterator[_Step]:
    begun = {key: value for key, value in item.items() if key not in ("content", "arguments", "input")}
    where = {"output_index": index}
    if item["type"] == "reasoning":
        yield start, "response.output_item.added", {**where, "item": item}
        yield start + len(fragments) - 1, "response.output_item.done", {**where, "item": item}
        return
    begun["status"] = "in_progress"
    if item["type"] == "message":
        begun["content"] = []
        yield start, "response.output_item.added", {**where, "item": begun}
        yield from _text_steps(item, {"item_id": item["id"], **where, "content_index": 0}, fragments, start)
        end = start + len(fragments) - 1
    else:
        field = "input" if item["type"] == "custom_tool_call" else "arguments"
        begun[field] = ""
        yield start, "response.output_item.added", {**where, "item": begun}
        yield from _call_steps(item, field, {"item_id": item["id"], **where}, fragments, start)
        end = start + len(fragments)
    yield max(end, start), "response.output_item.done", {**where, "item": item}


def _text_steps(item: Item, where: Item, pieces: Sequence[str], start: int) -> Iterator[_Step]:
    text = "".join(pieces)
    empty = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
    yield start, "response.content_part.added", {**where, "part": empty}
    for offset, piece in enumerate(pieces):
        yield start + offset, "response.output_text.delta", {**where, "delta": piece, "logprobs": []}
    end = start + max(len(pieces) - 1, 0)
    yield end, "response.output_text.done", {**where, "text": text, "logprobs": []}
    yield end, "response.content_part.done", {**where, "part": {**empty, "text": text}}


def _call_steps(item: Item, field: str, where: Item, fragments: Sequence[str], start: int) -> Iterator[_Step]:
    family = "response.custom_tool_call_input" if field == "input" else "response.function_call_arguments"
    for offset, fragment in enumerate(fragments, start=1):
        yield start + offset, f"{family}.delta", {**where, "delta": fragment}
    done = {**where, field: "".join(fragments)}
    if field == "arguments":
        done["name"] = item["name"]
    yield start + len(fragments), f"{family}.done", done
