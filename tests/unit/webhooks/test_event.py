from __future__ import annotations

import json

from proxy.webhooks.event import Event

EVENT = Event("response.completed", "resp_weir_1", 1_700_000_000.25)


def test_an_event_has_openais_shape_and_nothing_else() -> None:
    assert json.loads(EVENT.body()) == {
        "id": EVENT.id,
        "object": "event",
        "created_at": 1_700_000_000,
        "type": "response.completed",
        "data": {"id": "resp_weir_1"},
    }


def test_the_same_ending_has_the_same_id_and_bytes_and_another_has_others() -> None:
    same = Event("response.completed", "resp_weir_1", 1_700_000_000.25)
    assert (same.id, same.body()) == (EVENT.id, EVENT.body())
    others = (
        Event("response.failed", "resp_weir_1", EVENT.created),
        Event("response.completed", "resp_weir_2", EVENT.created),
        Event("response.completed", "resp_weir_1", EVENT.created + 0.5),
    )
    assert len({EVENT.id, *(other.id for other in others)}) == 4
    assert EVENT.id.startswith("evt_")
