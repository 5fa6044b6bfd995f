from __future__ import annotations

import json

from proxy.sim.generation import Choice, Finish, ToolCall
from proxy.sim.responses_events import response_events
from proxy.sim.work import Event


def names_and_steps(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.raw.split(b"\n")[0][len(b"event: response.") :].decode(), event.step) for event in events]


def test_items_follow_each_other_at_their_decode_steps() -> None:
    choice = Choice((), Finish.TOOLS, ("r", "s"), (ToolCall("f", ("{", "}")), ToolCall("g", ("{}",))))
    items = [
        {"id": "rs", "type": "reasoning"},
        {"id": "fc1", "type": "function_call", "name": "f", "arguments": "{}"},
        {"id": "fc2", "type": "function_call", "name": "g", "arguments": "{}"},
    ]
    events = list(response_events({}, items, {"status": "completed"}, choice, [0, 2, 5]))
    assert names_and_steps(events)[2:] == [
        ("output_item.added", 0),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.delta", 4),
        ("function_call_arguments.done", 4),
        ("output_item.done", 4),
        ("output_item.added", 5),
        ("function_call_arguments.delta", 6),
        ("function_call_arguments.done", 6),
        ("output_item.done", 6),
        ("completed", 6),
    ]
    assert [event.opening for event in events] == [True, True] + [False] * 12
    assert [event.closing for event in events] == [False] * 13 + [True]


def test_an_empty_message_still_has_all_its_events() -> None:
    choice = Choice((), Finish.STOP)
    item = {"id": "msg", "type": "message", "content": []}
    events = list(response_events({}, [item], {"status": "completed"}, choice, [0]))
    assert {event.step for event in events} == {0}
    done = json.loads(events[4].raw.split(b"data: ")[1])
    assert (done["type"], done["text"]) == ("response.output_text.done", "")
