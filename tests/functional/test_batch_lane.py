from __future__ import annotations

import json
from pathlib import Path

from tests.support.deferring import deferring, poll

CHAT = b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"Classify: late parcel"}]}'
ALICE = [("Authorization", "Bearer sk-alice"), ("x-stainless-retry-count", "0")]


def test_a_plain_call_is_answered_through_flex(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, sim):
        answer = proxy.client().request("POST", "/v1/chat/completions", CHAT, ALICE)
        record = proxy.log(1)[0]
        tiers = sim.stats()
    print(answer, record, tiers)
    assert answer.status == 200
    assert json.loads(answer.body)["service_tier"] == "flex"


def test_a_ticket(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch") as (proxy, sim):
        answer = proxy.client().request("POST", "/v1/chat/completions", CHAT, [*ALICE, ("Prefer", "respond-async")])
        print(answer)
        assert answer.status == 202
        where = answer.header("location")
        told = poll(proxy, where, ALICE)
        print(told)
        assert told.status == 200
        print(sim.stats())


def test_background(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch") as (proxy, sim):
        body = b'{"model":"gpt-5-mini","input":"Classify: late parcel","background":true}'
        answer = proxy.client().request("POST", "/v1/responses", body, ALICE)
        print(answer)
        made = json.loads(answer.body)
        assert made["status"] == "queued"
        for _ in range(100):
            import time
            time.sleep(0.05)
            told = json.loads(proxy.client().request("GET", "/v1/responses/" + made["id"], headers=ALICE).body)
            if told["status"] not in ("queued", "in_progress"): break
        print(told)
        assert told["status"] == "completed"
