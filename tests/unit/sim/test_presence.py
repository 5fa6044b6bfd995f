"""Callers that leave are noticed in every phase, and the work for them ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from proxy.sim.scenario import Scenario, SlotRules
from tests.unit.sim.running import CHAT, INSTANT, Sim


def leave(sim: Sim, body: Mapping[str, object], headers: Mapping[str, str], after_bytes: int = 0) -> None:
    """Post a chat request and close the connection once so many bytes of the answer's body were read."""
    connection = sim.open()
    connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, **body}), dict(headers))
    if after_bytes:
        response = connection.getresponse()
        response.read(after_bytes)
        response.close()
    else:
        sim.stats_when(lambda found: found["in_work"] + found["queued"] > 0)
    connection.close()


def test_notices_a_caller_that_leaves_before_the_first_token(sim: Sim) -> None:
    leave(sim, {}, {"x-sim-first-byte-ms": "20000"})
    stats = sim.stats_when(lambda found: found["in_work"] == 0)
    assert stats["disconnects"] == {"before_first_byte": 1, "midway": 0}
    assert stats["tokens"] == {}
    assert stats["statuses"] == {"499": 1}


def test_stops_writing_for_a_caller_that_leaves_midway_and_bills_what_was_written(sim: Sim) -> None:
    leave(sim, {"stream": True}, {"x-sim-tokens": "2000", "x-sim-token-ms": "20"}, after_bytes=600)
    stats = sim.stats_when(lambda found: found["in_work"] == 0)
    assert stats["disconnects"] == {"before_first_byte": 0, "midway": 1}
    assert 1 <= stats["tokens"]["default"]["output"] < 1000
    assert stats["tokens"]["default"]["input"] == 12


def test_a_buffered_answer_that_nobody_waits_for_is_billed_as_far_as_it_got(sim: Sim) -> None:
    connection = sim.open()
    headers = {"x-sim-tokens": "2000", "x-sim-token-ms": "20", "x-sim-head-ms": "0"}
    connection.request("POST", "/v1/chat/completions", json.dumps(CHAT), headers)
    connection.getresponse().close()
    connection.close()
    stats = sim.stats_when(lambda found: sum(found["disconnects"].values()) == 1)
    assert stats["executions_total"] == 1
    assert stats["tokens"].get("default", {"output": 0})["output"] < 1000


def test_a_caller_that_leaves_the_queue_is_never_worked_for(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, slots=SlotRules(concurrent=1)))
    holder = sim.open()
    holder.request("POST", "/v1/chat/completions", json.dumps(CHAT), {"x-sim-first-byte-ms": "20000"})
    sim.stats_when(lambda found: found["in_work"] == 1)
    waiting = sim.open()
    waiting.request("POST", "/v1/chat/completions", json.dumps(CHAT), {})
    sim.stats_when(lambda found: found["queued"] == 1)
    waiting.close()
    stats = sim.stats_when(lambda found: found["queued"] == 0)
    assert (stats["queued"], stats["in_work"], stats["executions_total"]) == (0, 1, 1)
    holder.close()
    assert sim.stats_when(lambda found: found["in_work"] == 0)["in_work"] == 0
    assert sim.chat().status == 200
